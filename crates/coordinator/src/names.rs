//! Names of nodes: one label of DNS, and each but once.

/// The longest label (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;
/// That of a machine whose own has no letter that a label may have.
const DEFAULT_NAME: &str = "node";

/// Endings that some systems add to a host's name, in the order in which they are removed.
const ENDINGS: [&str; 3] = [".local", ".localdomain", ".lan"];

/// The label that a host's name becomes: the one that Tailscale makes of it (`util/dnsname`,
/// `SanitizeHostname`), or [`DEFAULT_NAME`]. Machines find each other by these names, so a network that moves
/// here keeps them.
pub fn label(hostname: &str) -> String {
    let name = ENDINGS.iter().fold(hostname, |name, end| name.strip_suffix(end).unwrap_or(name));
    // What is cut off decides nothing, whether its letters would be dropped or not.
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

/// Whether this is a label in small letters, which somebody may give a node as its name.
pub fn is_label(name: &str) -> bool {
    !name.is_empty() && label(name) == name
}

/// Whether a name is the one that a host's name becomes, or that with a number.
pub fn is_derived_from(name: &str, hostname: &str) -> bool {
    let rest = name.strip_prefix(&label(hostname)).map(|rest| rest.strip_prefix('-').ok_or(rest));
    match rest {
        Some(Ok(number)) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        Some(Err(rest)) => rest.is_empty(),
        None => false,
    }
}

/// The label, or the first with a number behind it that is free.
pub fn unique(label: String, is_free: impl Fn(&str) -> bool) -> String {
    if is_free(&label) {
        return label;
    }
    let numbered = |number: u64| {
        let number = format!("-{number}");
        let kept = label.len().min(MAX_LABEL - number.len());
        format!("{}{number}", label[..kept].trim_end_matches('-'))
    };
    (1..).map(numbered).find(|name| is_free(name)).expect("numbers do not end")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_names_become_labels() {
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
        // The cut comes before the ends: letters that are dropped count.
        assert_eq!(label(&format!("{}b", "+".repeat(MAX_LABEL))), DEFAULT_NAME);
        assert_eq!(label(&format!("a{}b", "-".repeat(MAX_LABEL - 1))), "a");
        assert_eq!(label(&format!("{}.x", "a".repeat(MAX_LABEL))), "a".repeat(MAX_LABEL));
    }

    #[test]
    fn a_name_that_is_had_gets_a_number() {
        let had = ["a", "a-1"];
        assert_eq!(unique("a".into(), |name| !had.contains(&name)), "a-2");
        let long = "b".repeat(MAX_LABEL);
        let other = unique(long.clone(), |name| name != long);
        assert_eq!((other.len(), is_label(&other)), (MAX_LABEL, true));
    }

    #[test]
    fn a_name_with_a_number_is_still_of_its_host() {
        for (name, is_of_host_desk) in [
            ("desk", true),
            ("desk-1", true),
            ("desk-", false),
            ("desk-a", false),
            ("desktop", false),
            ("des", false),
        ] {
            assert_eq!(is_derived_from(name, "Desk.local"), is_of_host_desk, "{name}");
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
