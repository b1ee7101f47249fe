//! The changes that an HTTP proxy makes to requests and answers (RFC 9110, RFC 9112), without I/O.
//!
//! ```text
//!  CONNECT a.example:443 HTTP/1.1         -> a tunnel
//!  GET http://a.example/page HTTP/1.1     -> GET /page HTTP/1.1, and an answer with an end; then
//!                                            the client sends its next request, to any origin
//! ```

mod answer;
mod body;
mod fields;

use std::io;

use super::users::Users;
use config::target::Target;
use fields::{Fields, Head, HopByHop};

pub use answer::{Answer, Follows};
pub use body::{Body, Chunks};

/// The maximum length of a head, in bytes. Servers accept 8 KiB and more.
pub(crate) const HEAD_MAX: usize = 64 * 1024;
/// The maximum number of its fields.
const FIELDS_MAX: usize = 128;
const PORT: u16 = 80;

/// The request of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// A tunnel.
    Connect(Target),
    /// One answer of an origin.
    Forward(Forward),
}

/// A request for an origin.
#[derive(Debug, PartialEq, Eq)]
pub struct Forward {
    pub target: Target,
    /// The head for the origin. The body follows it.
    pub head: Vec<u8>,
    pub body: Body,
    pub info: RequestInfo,
}

/// The properties of a request that its answer depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The client uses HTTP/1.`minor`.
    pub minor: u8,
    /// A HEAD request: its answer consists of a head only (RFC 9110, section 9.3.2).
    pub is_head: bool,
    /// It may be sent twice (RFC 9110, section 9.2.2).
    pub is_idempotent: bool,
    /// It requests a switch to another protocol.
    pub upgrades: bool,
    /// The client sends no other request on its connection.
    pub closes: bool,
}

/// Answers of the proxy itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 200: the request was for the proxy itself (RFC 9110, section 7.6.2).
    LastHop,
    /// 400: the request is invalid.
    BadRequest,
    /// 407: the client must authenticate.
    AuthenticationRequired,
    /// 403: the target is not allowed.
    Forbidden,
    /// 408: the request was not complete in time.
    TimedOut,
    /// 431: the head is too long.
    TooLarge,
    /// 501: unsupported scheme or coding.
    NotImplemented,
    /// 502: the origin cannot be reached.
    BadGateway,
    /// 504: the origin does not answer.
    GatewayTimeout,
}

/// The answer to a CONNECT that succeeded.
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Reads the head of a request. Returns the request and the length of its head, or `None` while the
/// head is incomplete.
///
/// # Errors
/// The answer to send instead.
pub fn parse(text: &[u8], users: &Users) -> Result<Option<(Request, usize)>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let len = match request.parse(text) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if text.len() < HEAD_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::TooLarge);
        }
        Err(_) => return Err(Refusal::BadRequest),
    };
    let fields = Fields::new(request.headers);
    if users.are_required() && !is_admitted(fields, users) {
        return Err(Refusal::AuthenticationRequired);
    }
    let method = request.method.ok_or(Refusal::BadRequest)?;
    let request_target = request.path.ok_or(Refusal::BadRequest)?;
    if method == "CONNECT" {
        let target = Target::parse(request_target, None).ok_or(Refusal::BadRequest)?;
        return Ok(Some((Request::Connect(target), len)));
    }
    // RFC 9112, section 3.2.
    if fields.values("Host").count() > 1 {
        return Err(Refusal::BadRequest);
    }
    let (target, authority, path) = absolute(method, request_target)?;
    let minor = request.version.unwrap_or(1);
    let body = Body::of_request(fields, minor)?;
    let upgrades = minor > 0 && fields.lists("Connection", "upgrade") && fields.has("Upgrade");
    let closes = ["Connection", "Proxy-Connection"].iter().any(|name| fields.lists(name, "close"));
    let info = RequestInfo {
        minor,
        is_head: method == "HEAD",
        is_idempotent: IDEMPOTENT.contains(&method),
        upgrades,
        // HTTP/1.0 clients may not support persistent connections (RFC 9112, section 9.3).
        closes: closes || minor == 0,
    };
    let hops = hops_left(method, fields)?;
    let mut head = Head::new(format!("{method} {path} HTTP/1.1"));
    head.put("Host", authority.as_bytes());
    let hop_by_hop = fields.hop_by_hop().ok_or(Refusal::BadRequest)?;
    put_fields(&mut head, (fields, &hop_by_hop), &info, hops);
    if let Body::Bytes(len) = body
        && fields.has("Content-Length")
    {
        head.put("Content-Length", len.to_string().as_bytes());
    }
    head.put_via(minor);
    let forward = Forward { target, head: head.finish(), body, info };
    Ok(Some((Request::Forward(forward), len)))
}

/// Idempotent methods: their requests may be sent again (RFC 9110, section 9.2.2).
const IDEMPOTENT: [&str; 6] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];

