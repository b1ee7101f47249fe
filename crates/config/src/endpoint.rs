//! Endpoints with names.

use std::{fmt, net::IpAddr};

/// An endpoint with an unresolved host, displayed as in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointName {
    /// A name or an address: IPv4, or IPv6 without brackets and possibly with `%scope`.
    pub host: String,
    /// The UDP port.
    pub port: u16,
}

impl EndpointName {
    /// Whether the host is a name instead of an address.
    pub fn is_name(&self) -> bool {
        let address = self.host.split_once('%').map_or(&*self.host, |(address, _)| address);
        address.parse::<IpAddr>().is_err()
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
