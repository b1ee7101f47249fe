//! The version of a program.

/// The C library of the target.
const LIBC: &str = if cfg!(target_env = "musl") { "musl" } else { "gnu" };

/// The version of the calling crate with its commit, if `packaging/commit.rs` found it, and its target.
#[macro_export]
macro_rules! long_version {
    () => {{
        static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
            let (version, commit) = (env!("CARGO_PKG_VERSION"), option_env!("LINERATE_COMMIT"));
            $crate::process::long_version(version, commit)
        });
        TEXT.as_str()
    }};
}

/// The version of a program with its commit, if that is known, and its target.
pub fn long_version(version: &str, commit: Option<&str>) -> String {
    let commit = commit.filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!("commit {commit}, ")).unwrap_or_default();
    format!("{version} ({commit}{}-linux-{LIBC})", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_has_the_commit_if_known_and_the_target() {
        let target = format!("{}-linux-{LIBC}", std::env::consts::ARCH);
        for unknown in [None, Some("")] {
            assert_eq!(long_version("1.2.3", unknown), format!("1.2.3 ({target})"));
        }
        assert_eq!(long_version("1.2.3", Some("abc")), format!("1.2.3 (commit abc, {target})"));
    }
}
