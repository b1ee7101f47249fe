//! Build script of the packages with programs. A release build gets the commit of the working tree as
//! LINERATE_COMMIT, for `--version`. That variable takes precedence if it is set. Other builds omit
//! it, because every commit would build these packages again.

use std::{env, path::Path, process::Command};

/// The variable with the commit, of the environment and for the compiler.
const COMMIT: &str = "LINERATE_COMMIT";
/// The workspace, from the folder of a package in `crates`.
const ROOT: &str = "../..";

fn main() {
    println!("cargo::rerun-if-env-changed={COMMIT}");
    // A file that exists: without any, each changed file of the package would count.
    println!("cargo::rerun-if-changed=Cargo.toml");
    // A copy of the sources inside another repository does not have that repository's commit.
    let is_working_tree = Path::new(ROOT).join(".git").exists();
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if env::var_os(COMMIT).is_some() || !is_release || !is_working_tree {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    println!("cargo::rustc-env={COMMIT}={commit}");
    // HEAD changes with the branch. Its log and the branch's file change with each commit.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        let path = Path::new(ROOT).join(path);
        // A branch may be in `packed-refs` only.
        if path.is_file() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// The line that git prints in the workspace, if git is installed and succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(ROOT).args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| line.trim().to_owned()).filter(|line| !line.is_empty())
}
