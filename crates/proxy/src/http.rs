//! What an HTTP proxy does to a request (RFC 9110, RFC 9112), without I/O.
//!
//! ```text
//!  CONNECT a.example:443 HTTP/1.1         -> a tunnel
//!  GET http://a.example/page HTTP/1.1     -> GET /page HTTP/1.1, for one request:
//!                                            the origin is asked to close behind it
//! ```

use std::{io, ops::ControlFlow};

use super::users::Users;
use config::target::Target;

/// Bytes of a request's head at most; servers take 8 KiB and more.
const HEAD_MAX: usize = 64 * 1024;
/// Its fields at most.
const FIELDS_MAX: usize = 128;
const PORT: u16 = 80;

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// A tunnel.
    Connect(Target),
    /// One request, whose head is to be sent, and then so much of a body.
    Forward(Target, Vec<u8>, Body),
}

/// How long a request's body is (RFC 9112, section 6.3).
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes, maybe none.
    Bytes(u64),
    /// Until its last chunk.
    Chunks(Chunks),
}

/// Answers of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 400: it is no request.
    BadRequest,
    /// 407: the client has to authenticate.
    AuthenticationRequired,
    /// 403: nobody may go there.
    Forbidden,
    /// 408: the request did not come to its end.
    TimedOut,
    /// 431: its head is too long.
    TooLarge,
    /// 501: another scheme or coding.
    NotImplemented,
    /// 502: the origin cannot be reached.
    BadGateway,
    /// 504: the origin does not answer.
    GatewayTimeout,
}

/// The answer to a CONNECT that succeeded.
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Fields between a client and its proxy only (RFC 9110, section 7.6.1), and those
/// that `Connection` names.
const HOP_BY_HOP: [&str; 6] =
    ["Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authorization", "TE", "Upgrade"];

/// Reads a request's head. Gives it with its length, `None` while it is not whole.
///
/// # Errors
/// What to answer instead.
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
    if users.are_asked() && !is_admitted(request.headers, users) {
        return Err(Refusal::AuthenticationRequired);
    }
    let method = request.method.ok_or(Refusal::BadRequest)?;
    let place = request.path.ok_or(Refusal::BadRequest)?;
    if method == "CONNECT" {
        let target = Target::parse(place, None).ok_or(Refusal::BadRequest)?;
        return Ok(Some((Request::Connect(target), len)));
    }
    let (target, authority, path) = absolute(place)?;
    let body = Body::of(request.headers)?;
    let minor = request.version.unwrap_or(1);
    let head = head(method, path, minor, authority, request.headers);
    Ok(Some((Request::Forward(target, head, body), len)))
}

/// Splits `http://authority/path`.
fn absolute(place: &str) -> Result<(Target, &str, &str), Refusal> {
    let (scheme, rest) = place.split_once("://").ok_or(Refusal::BadRequest)?;
    // TLS is the client's own, behind a CONNECT.
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Refusal::NotImplemented);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target = Target::parse(authority, Some(PORT)).ok_or(Refusal::BadRequest)?;
    Ok((target, authority, path))
}

