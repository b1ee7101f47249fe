//! Suggestions for misspelt words.

/// The candidate with the fewest typing errors: at most one for every three of its letters, and at most
/// three. Case is ignored.
pub(super) fn nearest(
    word: &str,
    candidates: impl IntoIterator<Item = &'static str>,
) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let most = (candidate.len() / 3).min(3);
            // Each additional letter is at least one error, so this skips long words.
            let near = word.len().abs_diff(candidate.len()) <= most;
            let errors = near.then(|| distance(&word, &candidate.to_ascii_lowercase()))?;
            (errors <= most).then_some((errors, candidate))
        })
        .min_by_key(|(errors, _)| *errors)
        .map(|(_, candidate)| candidate)
}

/// The number of letters to insert, remove, replace or swap with their neighbour (optimal string
/// alignment distance).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Three rows of the table: those of the last two letters of `a`, and of this one.
    let mut before = vec![0; b.len() + 1];
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = previous[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(previous[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        (before, previous) = (previous, row);
    }
    previous[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_typing_errors() {
        for (a, b, errors) in [
            ("", "", 0),
            ("peer", "peer", 0),
            ("peer", "", 4),
            ("", "peer", 4),
            ("per", "peer", 1),
            ("peeer", "peer", 1),
            ("pear", "peer", 1),
            ("eper", "peer", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), errors, "{a} {b}");
        }
    }

    #[test]
    fn only_similar_words_are_suggested() {
        let names = ["MTU", "DNS", "PublicKey", "PrivateKey", "PostUp", "PreUp"];
        for (word, meant) in [
            ("privatkey", Some("PrivateKey")),
            ("PubilcKey", Some("PublicKey")),
            ("PotsUp", Some("PostUp")),
            ("MUT", Some("MTU")),
            ("ABC", None),
            ("", None),
            ("Key", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
        assert_eq!(nearest(&"PublicKey".repeat(100), names), None);
    }
}
