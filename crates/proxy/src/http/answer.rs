//! The changes that an HTTP proxy makes to an answer.

use super::{
    FIELDS_MAX, HEAD_MAX, Refusal, RequestInfo,
    body::{Body, Chunks, Conflict, content_length},
    fields::{Fields, Head, HopByHop},
};

const SWITCHING_PROTOCOLS: u16 = 101;
const NO_CONTENT: u16 = 204;
const NOT_MODIFIED: u16 = 304;
const UPGRADE_REQUIRED: u16 = 426;

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The head for the client; may be empty.
    pub head: Vec<u8>,
    /// The part that follows the head.
    pub follows: Follows,
    /// Whether the client may send its next request on the same connection.
    pub client_stays: bool,
    /// Whether the origin takes the next request on the same connection.
    pub origin_stays: bool,
}

/// The part that follows a head.
#[derive(Debug, PartialEq, Eq)]
pub enum Follows {
    /// Another head: this one was interim (RFC 9110, section 15.2).
    Head,
    /// Another protocol (RFC 9110, section 7.8).
    Upgrade,
    /// A body with a known end.
    Body(Body),
    /// Chunks. The client receives their contents without the coding.
    Contents(Chunks),
    /// A body that ends with the connection.
    UntilClose,
}

impl Answer {
    /// Reads the head of an answer to a request. Returns the answer and the length of its head, or
    /// `None` while the head is incomplete. `whole` is true if the entire body of the request was
    /// sent to the origin.
    ///
    /// # Errors
    /// The text is not an answer, or its lengths contradict each other. The error is the answer
    /// for the client.
    pub fn parse(
        text: &[u8],
        info: &RequestInfo,
        whole: bool,
    ) -> Result<Option<(Self, usize)>, Refusal> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut answer = httparse::Response::new(&mut fields);
        let mut config = httparse::ParserConfig::default();
        // The proxy removes these spaces (RFC 9112, section 5.1).
        config.allow_spaces_after_header_name_in_responses(true);
        let len = match config.parse_response(&mut answer, text) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_MAX => len,
            Ok(httparse::Status::Partial) if text.len() < HEAD_MAX => return Ok(None),
            _ => return Err(Refusal::BadGateway),
        };
        let code = answer.code.filter(|code| *code >= 100).ok_or(Refusal::BadGateway)?;
        let fields = Fields::new(answer.headers);
        let minor = answer.version.unwrap_or(0);
        // A coding overrides a length (RFC 9112, section 6.3). Interim answers and 204 lack both.
        let has_length = code >= 200 && code != NO_CONTENT && !fields.has("Transfer-Encoding");
        let length = if has_length {
            content_length(fields).map_err(|Conflict| Refusal::BadGateway)?
        } else {
            None
        };
        let hop_by_hop = fields.hop_by_hop().ok_or(Refusal::BadGateway)?;
        let reader = Reader { info, code, minor, fields, hop_by_hop, length };
        Ok(Some((reader.answer(answer.reason.unwrap_or(""), whole)?, len)))
    }
}

struct Reader<'a> {
    info: &'a RequestInfo,
    code: u16,
    minor: u8,
    fields: Fields<'a>,
    hop_by_hop: HopByHop<'a>,
    length: Option<u64>,
}

impl Reader<'_> {
    fn answer(&self, reason: &str, whole: bool) -> Result<Answer, Refusal> {
        if self.code < 200 {
            return self.interim(reason, whole);
        }
        let follows = self.follows()?;
        let is_framed = follows != Follows::UntilClose;
        let client_stays = is_framed && whole && !self.info.closes;
        // A connection closes after a message with both (RFC 9112, section 6.1).
        let both = ["Content-Length", "Transfer-Encoding"];
        let has_closed = self.minor == 0
            || self.fields.lists("Connection", "close")
            || both.iter().all(|name| self.fields.has(name));
        let mut connection = Vec::new();
        if self.code == UPGRADE_REQUIRED && self.fields.has("Upgrade") {
            connection.push("Upgrade");
        }
        if !client_stays {
            connection.push("close");
        }
        Ok(Answer {
            head: self.head(reason, &connection, &follows),
            follows,
            client_stays,
            origin_stays: is_framed && whole && !has_closed,
        })
    }

    fn interim(&self, reason: &str, whole: bool) -> Result<Answer, Refusal> {
        let is_switched = self.code == SWITCHING_PROTOCOLS;
        // The new protocol begins after the entire request (RFC 9110, section 7.8).
        if is_switched && !(self.info.upgrades && whole) {
            return Err(Refusal::BadGateway);
        }
        let follows = if is_switched { Follows::Upgrade } else { Follows::Head };
        let connection: &[_] = if is_switched { &["Upgrade"] } else { &[] };
        // HTTP/1.0 does not define interim answers (RFC 9110, section 15.2).
        let head =
            if self.info.minor == 0 { Vec::new() } else { self.head(reason, connection, &follows) };
        Ok(Answer { head, follows, client_stays: true, origin_stays: true })
    }

    /// RFC 9112, section 6.3.
    fn follows(&self) -> Result<Follows, Refusal> {
        if self.has_no_body() {
            return Ok(Follows::Body(Body::Bytes(0)));
        }
        if self.fields.has("Transfer-Encoding") {
            let codings: Vec<_> = self.fields.words("Transfer-Encoding").collect();
            let is_chunked = |coding: &&str| coding.eq_ignore_ascii_case("chunked");
            let chunked = codings.iter().filter(|coding| is_chunked(coding)).count();
            let ends_with_chunked = codings.last().is_some_and(is_chunked);
            return match (chunked, ends_with_chunked, self.info.minor) {
                (1, true, 1..) => Ok(Follows::Body(Body::Chunks(Chunks::default()))),
                // HTTP/1.0 does not define codings.
                (1, true, 0) if codings.len() == 1 => Ok(Follows::Contents(Chunks::default())),
                (0, _, 1..) => Ok(Follows::UntilClose),
                _ => Err(Refusal::BadGateway),
            };
        }
        Ok(self.length.map_or(Follows::UntilClose, |len| Follows::Body(Body::Bytes(len))))
    }

    fn has_no_body(&self) -> bool {
        self.info.is_head || matches!(self.code, ..200 | NO_CONTENT | NOT_MODIFIED)
    }

    /// The head for the client, with one length at most and without the fields for this proxy.
    fn head(&self, reason: &str, connection: &[&str], follows: &Follows) -> Vec<u8> {
        let mut head = Head::new(format!("HTTP/1.1 {} {reason}", self.code));
        for field in self.fields.iter() {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            let is_forwarded = if is("Content-Length") {
                false
            } else if is("Transfer-Encoding") {
                self.code >= 200 && self.code != NO_CONTENT && !is_decoded(follows)
            } else if is("Upgrade") {
                connection.contains(&"Upgrade")
            } else {
                !self.hop_by_hop.contains(field.name)
            };
            if is_forwarded {
                head.put(field.name, field.value);
            }
        }
        if let Some(len) = self.length {
            head.put("Content-Length", len.to_string().as_bytes());
        }
        head.put_via(self.minor);
        if !connection.is_empty() {
            head.put("Connection", connection.join(", ").as_bytes());
        }
        head.finish()
    }
}

fn is_decoded(follows: &Follows) -> bool {
    matches!(follows, Follows::Contents(_))
}
