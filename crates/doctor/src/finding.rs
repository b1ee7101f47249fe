//! The results of the checks.

use super::Setting;

/// How severe a finding is; the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work.
    Broken,
    /// It works, but is slower than necessary.
    Slow,
    /// Information; nothing is wrong.
    Note,
}

impl Severity {
    /// A stable name, part of the JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Slow => "slow",
            Self::Note => "note",
        }
    }
}

/// A result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check, which is stable.
    pub check: &'static str,
    /// The subject: a tunnel, an interface, `kernel` or `host`.
    pub on: String,
    /// How severe it is.
    pub severity: Severity,
    /// The observation.
    pub what: String,
    /// The reason why it matters.
    pub why: String,
    /// The cost, and its source: a measurement, a thread or a document.
    pub cost: &'static str,
    /// How to fix it.
    pub fix: Fix,
}

/// How to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// By these settings, which can be applied and undone.
    Change(Vec<Setting>),
    /// By a person: a command or advice.
    Manual(String),
    /// No fix is needed.
    None,
}

/// All findings about a host.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The most severe first.
    pub findings: Vec<Finding>,
    /// Checks that were not possible, with the reasons.
    pub unknown: Vec<String>,
}

/// The summary, which is also the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Status 0: nothing is wrong.
    Fine,
    /// Status 1: something is wrong.
    Found,
    /// Status 2: nothing was found, but not all checks were possible.
    Incomplete,
}

impl Report {
    /// The summary. Notes do not count.
    pub fn verdict(&self) -> Verdict {
        if self.findings.iter().any(|finding| finding.severity != Severity::Note) {
            Verdict::Found
        } else if self.unknown.is_empty() {
            Verdict::Fine
        } else {
            Verdict::Incomplete
        }
    }

    /// The settings that fix findings.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.findings.iter().flat_map(|finding| match &finding.fix {
            Fix::Change(settings) => settings.as_slice(),
            _ => &[],
        })
    }
}
