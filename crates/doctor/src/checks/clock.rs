//! The wall clock, which handshakes carry.

use std::time::Duration;

use crate::{Facts, Finding, Fix, Severity};

/// The time of a handshake may be up to one second ahead, because the UAPI reports whole seconds.
const SLACK: Duration = Duration::from_secs(2);

/// Finds a clock that is in the past or not synchronised.
pub(crate) fn wrong(facts: &Facts) -> Vec<Finding> {
    let clock = facts.clock;
    let last = facts.tunnels.iter().flat_map(|tunnel| &tunnel.peers);
    let last = last.filter_map(|peer| peer.last_handshake).max();
    let passed = [
        (clock.installed, "this program was written to the disk after that"),
        (last, "a peer's last handshake was after that"),
    ];
    let past = passed.iter().find(|(time, _)| time.is_some_and(|time| time > clock.wall + SLACK));
    let finding = |severity, what: String| {
        Finding {
        check: "clock",
        on: "host".into(),
        severity,
        what,
        why: "a handshake carries the time, and a peer accepts only a later time than that of the last \
        handshake"
            .into(),
        cost: "peers refuse the handshakes of a daemon that starts with an earlier clock, until the \
        clock has caught up (WireGuard paper, section 5.4.2)",
        fix: Fix::Manual("timedatectl set-ntp true, or chronyd, or the hypervisor's clock".into()),
    }
    };
    if let Some((_, evidence)) = past {
        let seconds = clock.wall.as_secs();
        let what = format!("the clock shows {seconds} s since 1970, and {evidence}");
        return vec![finding(Severity::Broken, what)];
    }
    match clock.synchronised {
        Some(false) => {
            let what = "the kernel does not know whether the clock is synchronised";
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
    fn clock_before_a_handshake_or_the_installation_is_found() {
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
    fn unsynchronised_clock_gets_a_note_unlike_an_unknown_state() {
        let mut facts = healthy();
        facts.clock.synchronised = Some(false);
        assert_eq!(wrong(&facts)[0].severity, Severity::Note);
        facts.clock.synchronised = None;
        assert!(wrong(&facts).is_empty());
    }
}
