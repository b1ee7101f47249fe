//! What keeps a member from its coordinator, each in a line that says what to do.

use std::{fmt, io, net::IpAddr, time::Duration};

use rustls::CertificateError;
use tailnet::{
    control::{noise::HandshakeError, proxy::UnusableProxy},
    keys::MachinePublic,
    scope::OF_THIS_MACHINE,
};

/// Why the coordinator is not reached, or no more.
#[derive(Debug)]
pub enum ControlError {
    /// The name servers know no such host.
    NoSuchHost(String),
    /// The name servers could not be asked.
    Lookup(String, io::Error),
    /// The host is at an address that a coordinator may not name.
    OutOfScope(String, IpAddr),
    /// No connection; to whom.
    Connect(String, io::Error),
    /// No answer in time; of whom, and to what.
    NoAnswer(String, &'static str),
    /// The connection ended.
    ConnectionEnded(String),
    /// TLS; of whom.
    Tls(String, rustls::Error),
    /// The certificate of this host is of no authority in the files that these variables name.
    UnknownIssuer(String, String),
    /// A proxy that cannot be used.
    UnusableProxy(UnusableProxy),
    /// A proxy said no; which, and its words.
    ProxyRefused(String, String),
    /// The URL leads to another one.
    Redirected(String, String),
    /// What answers at the URL is no coordinator; which URL, and what it said.
    NotACoordinator(String, String),
    /// It has another key than the coordinator.
    KeyMismatch {
        /// Where.
        url: String,
        /// The coordinator's key.
        expected: MachinePublic,
        /// The key that was offered.
        offered: MachinePublic,
    },
    /// It has no key of this protocol.
    CoordinatorTooOld(String),
    /// It no longer speaks with this version; its words.
    ClientTooOld(String),
    /// The handshake failed.
    Handshake(HandshakeError),
    /// The coordinator refused the handshake; its words, which nothing vouches for.
    HandshakeRefused(String),
    /// A request was answered with an error: the request, the status and the coordinator's words.
    Status(&'static str, u16, String),
    /// The coordinator wants to be asked later.
    Busy(Duration),
    /// The coordinator knows no such node.
    UnknownNode,
    /// What it said has no such form.
    BadResponse(&'static str, String),
    /// Nothing came for too long.
    StreamTimedOut(Duration),
}

impl ControlError {
    /// This one, unless only the other is [`Self::OtherKey`]. An attacker at one of the addresses
    /// would otherwise be reported as a failed connection.
    pub(super) fn or(self, other: Option<Self>) -> Self {
        let is_key_mismatch = |error: &Self| matches!(error, Self::KeyMismatch { .. });
        other.filter(|other| is_key_mismatch(other) && !is_key_mismatch(&self)).unwrap_or(self)
    }

    /// The connection ended with this error.
    pub(super) fn connection_ended(error: impl std::error::Error + 'static) -> Self {
        Self::ConnectionEnded(root_cause(&error))
    }

    /// The error of a connection that was made, to this host. `roots` are the variables that name files of
    /// authorities, if any do.
    pub(super) fn of_tls(host: &str, error: io::Error, roots: Option<String>) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (inner, roots) {
            // The signature of a CA that was created again under its old name does not match.
            (
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )),
                Some(roots),
            ) => Self::UnknownIssuer(host.to_owned(), roots),
            (Some(tls), _) => Self::Tls(host.to_owned(), tls.clone()),
            (None, _) => Self::Connect(host.to_owned(), error),
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchHost(host) => write!(f, "{host}: no such host; check the URL"),
            Self::Lookup(host, error) => {
                write!(f, "{host}: the name cannot be resolved: {}", os_message(error))
            }
            Self::OutOfScope(host, address) => {
                write!(f, "{host} is at {address}: {OF_THIS_MACHINE}")
            }
            Self::Connect(to, error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                write!(f, "{to}: connection refused: nothing listens there")
            }
            Self::Connect(to, error) => write!(f, "{to}: {}", os_message(error)),
            Self::NoAnswer(host, what) => write!(f, "{host}: no answer in time: {what}"),
            Self::ConnectionEnded(why) => {
                write!(f, "the connection to the coordinator ended: {why}")
            }
            Self::Tls(host, error) => write_tls(f, host, error),
            Self::UnknownIssuer(host, roots) => write!(
                f,
                "{host}: its certificate is signed by a CA that is not among those of {roots}"
            ),
            Self::UnusableProxy(error) => error.fmt(f),
            Self::ProxyRefused(proxy, text) => write!(f, "the proxy {proxy} refuses: {text}"),
            Self::Redirected(from, to) => {
                write!(f, "{from} redirects to {to}: use the URL of the coordinator itself")
            }
            Self::NotACoordinator(url, text) => {
                write!(f, "{url} is not a coordinator's URL: {text}")
            }
            Self::KeyMismatch { url, expected, offered } => write!(
                f,
                "{url} has the key {offered}, and the coordinator's key is {expected}: it may be an \
                 impostor. If the coordinator's administrator confirms the new key, accept it by `linerate \
                 set IFACE --server-key {offered}`"
            ),
            Self::CoordinatorTooOld(url) => {
                write!(f, "{url} is too old: it has no key for the ts2021 protocol")
            }
            Self::ClientTooOld(text) => {
                write!(f, "the coordinator wants a newer version of this program: {text}")
            }
            Self::Handshake(error) => error.fmt(f),
            Self::HandshakeRefused(text) => {
                write!(f, "the coordinator refused the handshake: {text}")
            }
            Self::Status(what, status, text) if text.is_empty() => {
                write!(f, "the coordinator answered the {what} request with HTTP status {status}")
            }
            Self::Status(what, _, text) => {
                write!(f, "the coordinator refused the {what} request: {text}")
            }
            Self::Busy(wait) => {
                write!(f, "the coordinator is busy and asks to wait for {} s", wait.as_secs())
            }
            Self::UnknownNode => f.write_str("the coordinator does not know this node"),
            Self::BadResponse(what, why) => {
                write!(f, "the coordinator's answer to the {what} request is unreadable: {why}")
            }
            Self::StreamTimedOut(time) => {
                write!(f, "nothing came from the coordinator for {} s", time.as_secs())
            }
        }
    }
}

