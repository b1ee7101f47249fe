//! URL under which clients reach the server.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::Deserialize;

/// URL of the server: `http://` or `https://`, a host, and an optional port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerUrl {
    is_https: bool,
    host: String,
    port: Option<u16>,
}

impl ServerUrl {
    /// A URL without TLS at an address.
    pub fn plain(address: IpAddr, port: u16) -> Self {
        Self { is_https: false, host: address.to_string(), port: Some(port) }
    }

    /// The same host with TLS, at another port.
    #[must_use]
    pub fn by_tls(&self, port: u16) -> Self {
        Self { is_https: true, host: self.host.clone(), port: Some(port) }
    }

    /// Whether a request comes from a page at this URL, or from one at the `Host` that the
    /// request names. If this URL has TLS, a page of the same host without TLS is foreign,
    /// because others can change it on the way.
    pub fn is_origin(&self, origin: &Self, named: Option<&str>) -> bool {
        let is_weaker = self.is_https && !origin.is_https && self.has_host_of(origin);
        self.is_same_origin(origin) || !is_weaker && named.is_some_and(|host| origin.is_at(host))
    }

    /// Whether both URLs are the same origin.
    fn is_same_origin(&self, other: &Self) -> bool {
        self.is_https == other.is_https && self.has_host_of(other) && self.port() == other.port()
    }

    fn has_host_of(&self, other: &Self) -> bool {
        host(&self.host) == host(&other.host)
    }

    /// Whether a request with this `Host` is for the same host and port.
    fn is_at(&self, named: &str) -> bool {
        split(named).is_some_and(|(bare, port)| {
            let usual = if self.is_https { 443 } else { 80 };
            host(bare) == host(&self.host) && port.unwrap_or(usual) == self.port()
        })
    }

    /// Whether the URL uses TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// Whether Tailscale's clients may connect with TLS to port 443 of the host instead. They do
    /// so for minutes after an interruption (`control/ts2021/client.go`), except at a private or
    /// loopback address.
    pub fn may_be_replaced_by_tls(&self) -> bool {
        let is_private = match self.host.parse() {
            Ok(IpAddr::V4(address)) => address.is_private() || address.is_loopback(),
            Ok(IpAddr::V6(address)) => address.is_unique_local() || address.is_loopback(),
            Err(_) => self.host == "localhost",
        };
        !self.is_https && !is_private
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

/// Canonical form of the host in a URL, in `Host` or in TLS, without its port. `None` if it is empty
/// or the port is invalid.
pub(crate) fn host(text: &str) -> Option<String> {
    let (bare, _) = split(text)?;
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase();
    (!name.is_empty()).then_some(name)
}

/// Splits a host from its port, if it has one. `None` if the port is invalid.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let (bare, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (bare, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (bare, port)
        }
        // An IPv6 address without brackets cannot have a port.
        None if text.bytes().filter(|letter| *letter == b':').count() > 1 => (text, None),
        None => match text.split_once(':') {
            Some((bare, port)) => (bare, Some(port)),
            None => (text, None),
        },
    };
    let is_number = |port: &&str| port.bytes().all(|letter| letter.is_ascii_digit());
    // A port may be empty (RFC 3986 3.2.3).
    match port.filter(|port| !port.is_empty()) {
        Some(port) => Some((bare, Some(Some(port).filter(is_number)?.parse().ok()?))),
        None => Some((bare, None)),
    }
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
    fn hosts_are_compared_in_a_canonical_form() {
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
            ("a.test:", Some("a.test")),
            ("a.test:x", None),
            ("a.test:+80", None),
            ("a.test:65536", None),
            ("[fd00::1]x", None),
        ] {
            assert_eq!(host(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let url = |text: &str| text.parse::<ServerUrl>().unwrap();
        let own = url("https://net.example.com:8443");
        for (text, is_same) in [
            ("https://net.example.com:8443", true),
            ("https://NET.example.com.:8443", true),
            ("https://net.example.com", false),
            ("https://net.example.com:8444", false),
            ("http://net.example.com:8443", false),
            ("https://example.com:8443", false),
        ] {
            assert_eq!(own.is_same_origin(&url(text)), is_same, "{text}");
        }
        assert!(url("https://a").is_same_origin(&url("https://a:443")));
        for (named, is_there) in [
            ("a", true),
            ("a:443", true),
            ("a:80", false),
            ("b", false),
            ("a:x", false),
            ("", false),
        ] {
            assert_eq!(url("https://a").is_at(named), is_there, "{named}");
        }
        assert!(url("http://[fd00::1]:8080").is_at("[fd00:0::1]:8080"));
    }

    #[test]
    fn an_http_page_of_the_same_host_is_foreign_to_an_https_page() {
        let url = |text: &str| text.parse::<ServerUrl>().unwrap();
        let (https, http) = (url("https://net.example.com"), url("http://net.example.com"));
        for (page, origin, named, is_own) in [
            (&https, "https://net.example.com", None, true),
            (&https, "http://net.example.com", Some("net.example.com"), false),
            (&https, "http://net.example.com.", Some("net.example.com."), false),
            (&https, "http://net.example.com:8080", Some("net.example.com:8080"), false),
            (&https, "http://192.0.2.1:8080", Some("192.0.2.1:8080"), true),
            (&https, "http://192.0.2.1:8080", Some("192.0.2.2:8080"), false),
            (&http, "http://net.example.com", Some("net.example.com"), true),
            (&http, "https://net.example.com", Some("net.example.com"), true),
            (&http, "https://net.example.com", None, false),
        ] {
            assert_eq!(page.is_origin(&url(origin), named), is_own, "{page} {origin} {named:?}");
        }
    }

    #[test]
    fn urls_are_parsed_and_printed() {
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
