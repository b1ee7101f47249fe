//! The processes that started this one.

use std::{fs, iter};

use nix::unistd::getppid;

/// More than there are between a program and a script that runs it.
const MOST: usize = 8;

/// The arguments of the processes that this one descends from, the parent first, as far as `/proc`
/// shows them.
pub fn ancestors_arguments() -> impl Iterator<Item = Vec<String>> {
    let parents = iter::successors(Some(getppid().as_raw()), |process| parent_of(*process));
    parents.take_while(|process| *process > 0).take(MOST).filter_map(arguments_of)
}

fn arguments_of(process: i32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let arguments = text.split(|byte| *byte == 0);
    Some(arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect())
}

/// proc_pid_stat(5): the name may have any character; after its last parenthesis come the state and
/// the parent.
fn parent_of(process: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_the_first_ancestor() {
        let ancestors: Vec<_> = ancestors_arguments().collect();
        let parent = arguments_of(getppid().as_raw()).unwrap();
        assert_eq!(ancestors[0], parent);
        assert!(ancestors.len() <= MOST);
        assert_eq!(parent_of(std::process::id() as i32), Some(getppid().as_raw()));
    }
}
