//! The roles in which this program starts itself.

use std::ffi::OsString;

use crate::{
    children::log_style_from,
    guardian,
    lifecycle::LogStyle,
    member::{agent, relay_server, steward},
    resolver, syslog,
};

type Run = fn(LogStyle) -> anyhow::Result<()>;

/// The name of each process, which is its first argument, and its main function.
const ALL: [(&str, Run); 6] = [
    (guardian::NAME, guardian::run),
    (steward::NAME, steward::run),
    (agent::NAME, agent::run),
    (relay_server::NAME, relay_server::run),
    (resolver::NAME, resolver::run),
    (syslog::NAME, syslog::run),
];

/// A role in which this program was started.
pub struct Child {
    /// The log style, that of the process that started this one.
    pub log_style: LogStyle,
    run: Run,
}

impl Child {
    /// The role by the arguments; `None` if a user started this program.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<_> = arguments.collect();
        let (name, others) = arguments.split_first()?;
        let (_, run) = ALL.into_iter().find(|(known, _)| name == known)?;
        Some(Self { log_style: log_style_from(others), run })
    }

    /// Serves the parent process, which is connected to standard input, until that exits.
    ///
    /// # Errors
    /// Standard input is not connected to such a process, or its job cannot be started.
    pub fn run(self) -> anyhow::Result<()> {
        (self.run)(self.log_style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style_by(words: &[&str]) -> Option<LogStyle> {
        Child::from_arguments(words.iter().map(OsString::from)).map(|child| child.log_style)
    }

    #[test]
    fn guardian_is_recognized_by_its_name() {
        assert!(style_by(&["linerate", "background"]).is_none() && style_by(&[]).is_none());
        for (background, json) in [(false, false), (true, false), (false, true), (true, true)] {
            let arguments = [(guardian::NAME, true), ("background", background), ("json", json)];
            let arguments =
                arguments.iter().filter(|(_, is_present)| *is_present).map(|(step, _)| *step);
            let style = style_by(&arguments.collect::<Vec<_>>()).expect("it is one");
            assert_eq!(style, LogStyle { background, json });
        }
    }

    #[test]
    fn steward_is_recognized_by_its_whole_first_argument() {
        assert_eq!(style_by(&["linerate"]), None);
        assert_eq!(style_by(&["/x/linerate-steward"]), None);
        let style = LogStyle { background: true, json: false };
        assert_eq!(style_by(&[steward::NAME, "background"]), Some(style));
    }

    #[test]
    fn each_role_has_a_unique_name() {
        for (place, (name, run)) in ALL.into_iter().enumerate() {
            let child = Child::from_arguments([OsString::from(name)].into_iter()).unwrap();
            assert!(std::ptr::fn_addr_eq(child.run, run), "{place}: {name}");
        }
    }
}
