//! The commit of the figures: figures are published only for the release build of a commit.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use netns::Implementation;

use crate::published::{PAGE, README};

/// The state of the source tree that this program was built from, and of linerate's binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Abbreviated commit id.
    pub commit: String,
    /// Why the figures do not belong to the release build of this commit.
    pub faults: Vec<String>,
}

impl Tree {
    /// The current state.
    pub fn now() -> Self {
        let commit = git(&["rev-parse", "--short=12", "HEAD"]);
        let mut faults = Vec::new();
        match git(&["status", "--porcelain"]) {
            Ok(status) => faults.extend(uncommitted(&status)),
            Err(error) => faults.push(format!("the source tree has no commit: {error}")),
        }
        faults.extend(Implementation::Linerate.program().and_then(|binary| fault_of(&binary)));
        Self { commit: commit.unwrap_or_else(|_| "unknown".to_owned()), faults }
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn git(words: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(workspace()).args(words).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// From the output of `git status --porcelain`. The files in which the figures are written are
/// excluded.
fn uncommitted(status: &str) -> Option<String> {
    let paths = status.lines().filter_map(|line| line.get(3..));
    let paths: Vec<&str> = paths.filter(|path| ![README, PAGE].contains(path)).collect();
    let (first, more) = (paths.first()?, paths.len() - 1);
    Some(match more {
        0 => format!("{first} is not committed"),
        more => format!("{first} and {more} more files are not committed"),
    })
}

/// What is wrong with a binary: it is not the release build, or it is older than one of its
/// sources.
fn fault_of(binary: &Path) -> Option<String> {
    if env::var_os("LINERATE_BIN").is_some() || !binary.ends_with("release/linerate") {
        return Some(format!("{} is not the release build", binary.display()));
    }
    let built = fs::metadata(binary).and_then(|data| data.modified()).ok()?;
    // cargo writes this file: the path of the binary, a colon and all its sources.
    let Ok(list) = fs::read_to_string(binary.with_extension("d")) else {
        return Some(format!("the sources of {} are unknown", binary.display()));
    };
    let is_newer = |source: &&str| {
        fs::metadata(source).and_then(|data| data.modified()).map_or(true, |time| time > built)
    };
    let newer = sources(&list).into_iter().find(is_newer)?.to_owned();
    Some(format!("{newer} has changed since the build (make build)"))
}

fn sources(list: &str) -> Vec<&str> {
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    sources.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::{sources, uncommitted};

    #[test]
    fn an_uncommitted_change_is_reported_except_in_files_of_figures() {
        assert_eq!(uncommitted(""), None);
        assert_eq!(uncommitted(" M README.md"), None);
        assert_eq!(uncommitted(" M README.md\n M docs/figures.md"), None);
        let one = uncommitted(" M README.md\n M crates/wg/src/lib.rs");
        assert_eq!(one.as_deref(), Some("crates/wg/src/lib.rs is not committed"));
        let two = uncommitted("?? new.rs\n M crates/wg/src/lib.rs");
        assert_eq!(two.as_deref(), Some("new.rs and 1 more files are not committed"));
    }

    #[test]
    fn the_sources_of_a_binary_are_read_from_cargos_list() {
        assert_eq!(sources("/t/release/linerate: /a/b.rs /a/c.rs\n"), ["/a/b.rs", "/a/c.rs"]);
        assert!(sources("").is_empty());
    }
}
