//! Names of nodes: unique DNS labels.

/// The maximum length of a label (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;
/// The name of a machine if its host name is without valid characters.
const DEFAULT_NAME: &str = "node";

/// Suffixes that some systems add to a host name, in the order in which they are removed.
const ENDINGS: [&str; 3] = [".local", ".localdomain", ".lan"];

/// Converts a host name to a label, as Tailscale does (`util/dnsname`, `SanitizeHostname`), or to [`DEFAULT_NAME`].
/// Machines find each other by these names, so an imported network must keep them.
pub(crate) fn label(hostname: &str) -> String {
    let name = ENDINGS.iter().fold(hostname, |name, end| name.strip_suffix(end).unwrap_or(name));
    // The name is truncated before invalid characters are dropped, as in Tailscale.
    let bytes = &name.as_bytes()[..name.len().min(MAX_LABEL)];
    let is_end = |byte: &u8| byte.is_ascii_alphanumeric();
    let Some(first) = bytes.iter().position(is_end) else { return DEFAULT_NAME.into() };
    let last = bytes.iter().rposition(is_end).unwrap_or(first);
    let letter = |byte: &u8| match byte {
        b' ' | b'.' | b'@' | b'_' | b'-' => Some('-'),
        byte if byte.is_ascii_alphanumeric() => Some(char::from(byte.to_ascii_lowercase())),
        _ => None,
    };
    bytes[first..=last].iter().filter_map(letter).collect()
}

/// Whether this is a label in lower case, which may be a node's name.
pub fn is_label(name: &str) -> bool {
    !name.is_empty() && label(name) == name
}

/// Whether a name is the label of a host name, or that label with a number.
pub(crate) fn is_derived_from(name: &str, hostname: &str) -> bool {
    let rest = name.strip_prefix(&label(hostname)).map(|rest| rest.strip_prefix('-').ok_or(rest));
    match rest {
        Some(Ok(number)) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        Some(Err(rest)) => rest.is_empty(),
        None => false,
    }
}

/// Returns the label, or the first free one with a number appended.
pub(crate) fn unique(label: String, is_free: impl Fn(&str) -> bool) -> String {
    if is_free(&label) {
        return label;
    }
    let numbered = |number: u64| {
        let number = format!("-{number}");
        let length = label.len().min(MAX_LABEL - number.len());
        format!("{}{number}", label[..length].trim_end_matches('-'))
    };
    (1..).map(numbered).find(|name| is_free(name)).expect("numbers do not end")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_names_become_labels() {
        for (hostname, expected) in [
            ("box", "box"),
            ("web.site-a.example", "web-site-a-example"),
            ("Anna's MacBook Pro.local", "annas-macbook-pro"),
            ("build_box", "build-box"),
            ("server--01", "server--01"),
            ("My-PC!", "my-pc"),
            ("xn--mnchen-3ya", "xn--mnchen-3ya"),
            ("server-北京-01", "server--01"),
            ("a+b", "ab"),
            ("a@b", "a-b"),
            ("box(2)", "box2"),
            ("a\tb", "ab"),
            ("-lead", "lead"),
            ("trail-", "trail"),
            ("-_-a--b-.x", "a--b--x"),
            ("host.local", "host"),
            ("host.localdomain", "host"),
            ("host.lan", "host"),
            ("host.lan.local", "host"),
            ("host.local.lan", "host-local"),
            ("host.LOCAL", "host-local"),
            ("local", "local"),
            (".local", DEFAULT_NAME),
            ("日本", DEFAULT_NAME),
            ("", DEFAULT_NAME),
        ] {
            assert_eq!(label(hostname), expected, "{hostname}");
        }
        // Truncation comes first: dropped characters count.
        assert_eq!(label(&format!("{}b", "+".repeat(MAX_LABEL))), DEFAULT_NAME);
        assert_eq!(label(&format!("a{}b", "-".repeat(MAX_LABEL - 1))), "a");
        assert_eq!(label(&format!("{}.x", "a".repeat(MAX_LABEL))), "a".repeat(MAX_LABEL));
    }

    #[test]
    fn a_used_name_gets_a_number() {
        let had = ["a", "a-1"];
        assert_eq!(unique("a".into(), |name| !had.contains(&name)), "a-2");
        let long = "b".repeat(MAX_LABEL);
        let other = unique(long.clone(), |name| name != long);
        assert_eq!((other.len(), is_label(&other)), (MAX_LABEL, true));
    }

    #[test]
    fn a_name_with_a_number_is_derived_from_its_host_name() {
        for (name, expected) in [
            ("desk", true),
            ("desk-1", true),
            ("desk-", false),
            ("desk-a", false),
            ("desktop", false),
            ("des", false),
        ] {
            assert_eq!(is_derived_from(name, "Desk.local"), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_hostname_becomes_a_label(hostname: String) {
            let label = label(&hostname);
            prop_assert!(is_label(&label) && label.len() <= MAX_LABEL);
        }
    }
}
