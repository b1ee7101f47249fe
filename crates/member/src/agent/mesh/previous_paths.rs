//! Paths that the data plane has from a former agent. They work, as far as anybody knows: until the
//! data plane has said which it has, and for a second more while a ping asks where one is direct, no
//! relay takes their place. The relays have to be connected again by then, and packets would wait.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tailnet::{
    keys::NodePublic,
    line::{Activity, Path},
};

/// How long a path that works is waited for: longer than a ping takes to be answered.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the coordinator's map is waited for, where a former agent told of peers. The map that
/// was kept may be older than what it told.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PreviousPaths {
    /// When the first relay was held back.
    since: Option<Duration>,
    /// Whether the data plane said which paths it has.
    has_report: bool,
    /// If it has any: until when what it was told stays, whatever the map says that was kept.
    agent_until: Duration,
    /// Until when a direct path of a peer's is waited for.
    direct_until: HashMap<NodePublic, Duration>,
    held_relays: BTreeMap<NodePublic, Path>,
}

impl PreviousPaths {
    /// Takes what the data plane says of all peers; only the first time is of a former agent. Whether
    /// this is it.
    pub fn handle_activity(&mut self, all: &[Activity], now: Duration) -> bool {
        if std::mem::replace(&mut self.has_report, true) {
            return false;
        }
        if !all.is_empty() {
            self.agent_until = now + MAP_TIMEOUT;
        }
        let is_direct = |one: &&Activity| matches!(one.heard_from, Some(Path::Direct(_)));
        let direct = all.iter().filter(is_direct).map(|one| (one.peer, now + PING_TIMEOUT));
        self.direct_until = direct.collect();
        true
    }

    /// Until when the data plane is told nothing by a map that was kept.
    pub fn agent_until(&self) -> Duration {
        if self.has_report { self.agent_until } else { Duration::MAX }
    }

    /// A path is to be used: whether at once.
    pub fn admits(&mut self, peer: NodePublic, path: Path, now: Duration) -> bool {
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

    /// When [`Former::poll`] has something.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.held_relays.keys().map(|peer| self.hold_until(peer)).min()
    }

    /// A relay that is held back no more.
    pub fn poll(&mut self, now: Duration) -> Option<(NodePublic, Path)> {
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

    fn activity(heard_from: Option<Path>) -> Activity {
        let (received, sent, last_handshake, path_mtu) = (1, 1, None, None);
        Activity {
            peer: PEER,
            received,
            sent,
            last_handshake,
            heard_from,
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
        assert_eq!(previous.poll(at(1000)), Some((PEER, RELAY)), "the data plane says nothing");
    }
}
