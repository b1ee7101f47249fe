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
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the coordinator's map is waited for, where a former agent told of peers. The map that
/// was kept may be older than what it told.
const MAP: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Former {
    /// When the first relay was held back.
    since: Option<Duration>,
    /// Whether the data plane said which paths it has.
    is_known: bool,
    /// If it has any: until when what it was told stays, whatever the map says that was kept.
    stays: Duration,
    /// Until when a direct path of a peer's is waited for.
    direct: HashMap<NodePublic, Duration>,
    held: BTreeMap<NodePublic, Path>,
}

impl Former {
    /// Takes what the data plane says of all peers; only the first time is of a former agent. Whether
    /// this is it.
    pub fn handle_activity(&mut self, all: &[Activity], now: Duration) -> bool {
        if std::mem::replace(&mut self.is_known, true) {
            return false;
        }
        if !all.is_empty() {
            self.stays = now + MAP;
        }
        let is_direct = |one: &&Activity| matches!(one.heard_from, Some(Path::Direct(_)));
        let direct = all.iter().filter(is_direct).map(|one| (one.peer, now + PATIENCE));
        self.direct = direct.collect();
        true
    }

    /// Until when the data plane is told nothing by a map that was kept.
    pub fn stays(&self) -> Duration {
        if self.is_known { self.stays } else { Duration::MAX }
    }

    /// A path is to be used: whether at once.
    pub fn admits(&mut self, peer: NodePublic, path: Path, now: Duration) -> bool {
        if matches!(path, Path::Relay(_)) {
            self.since.get_or_insert(now);
            if now < self.ends(&peer) {
                self.held.insert(peer, path);
                return false;
            }
        } else {
            self.direct.remove(&peer);
        }
        self.held.remove(&peer);
        true
    }

    /// When [`Former::poll`] has something.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.held.keys().map(|peer| self.ends(peer)).min()
    }

    /// A relay that is held back no more.
    pub fn poll(&mut self, now: Duration) -> Option<(NodePublic, Path)> {
        let due = self.held.keys().copied().find(|peer| self.ends(peer) <= now)?;
        self.direct.remove(&due);
        self.held.remove_entry(&due)
    }

    fn ends(&self, peer: &NodePublic) -> Duration {
        match self.is_known {
            true => self.direct.get(peer).copied().unwrap_or_default(),
            false => self.since.unwrap_or_default() + PATIENCE,
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
    fn a_direct_path_of_a_former_agent_stays_while_it_is_asked_whether_it_works() {
        let mut former = Former::default();
        assert!(!former.admits(PEER, RELAY, at(0)));
        former.handle_activity(&[activity(Some(direct()))], at(5));
        assert_eq!((former.poll(at(500)), former.poll_timeout()), (None, Some(at(1005))));
        assert!(former.admits(PEER, direct(), at(600)));
        assert_eq!((former.poll(at(2000)), former.poll_timeout()), (None, None));
        assert!(former.admits(PEER, RELAY, at(700)), "it was lost again");
    }

    #[test]
    fn a_relay_is_used_where_nothing_was_direct_or_nobody_answers() {
        let mut former = Former::default();
        assert!(!former.admits(PEER, RELAY, at(0)));
        former.handle_activity(&[], at(5));
        assert_eq!(former.poll(at(5)), Some((PEER, RELAY)));
        assert!(former.admits(PEER, RELAY, at(6)));
        let mut former = Former::default();
        former.handle_activity(&[activity(Some(direct()))], at(0));
        assert!(!former.admits(PEER, RELAY, at(10)));
        assert_eq!(former.poll(at(1000)), Some((PEER, RELAY)));
        let mut former = Former::default();
        assert!(!former.admits(PEER, RELAY, at(0)));
        assert_eq!(former.poll(at(1000)), Some((PEER, RELAY)), "the data plane says nothing");
    }
}
