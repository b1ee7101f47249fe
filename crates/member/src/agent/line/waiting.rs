//! What waits to be sent: of each state the latest, and of datagrams so many bytes. An end that
//! does not read costs no more memory than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use tailnet::{
    keys::NodePublic,
    line::{FilterPolicy, Identity, Path, Peer, ToPlane, ToSteward},
};

/// The most bytes of datagrams that wait in each direction: what a relay brings in 30 ms at
/// 1 Gbit/s, and the pings of 1,000 peers that are all sought at once.
const MOST_BYTES: usize = 4 << 20;
/// The most logins to relays that wait. A relay's connection asks again.
const MOST_LOGINS: usize = 64;

/// A message that may have to wait.
pub trait Message: Serialize + Sized + Send + 'static {
    /// Where it waits.
    type Waiting: Default + Send;

    /// Has it wait. It may take the place of others.
    fn push(self, waiting: &mut Self::Waiting);

    /// The next to be sent.
    fn pop(waiting: &mut Self::Waiting) -> Option<Self>;
}

/// What waits for the data plane: what is popped first is above.
#[derive(Debug, Default)]
pub struct ForPlane {
    /// What is done in its order.
    orders: VecDeque<ToPlane>,
    /// Before peers: no new peer's packet enters by the old rules.
    filter: Option<FilterPolicy>,
    peers: Option<PeerNews>,
    /// After peers: who hears it can reach them.
    identity: Option<Identity>,
    paths: BTreeMap<NodePublic, Path>,
    handshakes: BTreeSet<NodePublic>,
    outgoing: Datagrams,
    relayed: Datagrams,
}

#[derive(Debug, Default)]
struct PeerNews {
    complete: bool,
    /// `None` is gone.
    peers: BTreeMap<NodePublic, Option<Peer>>,
}

#[derive(Debug, Default)]
struct Datagrams {
    messages: VecDeque<(ToPlane, usize)>,
    bytes: usize,
}

impl Message for ToPlane {
    type Waiting = ForPlane;

    fn push(self, waiting: &mut ForPlane) {
        match self {
            Self::Filter(filter) => waiting.filter = Some(filter),
            Self::Peers { complete, changed, removed } => {
                waiting.push_peers(complete, changed, &removed);
            }
            Self::Identity(identity) => waiting.identity = Some(identity),
            Self::Path { peer, path } => drop(waiting.paths.insert(peer, path)),
            Self::Handshake(peer) => drop(waiting.handshakes.insert(peer)),
            Self::Datagrams(ref some) => {
                let bytes = some.iter().map(|one| size_of_val(one) + one.bytes.len()).sum();
                waiting.outgoing.push(self, bytes);
            }
            Self::Relayed(ref some) => {
                let bytes = some.iter().map(|one| size_of_val(one) + one.bytes.len()).sum();
                waiting.relayed.push(self, bytes);
            }
            Self::Forget => {
                // Of another node key.
                waiting.peers = None;
                waiting.paths.clear();
                waiting.handshakes.clear();
                waiting.push_order(self);
            }
            order => waiting.push_order(order),
        }
    }

    fn pop(waiting: &mut ForPlane) -> Option<Self> {
        let ForPlane { orders, filter, peers, identity, paths, handshakes, outgoing, relayed } =
            waiting;
        orders
            .pop_front()
            .or_else(|| filter.take().map(Self::Filter))
            .or_else(|| peers.take().map(PeerNews::message))
            .or_else(|| identity.take().map(Self::Identity))
            .or_else(|| paths.pop_first().map(|(peer, path)| Self::Path { peer, path }))
            .or_else(|| handshakes.pop_first().map(Self::Handshake))
            .or_else(|| outgoing.pop())
            .or_else(|| relayed.pop())
    }
}

impl Message for ToSteward {
    type Waiting = Option<Self>;

    /// Each wish is all of it.
    fn push(self, waiting: &mut Option<Self>) {
        *waiting = Some(self);
    }

    fn pop(waiting: &mut Option<Self>) -> Option<Self> {
        waiting.take()
    }
}

impl ForPlane {
    fn push_order(&mut self, order: ToPlane) {
        let is_login = |order: &&ToPlane| matches!(order, ToPlane::Login { .. });
        let is_full = || self.orders.iter().filter(is_login).count() >= MOST_LOGINS;
        // Two that are the same, one behind the other, are one.
        if self.orders.back() == Some(&order) || is_login(&&order) && is_full() {
            return;
        }
        self.orders.push_back(order);
    }

    fn push_peers(&mut self, complete: bool, changed: Vec<Peer>, removed: &[NodePublic]) {
        let news = self.peers.get_or_insert_default();
        if complete {
            *news = PeerNews { complete, peers: BTreeMap::new() };
        }
        for key in removed {
            news.peers.insert(*key, None);
        }
        news.peers.extend(changed.into_iter().map(|peer| (peer.key, Some(peer))));
        let is_there = |key: &NodePublic| match news.peers.get(key) {
            Some(peer) => peer.is_some(),
            None => !news.complete,
        };
        self.paths.retain(|key, _| is_there(key));
        self.handshakes.retain(is_there);
    }
}