/// The head for the origin: the target's path alone, its own `Host`, and one request
/// a connection.
fn head(
    method: &str,
    path: &str,
    minor: u8,
    authority: &str,
    fields: &[httparse::Header<'_>],
) -> Vec<u8> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut head = format!("{method} {slash}{path} HTTP/1.{minor}\r\nHost: {authority}\r\n");
    head.push_str("Connection: close\r\n");
    let mut head = head.into_bytes();
    for field in fields.iter().filter(|field| !is_hop_by_hop(field.name, fields)) {
        head.extend_from_slice(field.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(field.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn is_hop_by_hop(name: &str, fields: &[httparse::Header<'_>]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    // What says where the body ends stays, whatever `Connection` names.
    let frames = is("Content-Length") || is("Transfer-Encoding");
    let named = || words(fields, "Connection").any(is);
    is("Host") || HOP_BY_HOP.into_iter().any(is) || (!frames && named())
}

/// The words of all fields of a name; what is no text is a word that is none.
fn words<'a>(fields: &'a [httparse::Header<'_>], name: &'a str) -> impl Iterator<Item = &'a str> {
    let fields = fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let words = fields.flat_map(|field| field.value.split(|byte| *byte == b','));
    words.map(|word| std::str::from_utf8(word).map_or("\u{fffd}", str::trim))
}

impl Body {
    fn of(fields: &[httparse::Header<'_>]) -> Result<Self, Refusal> {
        let has = |name| fields.iter().any(|field| field.name.eq_ignore_ascii_case(name));
        let mut lengths = words(fields, "Content-Length");
        if has("Transfer-Encoding") {
            // Both at once is how requests are smuggled (RFC 9112, section 6.1).
            let mut codings = words(fields, "Transfer-Encoding");
            let chunked = codings.next().is_some_and(|one| one.eq_ignore_ascii_case("chunked"));
            return match (chunked && codings.next().is_none(), has("Content-Length")) {
                (true, false) => Ok(Self::Chunks(Chunks::default())),
                (false, false) => Err(Refusal::NotImplemented),
                (_, true) => Err(Refusal::BadRequest),
            };
        }
        if !has("Content-Length") {
            return Ok(Self::Bytes(0));
        }
        let first = lengths.next().and_then(config::value::decimal).ok_or(Refusal::BadRequest)?;
        let all_same = lengths.all(|one| config::value::decimal(one) == Some(first));
        if all_same { Ok(Self::Bytes(first)) } else { Err(Refusal::BadRequest) }
    }

    /// How many of these bytes belong to the body, and whether it ends there.
    ///
    /// # Errors
    /// They are no chunks.
    pub fn handle_input(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok((taken, *left == 0))
            }
            Self::Chunks(chunks) => chunks.handle_input(bytes),
        }
    }
}

/// Where a chunked body ends (RFC 9112, section 7.1).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    state: ChunkState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// In a size, so far this one, of so many digits.
    Size(u64, u8),
    /// Behind the size, up to the end of the line.
    Extension(u64),
    /// In the data, with so many bytes to come.
    Data(u64),
    /// Between the data and the end of its line.
    DataEnd,
    /// In a line of the trailer; whether it has anything yet.
    Trailer(bool),
}

impl Default for ChunkState {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

impl Chunks {
    fn handle_input(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if let ChunkState::Data(left) = self.state {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                at += taken;
                let left = left - taken as u64;
                self.state = if left == 0 { ChunkState::DataEnd } else { ChunkState::Data(left) };
                continue;
            }
            at += 1;
            match self.step(byte)? {
                ControlFlow::Continue(state) => self.state = state,
                ControlFlow::Break(()) => return Ok((at, true)),
            }
        }
        Ok((at, false))
    }

    fn step(&self, byte: u8) -> io::Result<ControlFlow<(), ChunkState>> {
        use ChunkState::{Data, DataEnd, Extension, Size, Trailer};
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let behind = |size| if size == 0 { Trailer(false) } else { Data(size) };
        Ok(ControlFlow::Continue(match (self.state, byte) {
            (Size(size, digits), byte) if byte.is_ascii_hexdigit() && digits < 16 => {
                let digit = (byte as char).to_digit(16).ok_or_else(bad)?;
                Size(size << 4 | u64::from(digit), digits + 1)
            }
            (Size(size, 1..), b'\n') => behind(size),
            (Size(size, 1..), b'\r' | b';' | b' ' | b'\t') => Extension(size),
            (Extension(size), b'\n') => behind(size),
            (Extension(size), _) => Extension(size),
            (DataEnd, b'\r') => DataEnd,
            (DataEnd, b'\n') => Size(0, 0),
            (Trailer(false), b'\n') => return Ok(ControlFlow::Break(())),
            (Trailer(true), b'\n') => Trailer(false),
            (Trailer(has_any), byte) => Trailer(has_any || byte != b'\r'),
            _ => return Err(bad()),
        }))
    }
}

fn is_admitted(fields: &[httparse::Header<'_>], users: &Users) -> bool {
    let mut given =
        fields.iter().filter(|field| field.name.eq_ignore_ascii_case("Proxy-Authorization"));
    let Some(text) = given.next().and_then(|field| std::str::from_utf8(field.value).ok()) else {
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
    /// The answer to a failed dial.
    pub fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::GatewayTimeout,
            io::ErrorKind::PermissionDenied => Self::Forbidden,
            _ => Self::BadGateway,
        }
    }

    /// The whole answer, with `why` as its text.
    pub fn encode(self, why: &str) -> Vec<u8> {
        let (status, more) = match self {
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
        format!(
            "HTTP/1.1 {status}\r\n{more}Content-Type: text/plain\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{why}\n",
            why.len() + 1
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests;
