//! The header of each datagram through a peer relay (RFC 8926 section 3.4, without options).
//!
//! ```text
//!   version, length of options (0)   control bit, reserved (0)   protocol (2)   VNI (3)   0
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

/// The length of the header.
pub const GENEVE_LEN: usize = 8;

const CONTROL: u8 = 0x80;
/// Tailscale's numbers (`net/packet/geneve.go`).
const DISCO: u16 = 0x7a11;
const WIREGUARD: u16 = 0x7a12;

/// The identifier of a relay's pair of clients: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Vni(u32);

impl Vni {
    /// The largest identifier.
    pub const MAX: u32 = (1 << 24) - 1;

    /// Returns `None` for more than 24 bits.
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX).then_some(Self(number))
    }

    /// Returns the number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Vni {
    type Error = &'static str;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("more than 24 bits")
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> Self {
        vni.0
    }
}

impl fmt::Debug for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vni:{}", self.0)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The payload of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A disco datagram.
    Disco,
    /// A WireGuard datagram.
    WireGuard,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geneve {
    /// Whether the datagram is to or from the relay itself.
    pub control: bool,
    /// The payload.
    pub protocol: Protocol,
    /// The pair of clients.
    pub vni: Vni,
}

impl Geneve {
    /// Reads the header of a datagram; `None` if the version, the options, the reserved bits or the
    /// protocol do not match. WireGuard, STUN and plain disco datagrams never match (tailscale
    /// `magicsock.go`, `packetLooksLike`).
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let &[0, flags, high, low, a, b, c, 0] = datagram.first_chunk::<GENEVE_LEN>()? else {
            return None;
        };
        let control = match flags {
            0 => false,
            CONTROL => true,
            _ => return None,
        };
        let protocol = match u16::from_be_bytes([high, low]) {
            DISCO => Protocol::Disco,
            WIREGUARD => Protocol::WireGuard,
            _ => return None,
        };
        Some(Self { control, protocol, vni: Vni(u32::from_be_bytes([0, a, b, c])) })
    }

    /// Returns the bytes of the header.
    pub fn bytes(self) -> [u8; GENEVE_LEN] {
        let flags = if self.control { CONTROL } else { 0 };
        let [high, low] = match self.protocol {
            Protocol::Disco => DISCO,
            Protocol::WireGuard => WIREGUARD,
        }
        .to_be_bytes();
        let [_, a, b, c] = self.vni.0.to_be_bytes();
        [0, flags, high, low, a, b, c, 0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_value_is_read_back(
            control: bool, disco: bool, number in 0..=Vni::MAX, behind: Vec<u8>
        ) {
            let protocol = if disco { Protocol::Disco } else { Protocol::WireGuard };
            let header = Geneve { control, protocol, vni: Vni(number) };
            let datagram = [&header.bytes()[..], &behind].concat();
            prop_assert_eq!(Geneve::read(&datagram), Some(header));
        }

        #[test]
        fn read_header_is_written_unchanged(datagram: [u8; GENEVE_LEN], len in 0..=8usize) {
            if let Some(header) = Geneve::read(&datagram[..len]) {
                prop_assert_eq!(&header.bytes()[..], &datagram[..len]);
            }
        }
    }

    #[test]
    fn headers_match_those_of_tailscale() {
        // From geneve_test.go: a control header of disco, and one of WireGuard.
        for (bytes, control, protocol, number) in [
            ([0, 0x80, 0x7a, 0x11, 1, 2, 3, 0], true, Protocol::Disco, 0x01_0203),
            ([0, 0, 0x7a, 0x12, 0xff, 0xff, 0xff, 0], false, Protocol::WireGuard, Vni::MAX),
        ] {
            let header = Geneve { control, protocol, vni: Vni(number) };
            assert_eq!(Geneve::read(&bytes), Some(header));
            assert_eq!(header.bytes(), bytes);
        }
    }

    #[test]
    fn wireguard_stun_and_disco_datagrams_lack_the_header() {
        let data = [4, 0, 0, 0, 1, 2, 3, 0];
        let stun = [0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
        let disco = *b"TS\xf0\x9f\x92\xac12";
        for datagram in [data, stun, disco, [0; 8]] {
            assert_eq!(Geneve::read(&datagram), None);
        }
    }

    #[test]
    fn vni_of_more_than_24_bits_is_refused() {
        assert_eq!(Vni::new(1 << 24), None);
        assert_eq!(Vni::new(Vni::MAX).map(Vni::get), Some(Vni::MAX));
    }
}
