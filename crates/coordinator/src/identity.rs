//! The identities of users at a provider.

use serde::{Deserialize, Serialize};

/// The identity of a user at a provider: only issuer and subject are unique and stable (OpenID Connect
/// Core 5.7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The provider.
    pub issuer: String,
    /// The provider's ID of the user, which it never reuses.
    pub subject: String,
}

impl Identity {
    /// An identity of headscale: issuer and subject are one text. The next login of the user separates them.
    pub fn of_headscale(text: &str) -> Self {
        Self { issuer: String::new(), subject: text.to_owned() }
    }

    /// Whether this is the identity that a provider asserts. A trailing slash of the issuer is ignored.
    pub fn matches(&self, asserted: &Self) -> bool {
        if self.issuer.is_empty() {
            return unescaped(&self.subject) == unescaped(&asserted.joined());
        }
        is_same_issuer(&self.issuer, &asserted.issuer) && self.subject == asserted.subject
    }

    /// Issuer and subject as one text.
    pub fn joined(&self) -> String {
        match self.issuer.trim_end_matches('/') {
            "" => self.subject.clone(),
            issuer => format!("{issuer}/{}", self.subject.trim_start_matches('/')),
        }
    }
}

/// Whether two texts name the same provider. A trailing slash is ignored.
pub fn is_same_issuer(one: &str, other: &str) -> bool {
    let without_slash = |text| str::strip_suffix(text, '/').unwrap_or(text);
    without_slash(one) == without_slash(other)
}

/// Normalizes an identity: two texts that are one identity for headscale become equal. headscale stores an identity as
/// a URL. It escapes characters of the path, and drops empty segments and white space around segments
/// (`hscontrol/types/users.go`, `CleanIdentifier`). A text with an invalid escape is not a URL there.
fn unescaped(text: &str) -> String {
    let text = text.trim();
    let url = text.split_once("://").and_then(|(scheme, rest)| {
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        let (host, path) = cut(rest, '/');
        let fragment = decoded(fragment)?;
        // Characters that end a path stay escaped.
        let path = decoded(path)?.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        let path = segments(&path);
        Some(format!("{}://{host}/{path}{query}{fragment}", scheme.to_ascii_lowercase()))
    });
    url.unwrap_or_else(|| segments(text))
}

/// Splits a text before the first occurrence of a character.
fn cut(text: &str, at: char) -> (&str, &str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

fn segments(path: &str) -> String {
    let segments: Vec<&str> =
        path.split('/').map(str::trim).filter(|segment| !segment.is_empty()).collect();
    segments.join("/")
}

/// Decodes all `%` escapes. `None` if an escape is invalid, or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal)?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_of_headscale_matches_its_subject_with_any_characters() {
        for (stored, subject) in [
            ("https://id.test/auth0%7C64aabb", "auth0|64aabb"),
            ("https://id.test/auth0|64aabb", "auth0|64aabb"),
            ("https://id.test/two%20words", "two words"),
            ("https://id.test/%C3%A4nna", "änna"),
            ("https://id.test/a/b", "/a//b/"),
            ("https://id.test/a%5Bb", "a[b"),
            ("https://id.test/a?b=c", "a?b=c"),
            ("https://id.test/a%3Fb", "a%3Fb"),
            ("https:/id.test/50%", "50%"),
            ("HTTPS://id.test//1", "1"),
        ] {
            let issuers = ["https://id.test", "https://id.test/"];
            for issuer in issuers.map(str::to_owned) {
                let asserted = Identity { issuer, subject: subject.into() };
                let stored = Identity::of_headscale(stored);
                assert!(stored.matches(&asserted), "{stored:?} {asserted:?}");
            }
        }
    }

    #[test]
    fn another_subject_or_provider_does_not_match() {
        let asserted = |issuer: &str, subject: &str| Identity {
            issuer: issuer.into(),
            subject: subject.into(),
        };
        let anna = asserted("https://id.test", "auth0|1");
        for other in [
            asserted("https://id.test", "auth0|2"),
            asserted("https://id.test", "auth0%257C1"),
            asserted("https://id.test", "auth0|1?"),
            asserted("https://id.test", "AUTH0|1"),
            asserted("https://other.test", "auth0|1"),
            asserted("https://id.test.evil.test", "auth0|1"),
            asserted("http://id.test", "auth0|1"),
        ] {
            assert!(
                !Identity::of_headscale("https://id.test/auth0%7C1").matches(&other),
                "{other:?}"
            );
            assert!(!anna.matches(&other), "{other:?}");
        }
        assert!(!anna.matches(&asserted("https://id.test", "auth0%7C1")));
        assert!(anna.matches(&asserted("https://id.test/", "auth0|1")));
        let query = Identity::of_headscale("https://id.test/a?b");
        assert!(!query.matches(&asserted("https://id.test", "a%3Fb")));
    }
}
