//! Floor 3: `linerate doctor`, which finds settings of this host that break or slow down a tunnel.
//!
//! ```text
//!   host, running daemons -- gather --> Facts -- checks, pure --> Findings --> Report
//!                                                                    |
//!   host <-- settings written -- remedy: apply, undo <-- Settings ---'
//!                                   |
//!                       /run/linerate/doctor: the previous values
//! ```
//!
//! Checks change nothing. Before a setting is applied, its previous value is recorded.
#![forbid(unsafe_code)]

mod checks;
mod facts;
mod finding;
mod gather;
mod legacy_filter;
mod remedy;
mod setting;

pub use facts::{
    Clock, DroppingChain, Facts, Interface, Kernel, Member, Sysctls, Tunnel, TunnelPeer,
};
pub use finding::{Finding, Fix, Report, Severity, Verdict};
pub use gather::gather;
pub use host::LostChange;
pub use remedy::{Applied, Remedy, UndoOutcome};
pub use setting::{Host, Setting, Settings, Target};

/// Runs all checks.
pub fn examine(facts: &Facts) -> Report {
    let findings = checks::ALL.iter().flat_map(|check| check(facts));
    let mut findings: Vec<Finding> = findings.collect();
    findings.sort_by_key(|finding| finding.severity);
    Report { findings, unknown: facts.unknown.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_sorted_by_severity_and_skipped_checks_are_reported() {
        let mut facts = facts::healthy();
        assert_eq!(examine(&facts).verdict(), Verdict::Fine);
        facts.unknown.push("the clock".into());
        assert_eq!(examine(&facts).verdict(), Verdict::Incomplete);
        facts.interfaces[0].features.get_mut("rx-gro").unwrap().active = false;
        assert_eq!(examine(&facts).verdict(), Verdict::Found, "slow counts as a finding");
        facts.clock.wall = std::time::Duration::ZERO;
        let report = examine(&facts);
        assert_eq!(report.verdict(), Verdict::Found);
        assert_eq!(report.unknown, ["the clock"]);
        let weights: Vec<_> = report.findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(weights[..2], [Severity::Broken, Severity::Slow]);
        assert!(weights.is_sorted());
    }
}
