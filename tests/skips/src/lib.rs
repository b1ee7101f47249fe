//! Skips tests, and checks under CI whether they may be skipped.
//!
//! A test that lacks something calls [`skip`] and returns. That prints a visible line. If
//! `LINERATE_SKIPS=listed` is set, as by `.ci/run`, a need that is not in the file `allowed`
//! fails the test instead.

#![forbid(unsafe_code)]

use std::{env, io::Write, thread};

/// Needs that may be missing, with reasons: see its first lines.
const ALLOWED: &str = include_str!("../allowed");

/// Reports that the test of this thread, or a part of it, cannot run here, past libtest's capture.
///
/// # Panics
/// If `LINERATE_SKIPS=listed` is set and the need is not on the list.
pub fn skip(need: &str) {
    // libtest uses the test's name as the name of its thread.
    let test = thread::current().name().unwrap_or("a test").to_owned();
    // If stderr is closed, the line is lost, which is not a failure.
    let _ = writeln!(std::io::stderr(), "SKIPPED: needs {need} ({test})");
    let only_listed = env::var_os("LINERATE_SKIPS").is_some_and(|which| which == "listed");
    assert!(
        !only_listed || reason(ALLOWED, need).is_some(),
        "{test} lacks {need}, which is not in tests/skips/allowed"
    );
}

/// Why this need may be missing; `None` if it may not.
fn reason<'a>(list: &'a str, need: &str) -> Option<&'a str> {
    let entries = list.lines().filter(|line| !line.starts_with('#'));
    entries.filter_map(|line| line.split_once(": ")).find(|entry| entry.0 == need).map(|e| e.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_allowed_by_its_whole_name() {
        let list = "# kernel: a comment\nkernel WireGuard: not in every kernel\n";
        assert_eq!(reason(list, "kernel WireGuard"), Some("not in every kernel"));
        for other in ["kernel", "# kernel", "WireGuard", ""] {
            assert_eq!(reason(list, other), None, "{other}");
        }
    }

    #[test]
    fn every_entry_of_the_list_has_a_reason() {
        for line in ALLOWED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let reason = line.split_once(": ").map_or("", |entry| entry.1);
            assert!(reason.len() > 8, "no reason: {line}");
        }
    }
}
