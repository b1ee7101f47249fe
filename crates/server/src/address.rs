//! The URL that clients have: where the network is, and where its relay is.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::Deserialize;

/// Where clients find the server: `http://` or `https://`, a host, maybe a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerUrl {
    is_https: bool,
    host: String,
    port: Option<u16>,
}

impl ServerUrl {
    /// One without TLS, at an address.
    pub fn plain(address: IpAddr, port: u16) -> Self {
        Self { is_https: false, host: address.to_string(), port: Some(port) }
    }

    /// The same host by TLS, at another port.
    #[must_use]
    pub fn by_tls(&self, port: u16) -> Self {
        Self { is_https: true, host: self.host.clone(), port: Some(port) }
    }

    /// Whether it is reached by TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// The host: a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_https { 443 } else { 80 })
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a URL such as https://net.example.com");
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let is_https = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(bad()),
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(bad)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
                (host, port.strip_prefix(':'))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_host = |letter: u8| letter.is_ascii_alphanumeric() || b".-:_".contains(&letter);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(bad());
        }
        let port = port.map(|port| port.parse().map_err(|_| bad())).transpose()?;
        Ok(Self { is_https, host: host.to_owned(), port })
    }
}

/// The host of a URL, of `Host` or of TLS, with a port or without, as it is compared: `None` for none.
pub fn host(text: &str) -> Option<String> {
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        // An address of IPv6 without brackets has no port.
        None if text.bytes().filter(|letter| *letter == b':').count() > 1 => text,
        None => text.split(':').next()?,
    };
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase();
    (!name.is_empty()).then_some(name)
}

impl TryFrom<String> for ServerUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_https { "https://" } else { "http://" })?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_however_it_is_written() {
        for (text, wanted) in [
            ("Net.Example.com", Some("net.example.com")),
            ("net.example.com.:8443", Some("net.example.com")),
            ("[FD00:0::1]:443", Some("fd00::1")),
            ("fd00::1", Some("fd00::1")),
            ("[::ffff:10.0.0.1]", Some("10.0.0.1")),
            ("10.0.0.1:80", Some("10.0.0.1")),
            ("", None),
            (":80", None),
            ("[::1", None),
        ] {
            assert_eq!(host(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn urls_are_read_and_written() {
        for (text, host, port) in [
            ("https://net.example.com", "net.example.com", 443),
            ("http://10.0.0.1:8080", "10.0.0.1", 8080),
            ("https://[fd00::1]:8443", "fd00::1", 8443),
        ] {
            let url: ServerUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port(), &*url.to_string()), (host, port, text));
        }
        for text in ["", "net.example.com", "ftp://a", "https://", "https://a b", "http://a:x"] {
            assert!(text.parse::<ServerUrl>().is_err(), "{text}");
        }
    }
}
