//! What a check says.

use super::Setting;

/// How bad it is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work.
    Broken,
    /// It works, and costs more than it has to.
    Slow,
    /// Good to know; nothing is wrong.
    Note,
}

impl Severity {
    /// A name that stays the same from version to version.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Slow => "slow",
            Self::Note => "note",
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check found it; stays the same from version to version.
    pub check: &'static str,
    /// What it is about: a tunnel, an interface, `kernel`, `host`.
    pub on: String,
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// Why that matters.
    pub why: String,
    /// What it costs, and where that is from: a measurement, a thread, a document.
    pub cost: &'static str,
    /// What mends it.
    pub fix: Fix,
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// These settings, which can be applied and taken back.
    Change(Vec<Setting>),
    /// Something that a person has to decide or do: a command, or words.
    Manual(String),
    /// Nothing is to be mended.
    None,
}

/// All findings about a host.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What could not be looked at, and why.
    pub unknown: Vec<String>,
}

/// The short of it, as the exit status says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong: 0.
    Fine,
    /// Something is: 1.
    Found,
    /// Nothing was found, but not everything could be looked at: 2.
    Incomplete,
}

impl Report {
    /// The short of it. Notes are no findings.
    pub fn verdict(&self) -> Verdict {
        if self.findings.iter().any(|finding| finding.severity != Severity::Note) {
            Verdict::Found
        } else if self.unknown.is_empty() {
            Verdict::Fine
        } else {
            Verdict::Incomplete
        }
    }

    /// All settings that would fix something.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.findings.iter().flat_map(|finding| match &finding.fix {
            Fix::Change(settings) => settings.as_slice(),
            _ => &[],
        })
    }
}
