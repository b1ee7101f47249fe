//! Paths that the data plane has from the previous agent, and which probably work. No relay
//! replaces them until the data plane has reported its paths, and until a ping of a direct path had
//! a second for its answer. The relays must be connected again by then, so packets would wait.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use ipc::{Activity, Path};
use tailnet::keys::NodePublic;

/// How long a previous direct path remains: longer than a ping takes.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the settings of the previous agent remain without a map from the coordinator. The saved
/// map may be older than them.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct PreviousPaths {
    /// The time at which the first relay path was delayed.
    since: Option<Duration>,
    /// Whether the data plane has reported its paths.
    has_report: bool,
    /// The time until which the settings of the previous agent remain.
    agent_until: Duration,
    /// The times until which direct paths remain.
    direct_until: HashMap<NodePublic, Duration>,
    held_relays: BTreeMap<NodePublic, Path>,
}

impl PreviousPaths {
    /// Takes reports about all peers. Only the first ones concern the previous agent. Returns
    /// whether they are the first.
    pub(super) fn handle_activity(&mut self, all: &[Activity], now: Duration) -> bool {
        if std::mem::replace(&mut self.has_report, true) {
            return false;
        }
        if !all.is_empty() {
            self.agent_until = now + MAP_TIMEOUT;
        }
        let is_direct = |one: &&Activity| matches!(one.received_from, Some(Path::Direct(_)));
        let direct = all.iter().filter(is_direct).map(|one| (one.peer, now + PING_TIMEOUT));
        self.direct_until = direct.collect();
        true
    }

    /// The time until which the saved map does not affect the data plane.
    pub(super) fn agent_until(&self) -> Duration {
        if self.has_report { self.agent_until } else { Duration::MAX }
    }

    /// Whether a path may be used now. Otherwise it is stored.
    pub(super) fn admits(&mut self, peer: NodePublic, path: Path, now: Duration) -> bool {
        if matches!(path, Path::Relay(_)) {
            self.since.get_or_insert(now);
            if now < self.hold_until(&peer) {
                self.held_relays.insert(peer, path);
                return false;
            }
        } else {
            self.direct_until.remove(&peer);
        }
        self.held_relays.remove(&peer);
        true
    }

    /// The time at which [`PreviousPaths::poll`] has a result.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.held_relays.keys().map(|peer| self.hold_until(peer)).min()
    }

    /// Takes a relay path that is no longer delayed.
    pub(super) fn poll(&mut self, now: Duration) -> Option<(NodePublic, Path)> {
        let due = self.held_relays.keys().copied().find(|peer| self.hold_until(peer) <= now)?;
        self.direct_until.remove(&due);
        self.held_relays.remove_entry(&due)
    }

    fn hold_until(&self, peer: &NodePublic) -> Duration {
        match self.has_report {
            true => self.direct_until.get(peer).copied().unwrap_or_default(),
            false => self.since.unwrap_or_default() + PING_TIMEOUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodePublic = NodePublic([1; 32]);
    const RELAY: Path = Path::Relay(1);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn direct() -> Path {
        Path::Direct("192.0.2.1:1".parse().expect("an address"))
    }

    fn activity(received_from: Option<Path>) -> Activity {
        let (received, sent, last_handshake, path_mtu) = (1, 1, None, None);
        Activity {
            peer: PEER,
            received,
            sent,
            last_handshake,
            received_from,
            path_mtu,
            post_quantum: None,
        }
    }

    #[test]
    fn direct_path_of_previous_agent_remains_until_its_ping_times_out() {
        let mut previous = PreviousPaths::default();
        assert!(!previous.admits(PEER, RELAY, at(0)));
        previous.handle_activity(&[activity(Some(direct()))], at(5));
        assert_eq!((previous.poll(at(500)), previous.poll_timeout()), (None, Some(at(1005))));
        assert!(previous.admits(PEER, direct(), at(600)));
        assert_eq!((previous.poll(at(2000)), previous.poll_timeout()), (None, None));
        assert!(previous.admits(PEER, RELAY, at(700)), "it was lost again");
    }

    #[test]
    fn relay_is_used_without_a_direct_path_or_an_answer() {
        let mut previous = PreviousPaths::default();
        assert!(!previous.admits(PEER, RELAY, at(0)));
        previous.handle_activity(&[], at(5));
        assert_eq!(previous.poll(at(5)), Some((PEER, RELAY)));
        assert!(previous.admits(PEER, RELAY, at(6)));
        let mut previous = PreviousPaths::default();
        previous.handle_activity(&[activity(Some(direct()))], at(0));
        assert!(!previous.admits(PEER, RELAY, at(10)));
        assert_eq!(previous.poll(at(1000)), Some((PEER, RELAY)));
        let mut previous = PreviousPaths::default();
        assert!(!previous.admits(PEER, RELAY, at(0)));
        assert_eq!(previous.poll(at(1000)), Some((PEER, RELAY)), "the data plane sends no report");
    }
}