/// Splits `http://authority/path`. The returned path starts with a slash, except that an empty path
/// of OPTIONS becomes `*` (RFC 9112, section 3.2.4).
fn absolute<'a>(
    method: &str,
    request_target: &'a str,
) -> Result<(Target, &'a str, String), Refusal> {
    let (scheme, rest) = request_target.split_once("://").ok_or(Refusal::BadRequest)?;
    // Clients use CONNECT for TLS. A WebSocket begins as an HTTP request (RFC 6455, section 4.1).
    if !["http", "ws"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(Refusal::NotImplemented);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target = Target::parse(authority, Some(PORT)).ok_or(Refusal::BadRequest)?;
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    Ok((target, authority, path))
}

/// The number of proxies that a request may still pass after this one (RFC 9110, section 7.6.2).
fn hops_left(method: &str, fields: Fields<'_>) -> Result<Option<u64>, Refusal> {
    let counts = matches!(method, "OPTIONS" | "TRACE");
    let hops = fields.words("Max-Forwards").next().filter(|_| counts);
    match hops.and_then(config::value::decimal::<u64>) {
        Some(0) if method == "OPTIONS" => Err(Refusal::LastHop),
        Some(0) => Err(Refusal::NotImplemented),
        hops => Ok(hops.map(|hops| hops - 1)),
    }
}

/// Writes the client's fields for the origin. Omits the fields for this proxy, and those that the
/// proxy writes itself.
fn put_fields(
    head: &mut Head,
    (fields, hop_by_hop): (Fields<'_>, &HopByHop<'_>),
    info: &RequestInfo,
    hops: Option<u64>,
) {
    for field in fields.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("Max-Forwards")
            && let Some(hops) = hops
        {
            head.put(field.name, hops.to_string().as_bytes());
            continue;
        }
        let is_forwarded = if is("Upgrade") {
            info.upgrades
        } else if is("Expect") {
            // An expectation in an HTTP/1.0 request is ignored (RFC 9110, section 10.1.1).
            info.minor > 0
        } else {
            !is("Host") && !is("Content-Length") && !hop_by_hop.contains(field.name)
        };
        if is_forwarded {
            head.put(field.name, field.value);
        }
    }
    match (info.upgrades, info.closes) {
        (true, _) => head.put("Connection", b"Upgrade"),
        (false, true) => head.put("Connection", b"close"),
        (false, false) => {}
    }
}

fn is_admitted(fields: Fields<'_>, users: &Users) -> bool {
    let mut given = fields.values("Proxy-Authorization");
    let Some(text) = given.next().and_then(|value| std::str::from_utf8(value).ok()) else {
        return false;
    };
    let Some((scheme, credentials)) = text.trim().split_once(' ') else { return false };
    let decoded = base64(credentials.trim()).filter(|_| scheme.eq_ignore_ascii_case("Basic"));
    let Some(decoded) = decoded else { return false };
    let Some(colon) = decoded.iter().position(|&byte| byte == b':') else { return false };
    users.admit(&decoded[..colon], &decoded[colon + 1..])
}

/// Standard base64 (RFC 4648, section 4), with or without its padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count) = (0_u32, 0);
    let mut bytes = Vec::new();
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

impl Refusal {
    /// The answer after a failed dial, or after a failed answer of the origin.
    pub fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::GatewayTimeout,
            io::ErrorKind::PermissionDenied => Self::Forbidden,
            _ => Self::BadGateway,
        }
    }

    /// The whole answer, with `why` as its text. It announces that the connection closes.
    pub fn encode(self, why: &str) -> Vec<u8> {
        self.encode_for(why, &RequestInfo { closes: true, ..RequestInfo::default() })
    }

    /// The whole answer to a request.
    pub fn encode_for(self, why: &str, info: &RequestInfo) -> Vec<u8> {
        let (status, more) = match self {
            Self::LastHop => ("200 OK", ""),
            Self::BadRequest => ("400 Bad Request", ""),
            Self::AuthenticationRequired => (
                "407 Proxy Authentication Required",
                "Proxy-Authenticate: Basic realm=\"linerate\"\r\n",
            ),
            Self::Forbidden => ("403 Forbidden", ""),
            Self::TimedOut => ("408 Request Timeout", ""),
            Self::TooLarge => ("431 Request Header Fields Too Large", ""),
            Self::NotImplemented => ("501 Not Implemented", ""),
            Self::BadGateway => ("502 Bad Gateway", ""),
            Self::GatewayTimeout => ("504 Gateway Timeout", ""),
        };
        let close = if info.closes { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\n{more}Content-Type: text/plain\r\nContent-Length: {}\r\n\
             {close}\r\n",
            why.len() + 1
        );
        let body = if info.is_head { String::new() } else { format!("{why}\n") };
        [head, body].concat().into_bytes()
    }
}

#[cfg(test)]
mod tests;
