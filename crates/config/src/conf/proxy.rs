//! Keys of `linerate proxy`. wg-quick(8) does not have them.
//!
//! ```text
//!  Socks5    = 127.0.0.1:1080                      address of the SOCKS5 proxy
//!  HttpProxy = unix:/run/user/1000/http            address of the HTTP proxy
//!  Forward   = tcp 127.0.0.1:8080 -> 10.0.0.2:80   listen here, connect in the tunnel
//!  Expose    = tcp 10.0.0.1:22 -> 127.0.0.1:22     listen in the tunnel, connect here
//!  ProxyUser = name:/path/of/password              login for SOCKS5 and HTTP
//! ```

use std::{borrow::Cow, fmt, net::SocketAddr, path::PathBuf};

use super::{
    Conf, ConfError, Reason,
    error::Fault,
    lines::{Entries, Entry, Key},
};
use crate::{
    target::Target,
    value::{ValueError, Wanted},
};

/// The proxy keys of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// Addresses of the SOCKS5 proxy.
    pub socks: Vec<WithOrigin<SocketAddress>>,
    /// Addresses of the HTTP proxy.
    pub http: Vec<WithOrigin<SocketAddress>>,
    /// Local ports that lead into the tunnel.
    pub forwards: Vec<WithOrigin<Forward>>,
    /// Ports in the tunnel that lead to local services.
    pub exposed: Vec<WithOrigin<Expose>>,
    /// Users of the proxies. If empty, the proxies need no login.
    pub users: Vec<WithOrigin<ProxyUser>>,
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithOrigin<T> {
    /// The origin for messages: `FILE:LINE: KEY`, or an argument.
    pub origin: String,
    /// The value.
    pub value: T,
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketAddress {
    /// `127.0.0.1:1080`
    Ip(SocketAddr),
    /// `unix:/path`
    Unix(PathBuf),
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `tcp`
    Tcp,
    /// `udp`
    Udp,
}

/// `Forward = TRANSPORT HERE -> THERE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// TCP or UDP.
    pub transport: Transport,
    /// The address on this machine. UDP needs an IP address.
    pub from: SocketAddress,
    /// The target in the tunnel.
    pub to: Target,
}

/// `Expose = TRANSPORT THERE -> HERE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expose {
    /// TCP or UDP.
    pub transport: Transport,
    /// The address in the tunnel.
    pub from: SocketAddr,
    /// The service on this machine. UDP needs an IP address.
    pub to: SocketAddress,
}

/// `ProxyUser = NAME:FILE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyUser {
    /// The name.
    pub name: String,
    /// A file with the password in its first line.
    pub password_file: PathBuf,
}

impl Proxy {
    pub(super) fn read(entries: &Entries<'_>, file_name: &str) -> Result<Self, Fault> {
        let from_file = Reader { entries, file_name };
        Ok(Self {
            socks: from_file.all(Key::Socks5, socket_address)?,
            http: from_file.all(Key::HttpProxy, socket_address)?,
            forwards: from_file.all(Key::Forward, forward)?,
            exposed: from_file.all(Key::Expose, expose)?,
            users: from_file.all(Key::ProxyUser, user)?,
        })
    }

    /// Whether the file lacks proxy keys.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Conf {
    /// Refuses a file with keys that only `linerate proxy` uses.
    ///
    /// # Errors
    /// The first of these keys.
    pub fn without_proxy(&self) -> Result<(), ConfError> {
        match self.proxy_key {
            Some((line, key)) => Err(ConfError::new(&self.file_name, line, key, Reason::ProxyOnly)),
            None => Ok(()),
        }
    }

    /// Refuses a file with keys that only `linerate up` uses.
    ///
    /// # Errors
    /// The first of these keys.
    pub fn without_up(&self) -> Result<(), ConfError> {
        match self.up_key {
            Some((line, key)) => Err(ConfError::new(&self.file_name, line, key, Reason::UpOnly)),
            None => Ok(()),
        }
    }
}

