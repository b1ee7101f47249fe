//! This program as one of the processes that it starts.

use std::ffi::OsString;

use crate::{
    children::log_style_from,
    guardian,
    lifecycle::LogStyle,
    member::{agent, relay_server, steward},
    resolver, syslog,
};

type Run = fn(LogStyle) -> anyhow::Result<()>;

/// The name of each process, its whole first argument, and the work that it does.
const ALL: [(&str, Run); 6] = [
    (guardian::NAME, guardian::run),
    (steward::NAME, steward::run),
    (agent::NAME, agent::run),
    (relay_server::NAME, relay_server::run),
    (resolver::NAME, resolver::run),
    (syslog::NAME, syslog::run),
];

/// A process that this program was started as.
pub struct Child {
    /// How it logs: like the process that started it.
    pub log_style: LogStyle,
    run: Run,
}

impl Child {
    /// The process that the arguments ask for; `None` if a user started this program.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<_> = arguments.collect();
        let (name, others) = arguments.split_first()?;
        let (_, run) = ALL.into_iter().find(|(known, _)| name == known)?;
        Some(Self { log_style: log_style_from(others), run })
    }

    /// Serves the process on standard input that started this one, until that ends.
    ///
    /// # Errors
    /// Standard input is no connection to that process, or its job cannot be begun.
    pub fn run(self) -> anyhow::Result<()> {
        (self.run)(self.log_style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Option<LogStyle> {
        Child::from_arguments(words.iter().map(OsString::from)).map(|child| child.log_style)
    }

    #[test]
    fn only_its_own_name_makes_a_guardian() {
        assert!(asked(&["linerate", "background"]).is_none() && asked(&[]).is_none());
        for (background, json) in [(false, false), (true, false), (false, true), (true, true)] {
            let arguments = [(guardian::NAME, true), ("background", background), ("json", json)];
            let arguments = arguments.iter().filter(|(_, is_said)| *is_said).map(|(step, _)| *step);
            let style = asked(&arguments.collect::<Vec<_>>()).expect("it is one");
            assert_eq!(style, LogStyle { background, json });
        }
    }

    #[test]
    fn a_steward_is_told_by_its_whole_first_argument() {
        assert_eq!(asked(&["linerate"]), None);
        assert_eq!(asked(&["/x/linerate-steward"]), None);
        let style = LogStyle { background: true, json: false };
        assert_eq!(asked(&[steward::NAME, "background"]), Some(style));
    }

    #[test]
    fn each_process_has_a_name_of_its_own() {
        for (place, (name, run)) in ALL.into_iter().enumerate() {
            let child = Child::from_arguments([OsString::from(name)].into_iter()).unwrap();
            assert!(std::ptr::fn_addr_eq(child.run, run), "{place}: {name}");
        }
    }
}
