//! The HTTP proxy for a host, from the environment variables that Go programs read.
//!
//! `HTTPS_PROXY` applies to TLS, `HTTP_PROXY` to plain HTTP. `NO_PROXY` lists hosts that are
//! reached directly. Lower-case names are read as well. Loopback addresses never use a proxy.

use std::{fmt, net::IpAddr};

use base64ct::{Base64, Encoding};
use ipnet::IpNet;
use zeroize::Zeroizing;

/// A proxy that supports `CONNECT`.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Whether the connection to the proxy uses TLS.
    pub tls: bool,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The value of `Proxy-Authorization`, if the proxy has a password.
    pub authorization: Option<Zeroizing<String>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The proxies from the environment.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    https: Option<Chosen>,
    http: Option<Chosen>,
    without: Vec<Exception>,
}

/// The value of a variable.
#[derive(Clone, Debug)]
enum Chosen {
    Proxy(Proxy),
    /// The value is not a supported proxy. The name of the variable.
    Unusable(&'static str),
}

#[derive(Clone, Debug)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Hosts {
    All,
    Net(IpNet),
    /// The domain, and whether its own name is included.
    Domain(String, bool),
}

/// The variable. Its value is not a supported proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyError(pub &'static str);

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be http://HOST:PORT or https://HOST:PORT", self.0)
    }
}

impl std::error::Error for ProxyError {}

impl Proxies {
    /// Reads the variables. `variable` looks one up.
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let find = |large: &str, small: &str| {
            variable(large).or_else(|| variable(small)).filter(|text| !text.is_empty())
        };
        let read =
            |name, text: String| read_proxy(&text).map_or(Chosen::Unusable(name), Chosen::Proxy);
        let without = find("NO_PROXY", "no_proxy").unwrap_or_default();
        Self {
            https: find("HTTPS_PROXY", "https_proxy").map(|text| read("HTTPS_PROXY", text)),
            http: find("HTTP_PROXY", "http_proxy").map(|text| read("HTTP_PROXY", text)),
            without: without.split(',').filter_map(|text| read_exception(text.trim())).collect(),
        }
    }

    /// Returns the proxy for a host; `None` for a direct connection.
    ///
    /// # Errors
    /// The variable does not contain a supported proxy.
    pub fn for_host(&self, tls: bool, host: &str, port: u16) -> Result<Option<&Proxy>, ProxyError> {
        let address = host.parse::<IpAddr>().ok();
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return Ok(None);
        }
        let is_excepted = |except: &Exception| {
            except.port.is_none_or(|only| only == port) && except.hosts.contain(host, address)
        };
        match if tls { &self.https } else { &self.http } {
            Some(_) if self.without.iter().any(is_excepted) => Ok(None),
            Some(Chosen::Proxy(proxy)) => Ok(Some(proxy)),
            Some(Chosen::Unusable(name)) => Err(ProxyError(name)),
            None => Ok(None),
        }
    }
}

impl Hosts {
    fn contain(&self, host: &str, address: Option<IpAddr>) -> bool {
        match self {
            Self::All => true,
            Self::Net(net) => address.is_some_and(|address| net.contains(&address)),
            Self::Domain(domain, itself) => match host.strip_suffix(domain.as_str()) {
                Some("") => *itself,
                Some(below) => below.ends_with('.'),
                None => false,
            },
        }
    }
}

fn read_proxy(text: &str) -> Option<Proxy> {
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return None,
        None => (false, text),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    let scheme = if tls { "https" } else { "http" };
    let url: super::dialing::ControlUrl = format!("{scheme}://{rest}").parse().ok()?;
    let authorization = match user {
        Some(user) => {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let mut both = Zeroizing::new(unescape(name)?);
            both.push(b':');
            both.extend_from_slice(&Zeroizing::new(unescape(password)?));
            Some(Zeroizing::new(format!("Basic {}", *Zeroizing::new(Base64::encode_string(&both)))))
        }
        None => None,
    };
    let port = url.port.unwrap_or(if tls { 443 } else { 80 });
    Some(Proxy { tls, host: url.host, port, authorization })
}

