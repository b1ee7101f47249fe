//! URL of another server: with TLS, or on this machine.

use std::{fmt, net::IpAddr, str::FromStr};

use hyper::{
    Uri,
    http::uri::{Authority, Scheme},
};
use serde::Deserialize;

/// `https://` and any host, or `http://` and this machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RemoteUrl {
    uri: Uri,
    is_https: bool,
    host: String,
}

impl RemoteUrl {
    /// Whether the URL uses TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// The host: a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or(if self.is_https { 443 } else { 80 })
    }

    /// Host and port for a request.
    pub fn authority(&self) -> &str {
        self.uri.authority().map_or("", Authority::as_str)
    }

    /// The whole URL.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl FromStr for RemoteUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a URL such as https://relay.example.com");
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        let is_here = || {
            let address: Option<IpAddr> = host.parse().ok();
            host == "localhost" || address.is_some_and(|address| address.is_loopback())
        };
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if is_here() => {}
            Some("http") => {
                return Err(format!("{text:?} needs https://: otherwise, anyone could answer"));
            }
            _ => return Err(bad()),
        }
        Ok(Self { uri, is_https, host })
    }
}

impl TryFrom<String> for RemoteUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_urls_need_tls_or_loopback() {
        for (text, host, port) in [
            ("https://relay.example.com", "relay.example.com", 443),
            ("https://[fd00::1]:8443/derpmap", "fd00::1", 8443),
            ("http://127.0.0.1:8080/verify", "127.0.0.1", 8080),
            ("http://localhost", "localhost", 80),
        ] {
            let url: RemoteUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port()), (host, port));
        }
        for text in ["", "relay.example.com", "ftp://a", "http://10.0.0.1", "https://", "/verify"] {
            assert!(text.parse::<RemoteUrl>().is_err(), "{text}");
        }
    }
}
