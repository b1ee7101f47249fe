//! Addresses, ports and times of the attempts to connect to a coordinator.
//!
//! The URL decides: `https` uses TLS. `http` uses plain HTTP, because Noise encrypts. Some networks
//! modify traffic of port 80. Therefore TLS is tried in parallel if the URL lacks a port and the
//! host is not private (tailscale `control/controlhttp/client.go`). Unlike stock clients, an
//! `https` URL is never tried at port 80: the key comes over the connection that is then upgraded,
//! and a firewall that drops port 80 would cost half a second each time.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use tailnet::ts2021::requests::PlannedCandidate;

/// Time between the start of an attempt without TLS and the start of the parallel one with TLS.
const TLS_DELAY: Duration = Duration::from_millis(500);
/// Timeout of an attempt until the coordinator's key was received: two long round trips and TLS.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The longest delay and the longest timeout that a coordinator may set for a candidate, in
/// seconds.
const LONGEST_DELAY: f64 = 30.0;
/// The number of candidates of a coordinator's plan that are tried.
const CANDIDATES: usize = 16;

/// A coordinator's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlUrl {
    /// Whether it is `https`.
    pub tls: bool,
    /// A name or an address. An IPv6 address is without brackets.
    pub host: String,
    /// The port, if the URL has one.
    pub port: Option<u16>,
}

/// The reason why a text is not the URL of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// The URL begins with neither `https://` nor `http://`.
    Scheme,
    /// The host is missing or invalid.
    Host,
    /// The port is invalid.
    Port,
    /// The URL has more than a host and a port.
    Path,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "the URL must begin with https:// or http://",
            Self::Host => "the URL has no valid host name or address",
            Self::Port => "the URL's port is not a number from 1 to 65535",
            Self::Path => "the URL must end after the host name and port",
        })
    }
}

impl std::error::Error for UrlError {}