impl PeerNews {
    fn message(self) -> ToPlane {
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        for (key, peer) in self.peers {
            match peer {
                Some(peer) => changed.push(peer),
                None => removed.push(key),
            }
        }
        ToPlane::Peers { complete: self.complete, changed, removed }
    }
}

impl Datagrams {
    /// What finds no room is lost, as it may be in any queue of a network.
    fn push(&mut self, message: ToPlane, bytes: usize) {
        if self.bytes + bytes <= MOST_BYTES {
            self.bytes += bytes;
            self.messages.push_back((message, bytes));
        }
    }

    fn pop(&mut self) -> Option<ToPlane> {
        let (message, bytes) = self.messages.pop_front()?;
        self.bytes -= bytes;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use tailnet::line::Relayed;

    use super::*;

    fn key(byte: u8) -> NodePublic {
        NodePublic([byte; 32])
    }

    fn peer(byte: u8, keepalive: u16) -> Peer {
        Peer { key: key(byte), allowed_ips: Box::default(), keepalive }
    }

    fn peers(complete: bool, changed: &[Peer], removed: &[u8]) -> ToPlane {
        let removed = removed.iter().map(|byte| key(*byte)).collect();
        ToPlane::Peers { complete, changed: changed.to_vec(), removed }
    }

    fn datagrams(len: usize) -> Relayed {
        Relayed { region: 1, from: key(1), bytes: vec![0; len], segment: 1000 }
    }

    fn drained(messages: impl IntoIterator<Item = ToPlane>) -> Vec<ToPlane> {
        let mut waiting = ForPlane::default();
        messages.into_iter().for_each(|message| message.push(&mut waiting));
        std::iter::from_fn(|| ToPlane::pop(&mut waiting)).collect()
    }

    #[test]
    fn a_plane_that_does_not_read_costs_a_bounded_number_of_bytes() {
        let relayed = || ToPlane::Relayed(vec![datagrams(60_000)]);
        let kept = drained((0..1000).map(|_| relayed())).len();
        assert!((60..=70).contains(&kept), "{kept} of 60 kB");
        let logins = (0..10_000).map(|id| ToPlane::Login { id, server: [0; 32] });
        assert_eq!(drained(logins).len(), MOST_LOGINS);
        let path = |port: u16| ToPlane::Path { peer: key(1), path: Path::Relay(port) };
        assert_eq!(drained((0..1000).map(path)), [path(999)]);
    }

    #[test]
    fn datagrams_do_not_keep_state_from_being_sent() {
        let data = ToPlane::Relayed(vec![datagrams(MOST_BYTES / 2)]);
        let changed = peers(false, &[peer(1, 0)], &[]);
        let kept = drained([data.clone(), data.clone(), changed.clone()]);
        assert_eq!(kept, [changed, data]);
    }

    #[test]
    fn changes_of_peers_that_wait_become_one() {
        let kept = drained([
            peers(false, &[peer(1, 0), peer(2, 0)], &[]),
            peers(false, &[peer(1, 9)], &[2, 3]),
            peers(false, &[peer(3, 0)], &[]),
        ]);
        assert_eq!(kept, [peers(false, &[peer(1, 9), peer(3, 0)], &[2])]);
        let kept = drained([
            peers(false, &[peer(1, 0)], &[4]),
            peers(true, &[peer(2, 0)], &[]),
            peers(false, &[peer(3, 0)], &[]),
        ]);
        assert_eq!(kept, [peers(true, &[peer(2, 0), peer(3, 0)], &[])]);
    }

    #[test]
    fn a_path_of_a_peer_that_is_gone_is_not_told() {
        let path = |byte| ToPlane::Path { peer: key(byte), path: Path::Relay(1) };
        let gone = peers(false, &[], &[1]);
        let kept = drained([path(1), ToPlane::Handshake(key(1)), path(2), gone.clone()]);
        assert_eq!(kept, [gone, path(2)]);
        let all = peers(true, &[peer(2, 0)], &[]);
        assert_eq!(drained([path(1), path(2), all.clone()]), [all, path(2)]);
        assert_eq!(drained([path(1), ToPlane::Forget]), [ToPlane::Forget]);
    }

    #[test]
    fn who_this_node_is_is_told_after_its_peers() {
        let identity = |byte| {
            let addresses = vec![[100, 64, 0, byte].into()];
            ToPlane::Identity(Identity { addresses, ..Identity::default() })
        };
        let peers = peers(true, &[peer(1, 0)], &[]);
        let filter = ToPlane::Filter(FilterPolicy::default());
        let kept = drained([identity(1), identity(2), peers.clone(), filter.clone()]);
        assert_eq!(kept, [filter, peers, identity(2)]);
    }

    #[test]
    fn what_is_told_of_keys_stays_in_its_order() {
        let [first, second] = [ToPlane::UseCandidate(key(1)), ToPlane::UseCandidate(key(2))];
        let orders = [first, ToPlane::Forget, second, ToPlane::Forget];
        assert_eq!(drained(orders.clone()), orders);
        assert_eq!(drained([ToPlane::MakeCandidate, ToPlane::MakeCandidate]).len(), 1);
    }
}
