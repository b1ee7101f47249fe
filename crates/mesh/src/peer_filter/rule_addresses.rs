//! Parsing of addresses in rules (`wgengine/filter/tailcfg.go`, `parseIPSet`).

use std::{fmt, net::IpAddr};

use packet::filter::AddressRange;

/// The longest text in an error message.
const MAX_REPORTED: usize = 80;

/// The meaning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses<'a> {
    /// One range, or all addresses of both families.
    Ranges([Option<AddressRange>; 2]),
    /// The addresses of peers that have a capability.
    OfCapability(&'a str),
}

/// The reason why a text does not stand for addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseAddressesError {
    /// The form is unknown.
    Malformed(String),
    /// The address of a network has bits after the prefix.
    HostBits(String),
    /// A capability is not allowed here.
    Capability(String),
}

impl ParseAddressesError {
    pub(super) fn malformed(text: &str) -> Self {
        Self::Malformed(short(text))
    }

    pub(super) fn capability(text: &str) -> Self {
        Self::Capability(short(text))
    }
}

impl fmt::Display for ParseAddressesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => write!(f, "{text:?} is not an address, network or range"),
            Self::HostBits(text) => write!(f, "{text:?} is not a network, but an address in one"),
            Self::Capability(text) => write!(f, "{text:?} is only valid as a source"),
        }
    }
}

impl std::error::Error for ParseAddressesError {}

pub(super) fn parse(text: &str) -> Result<Addresses<'_>, ParseAddressesError> {
    if text == "*" {
        return Ok(Addresses::Ranges([Some(AddressRange::V4), Some(AddressRange::V6)]));
    }
    if let Some(name) = text.strip_prefix("cap:") {
        return Ok(Addresses::OfCapability(name));
    }
    let malformed = || ParseAddressesError::malformed(text);
    let range = if let Some((address, len)) = text.rsplit_once('/') {
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let range = length(len).and_then(|len| AddressRange::prefix(address, len));
        let range = range.ok_or_else(malformed)?;
        if range.first() != address {
            return Err(ParseAddressesError::HostBits(short(text)));
        }
        range
    } else if let Some((first, last)) = text.split_once('-') {
        let ends = first.parse().ok().zip(last.parse().ok());
        ends.and_then(|(first, last)| AddressRange::new(first, last)).ok_or_else(malformed)?
    } else {
        text.parse::<IpAddr>().map_err(|_| malformed())?.into()
    };
    Ok(Addresses::Ranges([Some(range), None]))
}

/// Reads a prefix length as Go does: without sign and leading zeros.
fn length(text: &str) -> Option<u8> {
    let plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| plain)
}

fn short(text: &str) -> String {
    text.chars().take(MAX_REPORTED).collect()
}