impl FromStr for ControlUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(UrlError::Scheme),
        };
        let rest = rest.trim_end_matches('/');
        if rest.contains(['/', '?', '#', '@']) {
            return Err(UrlError::Path);
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(UrlError::Host)?;
                address.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Host)?;
                let port = match port.strip_prefix(':') {
                    None if !port.is_empty() => return Err(UrlError::Host),
                    port => port,
                };
                (address, port)
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_v6 = rest.starts_with('[');
        if host.is_empty() || host.len() > 253 || !is_v6 && !host.bytes().all(is_name) {
            return Err(UrlError::Host);
        }
        let port = match port.map(str::parse) {
            Some(Ok(0) | Err(_)) => return Err(UrlError::Port),
            Some(Ok(port)) => Some(port),
            None => None,
        };
        Ok(Self { tls, host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for ControlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl ControlUrl {
    /// Returns host and port in the form of HTTP.
    pub fn authority(&self) -> String {
        let v6 = self.host.contains(':');
        let host = if v6 { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }

    fn is_private(&self) -> bool {
        match self.host.parse() {
            Ok(IpAddr::V4(v4)) => v4.is_private() || v4.is_loopback(),
            Ok(IpAddr::V6(v6)) => v6.is_unique_local() || v6.is_loopback(),
            Err(_) => self.host == "localhost",
        }
    }
}

/// A candidate of the coordinator's plan for the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its address.
    pub address: IpAddr,
    /// The start of the attempt, relative to the start of the round.
    pub after: Duration,
    /// The timeout of the attempt.
    pub limit: Duration,
}

impl Candidate {
    /// Limits the numbers of the message. They are in seconds, and may be anything.
    pub fn new(address: IpAddr, delay: f64, timeout: f64) -> Self {
        let seconds = |number: f64| {
            let number = if number.is_nan() { 0.0 } else { number };
            Duration::from_secs_f64(number.clamp(0.0, LONGEST_DELAY))
        };
        let limit = Some(seconds(timeout)).filter(|limit| !limit.is_zero()).unwrap_or(ATTEMPT);
        Self { address, after: seconds(delay), limit }
    }
}

impl From<PlannedCandidate> for Candidate {
    fn from(PlannedCandidate { address, delay, timeout }: PlannedCandidate) -> Self {
        Self::new(address, delay, timeout)
    }
}

/// One attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The start of the attempt, relative to the start of the round.
    pub after: Duration,
    /// The timeout until the coordinator's key was received.
    pub limit: Duration,
    /// Whether with TLS.
    pub tls: bool,
    /// To which port.
    pub port: u16,
    /// The address; `None` for the addresses of the URL's host.
    pub address: Option<IpAddr>,
}

/// Returns the attempts in rounds. A round starts when all attempts of the previous one failed. The
/// first success in a round wins. If all started attempts failed, the next one starts at once.
pub fn rounds(url: &ControlUrl, plan: &[Candidate]) -> Vec<Vec<Attempt>> {
    let own = Attempt {
        after: Duration::ZERO,
        limit: ATTEMPT,
        tls: url.tls,
        port: url.port.unwrap_or(if url.tls { 443 } else { 80 }),
        address: None,
    };
    let mut planned: Vec<_> = plan
        .iter()
        .take(CANDIDATES)
        .map(|candidate| Attempt {
            after: candidate.after,
            limit: candidate.limit,
            address: Some(candidate.address),
            ..own
        })
        .collect();
    planned.sort_by_key(|attempt| attempt.after);
    let mut named = vec![own];
    if !url.tls && url.port.is_none() && !url.is_private() {
        named.push(Attempt { after: TLS_DELAY, tls: true, port: 443, ..own });
    }
    [planned, named].into_iter().filter(|round| !round.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ControlUrl {
        text.parse().unwrap()
    }

    #[test]
    fn url_has_a_host_and_an_optional_port() {
        for (text, tls, host, port) in [
            ("https://control.example", true, "control.example", None),
            ("HTTPS://Control.Example/", true, "control.example", None),
            ("http://10.0.0.1:8080", false, "10.0.0.1", Some(8080)),
            ("https://[fd7a::1]:8443/", true, "fd7a::1", Some(8443)),
            ("http://[::1]", false, "::1", None),
        ] {
            assert_eq!(url(text), ControlUrl { tls, host: host.into(), port }, "{text}");
        }
        assert_eq!(url("https://[FD7A::1]:8443").to_string(), "https://[fd7a::1]:8443");
    }

    #[test]
    fn invalid_url_returns_the_reason() {
        for (text, error) in [
            ("control.example", UrlError::Scheme),
            ("ftp://control.example", UrlError::Scheme),
            ("https://", UrlError::Host),
            ("https://a b", UrlError::Host),
            ("https://[::1", UrlError::Host),
            ("https://[::1]8443", UrlError::Host),
            ("https://[name]", UrlError::Host),
            ("https://a:0", UrlError::Port),
            ("https://a:65536", UrlError::Port),
            ("https://a:", UrlError::Port),
            ("https://a/b", UrlError::Path),
            ("https://user@a", UrlError::Path),
        ] {
            assert_eq!(text.parse::<ControlUrl>(), Err(error), "{text}");
        }
    }

    #[test]
    fn tls_is_tried_in_parallel_only_without_port_at_a_public_host() {
        let tried = |text: &str| -> Vec<_> {
            let rounds = rounds(&url(text), &[]);
            assert_eq!(rounds.len(), 1);
            rounds[0].iter().map(|at| (at.tls, at.port, at.after.as_millis())).collect()
        };
        assert_eq!(tried("https://a.example"), [(true, 443, 0)]);
        assert_eq!(tried("https://a.example:8443"), [(true, 8443, 0)]);
        assert_eq!(tried("http://a.example"), [(false, 80, 0), (true, 443, 500)]);
        assert_eq!(tried("http://a.example:8080"), [(false, 8080, 0)]);
        assert_eq!(tried("http://192.168.1.1"), [(false, 80, 0)]);
        assert_eq!(tried("http://localhost"), [(false, 80, 0)]);
    }

    #[test]
    fn dial_plan_comes_first_and_its_numbers_are_limited() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let plan = [
            Candidate::new(address, 2.0, f64::INFINITY),
            Candidate::new(address, f64::NAN, -3.0),
            Candidate::new(address, 1e300, 0.5),
        ];
        let rounds = rounds(&url("https://a.example"), &plan);
        assert_eq!(rounds.len(), 2);
        let times: Vec<_> =
            rounds[0].iter().map(|at| (at.after.as_secs(), at.limit.as_millis())).collect();
        assert_eq!(times, [(0, 10_000), (2, 30_000), (30, 500)]);
        assert!(rounds[0].iter().all(|at| at.address == Some(address) && at.tls));
        assert_eq!(rounds[1][0].address, None);
    }
}