impl std::error::Error for ControlError {}

fn write_tls(f: &mut fmt::Formatter<'_>, host: &str, error: &rustls::Error) -> fmt::Result {
    let rustls::Error::InvalidCertificate(certificate) = error else {
        return match error {
            rustls::Error::InvalidMessage(_) => {
                write!(f, "{host}: what answers does not speak TLS; is it an http:// URL?")
            }
            error => write!(f, "{host}: TLS failed: {error}"),
        };
    };
    let days = |from: u64, to: u64| {
        let hours = to.saturating_sub(from).div_ceil(3600);
        if hours < 48 { format!("{hours} h") } else { format!("{} days", hours / 24) }
    };
    match certificate {
        CertificateError::ExpiredContext { time, not_after } => write!(
            f,
            "{host}: its certificate expired {} ago, by the clock of this machine; check the clock",
            days(not_after.as_secs(), time.as_secs())
        ),
        CertificateError::NotValidYetContext { time, not_before } => write!(
            f,
            "{host}: its certificate is valid only in {}, by the clock of this machine; check the \
             clock",
            days(time.as_secs(), not_before.as_secs())
        ),
        // A CA that was made anew under its old name signs badly.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => write!(
            f,
            "{host}: its certificate is signed by a CA that this machine does not trust; name the \
             CA's file in SSL_CERT_FILE or install it"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            write!(f, "{host}: its certificate is for another name")
        }
        certificate => write!(f, "{host}: its certificate is refused: {certificate}"),
    }
}

/// The words of what is at the bottom of an error.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => "it was closed".into(),
        Some(error) => os_message(error),
        None => cause.to_string(),
    }
}

/// The error without its number.
fn os_message(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => {
            let text = error.to_string();
            let end = text.find(" (os error").unwrap_or(text.len());
            text[..end].to_lowercase()
        }
        None => {
            let text = error.to_string();
            text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).into()
        }
    }
}

impl From<HandshakeError> for ControlError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<UnusableProxy> for ControlError {
    fn from(error: UnusableProxy) -> Self {
        Self::UnusableProxy(error)
    }
}

/// What of the network is shown to people, in one line and not too long.
pub(super) fn printable(text: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(text);
    let mut line: String = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|letter| !letter.is_control())
        .take(LONGEST)
        .collect();
    if line.is_empty() {
        line.push_str("nothing");
    }
    line
}
