//! A full name in canonical form.

use std::{borrow::Borrow, fmt, sync::Arc};

use hickory_proto::{ProtoError, rr::Name};

/// The longest name on the wire, with its final zero byte (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;

/// The labels in lower case, each after its length, as on the wire, but without the final zero
/// byte. The root is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Fqdn(Arc<[u8]>);

impl Fqdn {
    /// Reads a name with or without the final dot; `None` if it is not valid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if matches!(text, "" | ".") {
            return Some(Self::default());
        }
        // Some maps have suffixes with a leading dot.
        let text = text.strip_prefix('.').unwrap_or(text);
        let text = text.strip_suffix('.').unwrap_or(text);
        Self::from_labels(text.split('.').map(str::as_bytes))
    }

    pub(super) fn from_name(name: &Name) -> Option<Self> {
        Self::from_labels(name.iter())
    }

    fn from_labels<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut wire = Vec::new();
        for label in labels {
            if label.is_empty() || label.len() > MAX_LABEL {
                return None;
            }
            wire.push(u8::try_from(label.len()).ok()?);
            wire.extend(label.iter().map(u8::to_ascii_lowercase));
            if wire.len() >= MAX_NAME {
                return None;
            }
        }
        Some(Self(wire.into()))
    }

    /// Returns this name below another.
    pub(super) fn below(&self, parent: &Self) -> Option<Self> {
        let wire = [&*self.0, &*parent.0].concat();
        (wire.len() < MAX_NAME).then(|| Self(wire.into()))
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (label, tail) = split(rest)?;
            rest = tail;
            Some(label)
        })
    }

    /// Returns the name itself, then each parent up to the root.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::successors(Some(&*self.0), |name| split(name).map(|(_, parent)| parent))
    }

    /// Returns whether the name is equal to `zone` or below it.
    pub(super) fn within(&self, zone: &Self) -> bool {
        self.ancestors().any(|name| *name == *zone.0)
    }

    /// Returns the parent, if this is not the root.
    pub(super) fn parent(&self) -> Option<Self> {
        split(&self.0).map(|(_, parent)| Self(parent.into()))
    }

    pub(super) fn to_name(&self) -> Result<Name, ProtoError> {
        let mut name = Name::from_labels(self.labels())?;
        name.set_fqdn(true);
        Ok(name)
    }
}

impl Borrow<[u8]> for Fqdn {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = name.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

impl fmt::Debug for Fqdn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.labels() {
            write!(f, "{}.", label.escape_ascii())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_equal_regardless_of_case_and_final_dot() {
        let name = Fqdn::parse("Node.Example.COM").unwrap();
        assert_eq!(Fqdn::parse("node.example.com."), Some(name.clone()));
        assert_eq!(format!("{name:?}"), "node.example.com.");
        assert_eq!(Fqdn::from_name(&name.to_name().unwrap()), Some(name));
    }

    #[test]
    fn name_is_within_a_zone_by_whole_labels() {
        let name = Fqdn::parse("a.example.com").unwrap();
        for zone in ["a.example.com", "example.com", "com", "."] {
            assert!(name.within(&Fqdn::parse(zone).unwrap()), "{zone}");
        }
        for zone in ["ample.com", "b.a.example.com", "org"] {
            assert!(!name.within(&Fqdn::parse(zone).unwrap()), "{zone}");
        }
    }

    #[test]
    fn too_long_names_and_empty_labels_are_refused() {
        let long = format!("{}.com", "a".repeat(64));
        let many = "abc.".repeat(64);
        for text in ["a..b", "..", &long, &many] {
            assert_eq!(Fqdn::parse(text), None, "{text}");
        }
        let longest = format!("{}a", "abc.".repeat(63));
        let name = Fqdn::parse(&longest).unwrap();
        assert_eq!(Fqdn::parse("b").unwrap().below(&name), None);
    }
}
