//! The fields of a head.

use super::FIELDS_MAX;

/// Fields for a single connection (RFC 9110, section 7.6.1). `Transfer-Encoding` is not among them:
/// bodies keep their coding.
const HOP_BY_HOP: [&str; 8] = [
    "Connection",
    "Proxy-Connection",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "Proxy-Authorization",
    "TE",
    "Upgrade",
];

/// Fields that set the end of the body and the recipient. They stay even if `Connection` names
/// them.
const FRAMING: [&str; 3] = ["Content-Length", "Transfer-Encoding", "Host"];

/// The proxy's name in `Via` (RFC 9110, section 7.6.3).
const PSEUDONYM: &str = "linerate";

/// All fields, in their order.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [httparse::Header<'a>]);

impl<'a> Fields<'a> {
    pub(super) fn new(fields: &'a [httparse::Header<'a>]) -> Self {
        Self(fields)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a httparse::Header<'a>> {
        self.0.iter()
    }

    /// The values of a field.
    pub(super) fn values(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    pub(super) fn has(self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// The words of all fields with this name. A word that is not UTF-8 becomes U+FFFD, which is an
    /// unknown word.
    pub(super) fn words(self, name: &str) -> impl Iterator<Item = &'a str> {
        let words = self.values(name).flat_map(|value| value.split(|byte| *byte == b','));
        words.map(|word| std::str::from_utf8(word).map_or("\u{fffd}", str::trim))
    }

    /// Whether `word` is one of the words of these fields, in any letter case.
    pub(super) fn lists(self, name: &str, word: &str) -> bool {
        self.words(name).any(|other| other.eq_ignore_ascii_case(word))
    }

    /// The fields that the proxy does not pass on. Returns `None` if `Connection` has more than
    /// [`FIELDS_MAX`] words.
    pub(super) fn hop_by_hop(self) -> Option<HopByHop<'a>> {
        let named: Vec<_> = self.words("Connection").take(FIELDS_MAX + 1).collect();
        (named.len() <= FIELDS_MAX).then_some(HopByHop { named })
    }
}

/// The fields of a head that end at the proxy.
pub(super) struct HopByHop<'a> {
    /// The words of `Connection`.
    named: Vec<&'a str>,
}

impl HopByHop<'_> {
    pub(super) fn contains(&self, name: &str) -> bool {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        HOP_BY_HOP.into_iter().any(is)
            || (!FRAMING.into_iter().any(is) && self.named.iter().copied().any(is))
    }
}

/// A head that is being written.
pub(super) struct Head(Vec<u8>);

impl Head {
    pub(super) fn new(first_line: String) -> Self {
        let mut head = Self(first_line.into_bytes());
        head.0.extend_from_slice(b"\r\n");
        head
    }

    pub(super) fn put(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Writes the `Via` field for a message of HTTP/1.`minor`.
    pub(super) fn put_via(&mut self, minor: u8) {
        self.put("Via", format!("1.{minor} {PSEUDONYM}").as_bytes());
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}
