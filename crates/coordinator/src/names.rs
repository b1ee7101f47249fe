//! Names of nodes: one label of DNS, and each but once.

/// The longest label (RFC 1035, section 2.3.4).
const LONGEST: usize = 63;
/// That of a machine whose own has no letter that a label may have.
const NAMELESS: &str = "node";

/// The label that a host's name becomes.
pub fn label(hostname: &str) -> String {
    // Some systems add the network's name, or `.local`.
    let first = hostname.split('.').next().unwrap_or_default();
    let mut label = String::new();
    for letter in first.chars().map(|letter| letter.to_ascii_lowercase()) {
        match letter {
            'a'..='z' | '0'..='9' => label.push(letter),
            _ if label.is_empty() || label.ends_with('-') || letter == '\'' => {}
            _ => label.push('-'),
        }
        if label.len() == LONGEST {
            break;
        }
    }
    let label = label.trim_end_matches('-');
    if label.is_empty() { NAMELESS.into() } else { label.into() }
}

/// Whether somebody may give a node this name.
pub fn is_label(name: &str) -> bool {
    !name.is_empty() && label(name) == name
}

/// The label, or the first with a number behind it that is free.
pub fn unique(label: String, is_free: impl Fn(&str) -> bool) -> String {
    if is_free(&label) {
        return label;
    }
    let numbered = |number: u64| {
        let number = format!("-{number}");
        let kept = label.len().min(LONGEST - number.len());
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
            ("Anna's MacBook Pro.local", "annas-macbook-pro"),
            ("-_-a--b-.x", "a-b"),
            ("日本", NAMELESS),
            ("", NAMELESS),
        ] {
            assert_eq!(label(hostname), expected, "{hostname}");
        }
    }

    #[test]
    fn a_name_that_is_had_gets_a_number() {
        let had = ["a", "a-1"];
        assert_eq!(unique("a".into(), |name| !had.contains(&name)), "a-2");
        let long = "b".repeat(LONGEST);
        let other = unique(long.clone(), |name| name != long);
        assert_eq!((other.len(), is_label(&other)), (LONGEST, true));
    }

    proptest! {
        #[test]
        fn any_hostname_becomes_a_label(hostname: String) {
            let label = label(&hostname);
            prop_assert!(is_label(&label) && label.len() <= LONGEST);
        }
    }
}
