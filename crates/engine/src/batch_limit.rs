//! The number of packets that are processed together.

use std::{env, sync::OnceLock};

/// The largest such number. It serves to measure the gain of batches: with 1, each packet is
/// processed alone.
const ENV: &str = "LINERATE_VECTOR";

/// Returns `usual`, or less if the environment says so.
pub(crate) fn vector(usual: usize) -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    usual.min(*LIMIT.get_or_init(|| limit(env::var(ENV).ok().as_deref())))
}

fn limit(text: Option<&str>) -> usize {
    text.and_then(|text| text.parse().ok()).filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::limit;

    #[test]
    fn an_invalid_number_of_packets_is_ignored() {
        assert_eq!(limit(Some("1")), 1);
        for text in [None, Some(""), Some("0"), Some("-1"), Some("all")] {
            assert_eq!(limit(text), usize::MAX);
        }
    }
}
