//! Starts the child processes of a peer: this program, executed again under another name. Keys,
//! TUN and sockets are not inherited.

use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
};

use config::conf::fnv1a;
use sys::process;

use crate::lifecycle::LogStyle;

/// The argument for [`LogStyle::background`].
const BACKGROUND: &str = "background";
/// The argument for [`LogStyle::json`].
const JSON: &str = "json";
/// This program, even if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// The first user ID for unprivileged processes. Neither systemd (its `UIDS-GIDS.md`) nor a Debian
/// package uses these IDs. They are below 65,536, so that they exist in containers. The range ends
/// before 61,184.
const FIRST_USER: u32 = 60_706;
/// Number of user IDs for each [`Role`].
const USERS_PER_ROLE: u32 = 159;

/// A kind of unprivileged process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Agent,
    Relay,
    Resolver,
}

/// Starts a process with this name and with `line` as its standard input. `line` is closed in this
/// process. Signals that this thread blocks are also blocked in the new process.
///
/// # Errors
/// The process cannot be started.
pub(crate) fn start(
    name: &str,
    log_style: LogStyle,
    line: impl Into<OwnedFd>,
) -> io::Result<Child> {
    let mut command = Command::new(PROGRAM);
    command.arg0(name).stdin(Stdio::from(line.into()));
    for (argument, is_set) in [(BACKGROUND, log_style.background), (JSON, log_style.json)] {
        command.args(is_set.then_some(argument));
    }
    command.spawn()
}

/// The log style by the arguments of a process that [`start`] started.
pub(crate) fn log_style_from(arguments: &[OsString]) -> LogStyle {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    LogStyle { background: has(BACKGROUND), json: has(JSON) }
}

/// The user ID for a process of the peer with this name; `None` if it does not change its user.
pub(crate) fn unprivileged_user(name: &str, role: Role) -> Option<u32> {
    process::is_root().then(|| user_id(name, role))
}

fn user_id(name: &str, role: Role) -> u32 {
    FIRST_USER + role as u32 * USERS_PER_ROLE + fnv1a(name) % USERS_PER_ROLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_have_different_users() {
        for role in [Role::Agent, Role::Relay, Role::Resolver] {
            assert_ne!(user_id("home", role), user_id("work", role));
        }
    }

    #[test]
    fn roles_have_disjoint_users_outside_of_the_ranges_of_systemd() {
        // UIDS-GIDS.md, and greeters.
        const TAKEN: [(u32, u32); 6] = [
            (0, 60_000),
            (60_001, 60_513),
            (60_514, 60_577),
            (60_578, 60_705),
            (61_184, 65_519),
            (65_520, u32::MAX),
        ];
        let numbers = |role| -> Vec<u32> {
            (0..2_000).map(|name| user_id(&format!("tailnet{name}"), role)).collect()
        };
        let all = [Role::Agent, Role::Relay, Role::Resolver].map(numbers);
        let [agents, relays, resolvers] = &all;
        assert!(agents.iter().all(|agent| !relays.contains(agent) && !resolvers.contains(agent)));
        assert!(relays.iter().all(|relay| !resolvers.contains(relay)));
        for number in all.iter().flatten() {
            let is_taken = |(first, last): &(u32, u32)| (*first..=*last).contains(number);
            assert!(!TAKEN.iter().any(is_taken), "{number}");
        }
    }
}
