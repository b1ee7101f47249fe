//! The ancestors of this process.

use std::{fmt, fs, iter};

/// The most ancestors that are examined. More than between a program and a script that runs it.
const MOST: usize = 8;

/// The IDs of this process, its parent and so on, as far as `/proc` shows them.
pub fn ancestor_pids() -> impl Iterator<Item = u32> {
    iter::successors(Some(std::process::id()), |process| parent_of(*process))
}

/// The arguments of this process's ancestors, the parent first, as far as `/proc` shows them.
pub fn ancestor_arguments() -> impl Iterator<Item = Vec<String>> {
    ancestor_pids().skip(1).take(MOST).filter_map(arguments_of)
}

fn arguments_of(process: u32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let arguments = text.split(|byte| *byte == 0);
    Some(arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect())
}

/// The parent of a process; `None` if it is in another pid namespace.
fn parent_of(process: u32) -> Option<u32> {
    let parent = fields_after_name(process)?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// The fields of proc_pid_stat(5) of a process, from the third on. The second is the name, which
/// may contain any character.
pub(super) fn fields_after_name(process: impl fmt::Display) -> Option<String> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.rsplit_once(')').map(|(_, fields)| fields.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_the_first_ancestor() {
        let ancestors: Vec<_> = ancestor_arguments().collect();
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        assert_eq!(ancestor_pids().take(2).collect::<Vec<_>>(), [own, parent]);
        let parent = arguments_of(parent).unwrap();
        assert_eq!(ancestors[0], parent);
        assert!(ancestors.len() <= MOST);
    }
}
