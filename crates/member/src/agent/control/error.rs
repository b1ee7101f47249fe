//! Errors of the connection to a coordinator. Each message tells the user what to do.

use std::{fmt, io, net::IpAddr, time::Duration};

use mesh::{http_proxy::ProxyError, permitted_addresses::NOT_ADMITTED};
use rustls::CertificateError;
use tailnet::{keys::MachinePublic, ts2021::noise_handshake::HandshakeError};

/// The reason for a failed or ended connection to the coordinator.
#[derive(Debug)]
pub enum ControlError {
    /// The host does not exist in DNS.
    NoSuchHost(String),
    /// The DNS look-up failed.
    Lookup(String, io::Error),
    /// The address of the host is not allowed for this coordinator.
    OutOfScope(String, IpAddr),
    /// The connection to this address failed.
    Connect(String, io::Error),
    /// The first named did not answer the request in time.
    NoAnswer(String, &'static str),
    /// The connection ended for this reason.
    ConnectionEnded(String),
    /// TLS with this host failed.
    Tls(String, rustls::Error),
    /// The issuer of the host's certificate is not in the files that these environment variables
    /// name.
    UnknownIssuer(String, String),
    /// The proxy cannot be used.
    UnusableProxy(ProxyError),
    /// The proxy refused with this answer.
    ProxyRefused(String, String),
    /// The first URL redirects to the second.
    Redirected(String, String),
    /// This URL is not one of a coordinator, as its answer shows.
    NotACoordinator(String, String),
    /// The server has another key than expected.
    KeyMismatch {
        /// The URL.
        url: String,
        /// The expected key.
        expected: MachinePublic,
        /// The key of the server.
        offered: MachinePublic,
    },
    /// The server at this URL does not support the protocol.
    CoordinatorTooOld(String),
    /// The coordinator does not support this version of the client. Its message.
    ClientTooOld(String),
    /// The handshake failed.
    Handshake(HandshakeError),
    /// The coordinator refused the handshake. Its message is not authenticated.
    HandshakeRefused(String),
    /// The coordinator answered a request with an error: the request, the status and the message.
    Status(&'static str, u16, String),
    /// The coordinator is busy and wants a retry after this time.
    Busy(Duration),
    /// The coordinator does not know the node.
    UnknownNode,
    /// The response to this request is malformed.
    BadResponse(&'static str, String),
    /// The stream was silent for this long.
    StreamTimedOut(Duration),
}

impl ControlError {
    /// Returns `self`, unless only `other` is a key mismatch. Otherwise the failure of a connection
    /// would hide an attacker at one of the addresses.
    pub(super) fn or(self, other: Option<Self>) -> Self {
        let is_key_mismatch = |error: &Self| matches!(error, Self::KeyMismatch { .. });
        other.filter(|other| is_key_mismatch(other) && !is_key_mismatch(&self)).unwrap_or(self)
    }

    /// An ended connection with this error.
    pub(super) fn connection_ended(error: impl std::error::Error + 'static) -> Self {
        Self::ConnectionEnded(root_cause(&error))
    }

    /// The error of a TLS connection to this host. `roots` are the environment variables that name
    /// certificate files, if there are any.
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
                write!(f, "{host} is at {address}: {NOT_ADMITTED}")
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
                write!(f, "{url} is too old: it does not support the ts2021 protocol")
            }
            Self::ClientTooOld(text) => {
                write!(f, "the coordinator requires a newer version of this program: {text}")
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
                write!(f, "the coordinator is busy and requests a delay of {} s", wait.as_secs())
            }
            Self::UnknownNode => f.write_str("the coordinator does not know this node"),
            Self::BadResponse(what, why) => {
                write!(f, "the coordinator's answer to the {what} request is unreadable: {why}")
            }
            Self::StreamTimedOut(time) => {
                write!(f, "the coordinator sent nothing for {} s", time.as_secs())
            }
        }
    }
}

impl std::error::Error for ControlError {}

fn write_tls(f: &mut fmt::Formatter<'_>, host: &str, error: &rustls::Error) -> fmt::Result {
    let rustls::Error::InvalidCertificate(certificate) = error else {
        return match error {
            rustls::Error::InvalidMessage(_) => {
                write!(f, "{host}: the server does not use TLS; is it an http:// URL?")
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
        // The signature of a CA that was created again under its old name does not match.
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

/// The message of the innermost error.
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

/// The message without the error number.
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

impl From<ProxyError> for ControlError {
    fn from(error: ProxyError) -> Self {
        Self::UnusableProxy(error)
    }
}

/// Text from the network as one line of limited length without control characters.
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