/// Decodes percent-encoding.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut read) = (text.bytes(), Vec::with_capacity(text.len()));
    while let Some(byte) = bytes.next() {
        read.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high << 4 | low).ok()?
            }
            byte => byte,
        });
    }
    Some(read)
}

fn read_exception(text: &str) -> Option<Exception> {
    if text == "*" {
        return Some(Exception { hosts: Hosts::All, port: None });
    }
    let net = |text: &str| {
        let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        text.parse().ok().or_else(|| address(text).map(IpNet::from)).map(Hosts::Net)
    };
    if let Some(hosts) = net(text) {
        return Some(Exception { hosts, port: None });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    if host.is_empty() {
        return None;
    }
    let name = host.to_ascii_lowercase();
    let domain = |name: &str| match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
        Some(below) => Hosts::Domain(below.into(), false),
        None => Hosts::Domain(name.into(), true),
    };
    Some(Exception { hosts: net(host).unwrap_or_else(|| domain(&name)), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::new(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name)?;
            Some(found.1.to_owned())
        })
    }

    #[test]
    fn each_scheme_has_its_variable_and_loopback_is_not_proxied() {
        let proxies = proxies(&[
            ("https_proxy", "http://proxy.example:3128"),
            ("HTTP_PROXY", "10.0.0.1:8080"),
        ]);
        let at = |tls, host| {
            let proxy = proxies.for_host(tls, host, 443).unwrap()?;
            Some((proxy.to_string(), proxy.tls))
        };
        assert_eq!(at(true, "a.example"), Some(("proxy.example:3128".into(), false)));
        assert_eq!(at(false, "a.example"), Some(("10.0.0.1:8080".into(), false)));
        assert_eq!(at(true, "127.0.0.2"), None);
        assert_eq!(at(true, "localhost"), None);
    }

    #[test]
    fn proxy_password_is_sent_and_not_printed() {
        let proxies = proxies(&[("HTTPS_PROXY", "https://me:p%40ss@proxy.example")]);
        let proxy = proxies.for_host(true, "a.example", 443).unwrap().unwrap();
        let expected = format!("Basic {}", Base64::encode_string(b"me:p@ss"));
        assert_eq!(**proxy.authorization.as_ref().unwrap(), expected);
        assert_eq!((proxy.tls, proxy.port), (true, 443));
        assert_eq!(format!("{proxy:?}"), "proxy.example:443");
    }

    #[test]
    fn hosts_in_no_proxy_are_reached_directly() {
        let without =
            "10.0.0.0/8, ::1, .sub.example,plain.example , port.example:8443, [fd7a::1]:80";
        let proxies = proxies(&[("HTTPS_PROXY", "p:1"), ("NO_PROXY", without)]);
        let is_direct = |host, port| proxies.for_host(true, host, port).unwrap().is_none();
        for (host, port) in [
            ("10.1.2.3", 443),
            ("a.sub.example", 443),
            ("plain.example", 443),
            ("a.plain.example", 443),
            ("port.example", 8443),
            ("fd7a::1", 80),
        ] {
            assert!(is_direct(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("11.1.2.3", 443),
            ("sub.example", 443),
            ("notplain.example", 443),
            ("port.example", 443),
            ("fd7a::1", 443),
        ] {
            assert!(!is_direct(host, port), "{host}:{port}");
        }
    }

    #[test]
    fn unusable_proxy_is_an_error_and_is_not_bypassed() {
        let proxies = proxies(&[("HTTPS_PROXY", "socks5://proxy.example:1080")]);
        let error = proxies.for_host(true, "a.example", 443).unwrap_err();
        assert_eq!(error, ProxyError("HTTPS_PROXY"));
    }
}