/// The first line that fulfils `some`, and its key.
pub(super) fn first_key(
    entries: &Entries<'_>,
    some: impl Fn(&Entry<'_>) -> bool,
) -> Option<(usize, &'static str)> {
    let mut ours = entries.entries.iter().filter(|entry| some(entry));
    ours.next().map(|entry| (entry.line, entry.key.name()))
}

struct Reader<'a> {
    entries: &'a Entries<'a>,
    file_name: &'a str,
}

impl Reader<'_> {
    fn all<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Vec<WithOrigin<T>>, Fault> {
        let read = |entry: &Entry<'_>| {
            let value = parse(entry.value).map_err(|error| Fault {
                line: entry.line,
                key: Some(Cow::Borrowed(key.name())),
                reason: Reason::Value(error),
            })?;
            Ok(WithOrigin {
                origin: format!("{}:{}: {}", self.file_name, entry.line, key.name()),
                value,
            })
        };
        self.entries.of(key).map(read).collect()
    }
}

impl SocketAddress {
    /// Parses an address with its port, or `unix:` and a path.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        socket_address(text)
    }
}

fn socket_address(text: &str) -> Result<SocketAddress, ValueError> {
    let address = match text.strip_prefix("unix:") {
        Some(path) => path.starts_with('/').then(|| SocketAddress::Unix(path.into())),
        None => text.parse().map(SocketAddress::Ip).ok(),
    };
    address.ok_or_else(|| ValueError::new(Wanted::SocketAddress, text))
}

fn forward(text: &str) -> Result<Forward, ValueError> {
    let wrong = || ValueError::new(Wanted::Forward, text);
    let (transport, from, to) = arrow(text).ok_or_else(wrong)?;
    let from = socket_address(from).map_err(|_| wrong())?;
    let to = Target::parse(to, None).ok_or_else(wrong)?;
    suits(transport, &from).then_some(Forward { transport, from, to }).ok_or_else(wrong)
}

fn expose(text: &str) -> Result<Expose, ValueError> {
    let wrong = || ValueError::new(Wanted::Expose, text);
    let (transport, from, to) = arrow(text).ok_or_else(wrong)?;
    let from = from.parse().map_err(|_| wrong())?;
    let to = socket_address(to).map_err(|_| wrong())?;
    suits(transport, &to).then_some(Expose { transport, from, to }).ok_or_else(wrong)
}

/// `TRANSPORT FROM -> TO`
fn arrow(text: &str) -> Option<(Transport, &str, &str)> {
    let (transport, rest) = text.split_once(char::is_whitespace)?;
    let transport = match transport.to_ascii_lowercase().as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return None,
    };
    let (from, to) = rest.split_once("->")?;
    Some((transport, from.trim(), to.trim()))
}

/// UDP services cannot have Unix sockets.
fn suits(transport: Transport, address: &SocketAddress) -> bool {
    transport == Transport::Tcp || matches!(address, SocketAddress::Ip(_))
}

fn user(text: &str) -> Result<ProxyUser, ValueError> {
    // RFC 1929 limits both to 255 bytes.
    match text.split_once(':') {
        Some((name, file)) if (1..=255).contains(&name.len()) && file.starts_with('/') => {
            Ok(ProxyUser { name: name.to_owned(), password_file: file.into() })
        }
        // The value may be a password by mistake.
        _ => Err(ValueError::secret(Wanted::ProxyUser)),
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.transport, self.from, self.to)
    }
}

