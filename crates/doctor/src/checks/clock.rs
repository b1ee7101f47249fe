//! The wall clock, which handshakes carry.

use std::time::Duration;

use crate::{Facts, Finding, Fix, Severity};

/// A handshake may be told in the same second that it happens in.
const SLACK: Duration = Duration::from_secs(2);

/// A clock that stands in the past, or that nothing keeps right.
pub(crate) fn wrong(facts: &Facts) -> Vec<Finding> {
    let clock = facts.clock;
    let last = facts.tunnels.iter().flat_map(|tunnel| &tunnel.peers);
    let last = last.filter_map(|peer| peer.last_handshake).max();
    let passed = [
        (clock.installed, "this program was put on the disk after that"),
        (last, "a peer's last handshake was after that"),
    ];
    let past = passed.iter().find(|(time, _)| time.is_some_and(|time| time > clock.wall + SLACK));
    let finding = |severity, what: String| Finding {
        check: "clock",
        on: "host".into(),
        severity,
        what,
        why: "a handshake carries the time, and a peer takes none that is not later than the last"
            .into(),
        cost: "a daemon that starts with an earlier clock has its handshakes refused until the \
               clock has caught up (WireGuard paper, section 5.4.2)",
        fix: Fix::Manual("timedatectl set-ntp true, or chronyd, or the hypervisor's clock".into()),
    };
    if let Some((_, evidence)) = past {
        let seconds = clock.wall.as_secs();
        let what = format!("the clock shows {seconds} s since 1970, and {evidence}");
        return vec![finding(Severity::Broken, what)];
    }
    match clock.synchronised {
        Some(false) => {
            let what = "nothing has told the kernel that the clock is kept right";
            vec![finding(Severity::Note, what.into())]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    #[test]
    fn a_clock_before_what_has_happened_already_is_found() {
        let mut facts = healthy();
        assert!(wrong(&facts).is_empty());
        facts.clock.wall -= Duration::from_secs(90);
        let found = wrong(&facts);
        assert_eq!(found[0].severity, Severity::Broken);
        assert!(found[0].what.contains("handshake"), "{}", found[0].what);
        facts.clock.wall -= Duration::from_hours(2);
        assert!(wrong(&facts)[0].what.contains("disk"));
    }

    #[test]
    fn a_clock_that_nothing_keeps_right_is_noted_and_an_unknown_one_not() {
        let mut facts = healthy();
        facts.clock.synchronised = Some(false);
        assert_eq!(wrong(&facts)[0].severity, Severity::Note);
        facts.clock.synchronised = None;
        assert!(wrong(&facts).is_empty());
    }
}