impl fmt::Display for Expose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.transport, self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Conf, ConfError> {
        Conf::parse("wg0.conf", &format!("[Interface]\n{lines}\n"))
    }

    fn refused(lines: &str) -> String {
        parse(lines).unwrap_err().to_string()
    }

    #[test]
    fn proxy_keys_are_parsed_with_their_lines() {
        let text = "Socks5 = 127.0.0.1:1080\nSocks5 = unix:/run/a b\nHttpProxy = [::1]:8080\n\
                    Forward = tcp unix:/x -> web.example:80\nForward = UDP 127.0.0.1:53->10.0.0.1:53\n\
                    Expose = tcp 10.0.0.1:22 -> unix:/y # ssh\nProxyUser = ann:/etc/pw";
        let proxy = parse(text).unwrap().interface.proxy;
        let shown = |line: usize, key: &str, value: &str| format!("wg0.conf:{line}: {key} {value}");
        let mut all = Vec::new();
        for listener in proxy.socks.iter().chain(&proxy.http) {
            all.push(format!("{} {}", listener.origin, listener.value));
        }
        all.extend(proxy.forwards.iter().map(|f| format!("{} {}", f.origin, f.value)));
        all.extend(proxy.exposed.iter().map(|e| format!("{} {}", e.origin, e.value)));
        assert_eq!(
            all,
            [
                shown(2, "Socks5", "127.0.0.1:1080"),
                shown(3, "Socks5", "unix:/run/a b"),
                shown(4, "HttpProxy", "[::1]:8080"),
                shown(5, "Forward", "tcp unix:/x -> web.example:80"),
                shown(6, "Forward", "udp 127.0.0.1:53 -> 10.0.0.1:53"),
                shown(7, "Expose", "tcp 10.0.0.1:22 -> unix:/y"),
            ]
        );
        let user = ProxyUser { name: "ann".into(), password_file: "/etc/pw".into() };
        assert_eq!(proxy.users[0].value, user);
    }

    #[test]
    fn invalid_value_is_refused_with_its_line_and_the_expected_form() {
        for (line, key) in [
            ("Socks5 = 1080", "Socks5"),
            ("Socks5 = localhost:1080", "Socks5"),
            ("HttpProxy = unix:relative", "HttpProxy"),
            ("Forward = tcp 127.0.0.1:1 10.0.0.1:1", "Forward"),
            ("Forward = sctp 127.0.0.1:1 -> 10.0.0.1:1", "Forward"),
            ("Forward = udp unix:/x -> 10.0.0.1:1", "Forward"),
            ("Forward = tcp 127.0.0.1:1 -> 10.0.0.1", "Forward"),
            ("Expose = tcp host:1 -> 127.0.0.1:1", "Expose"),
            ("Expose = udp 10.0.0.1:1 -> unix:/x", "Expose"),
            ("ProxyUser = ann", "ProxyUser"),
        ] {
            let error = refused(&format!("\n{line}"));
            assert!(error.starts_with(&format!("wg0.conf:3: {key}: ")), "{line}: {error}");
        }
        assert!(!refused("ProxyUser = ann:hunter2").contains("hunter2"));
    }

    #[test]
    fn proxy_refuses_the_first_key_of_up() {
        assert!(parse("Socks5 = 127.0.0.1:1080").unwrap().without_up().is_ok());
        for line in [
            "FwMark = 1\nFwMask = 1",
            "\nDefaultRouteTable = 1",
            "\nRulePriority = 1",
            "\nConnectedFirst = true",
            "\nOfferRoutes = ::/0",
            "\nMasquerade = false",
            "\nClampMss = true",
            "\nIpForward = false",
        ] {
            let peer = "[Peer]\nPublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
                        AllowedIPs = ::/0";
            let conf = parse(&format!("{line}\n{peer}")).unwrap();
            let error = conf.without_up().unwrap_err().to_string();
            let key = line.lines().last().unwrap().split(' ').next().unwrap();
            let expected = format!("wg0.conf:3: {key}: only `linerate up` uses this key");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn up_refuses_the_first_key_of_the_proxy() {
        assert!(parse("MTU = 1420").unwrap().without_proxy().is_ok());
        let conf = parse("MTU = 1420\nForward = tcp 127.0.0.1:1 -> 10.0.0.1:1").unwrap();
        let error = conf.without_proxy().unwrap_err().to_string();
        assert_eq!(error, "wg0.conf:3: Forward: only `linerate proxy` uses this key");
    }
}
