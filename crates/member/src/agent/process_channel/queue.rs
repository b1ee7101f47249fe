//! The queues of a line: the latest value of each state, and a limited number of datagrams. A
//! process that does not read costs no more memory than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipc::{FilterPolicy, Identity, Path, Peer, ToDataPlane, ToSteward};
use serde::Serialize;
use tailnet::keys::NodePublic;

/// The most bytes of queued datagrams in each direction: the data of a relay in 30 ms at 1 Gbit/s,
/// or the pings to 1,000 peers at once.
const MAX_DATAGRAM_BYTES: usize = 4 << 20;
/// The most queued logins. The relays' task requests them again.
const MAX_LOGINS: usize = 64;

/// A message that can be queued.
pub(crate) trait Message: Serialize + Sized + Send + 'static {
    /// The type of its queue.
    type Queue: Default + Send;

    /// Adds the message, which may replace others.
    fn push(self, queue: &mut Self::Queue);

    /// Takes the next message.
    fn pop(queue: &mut Self::Queue) -> Option<Self>;
}

/// Messages to the data plane. The fields are in the order in which they are sent.
#[derive(Debug, Default)]
pub(crate) struct PlaneQueue {
    /// Messages in a fixed order.
    commands: VecDeque<ToDataPlane>,
    /// Before the peers, so that no packet of a new peer passes by the old rules.
    filter: Option<FilterPolicy>,
    peers: Option<PeerChanges>,
    /// After the peers, so that its receivers can reach them.
    identity: Option<Identity>,
    paths: BTreeMap<NodePublic, Path>,
    handshakes: BTreeSet<NodePublic>,
    outgoing: Datagrams,
    relayed: Datagrams,
}

#[derive(Debug, Default)]
struct PeerChanges {
    complete: bool,
    /// `None` for a removed peer.
    peers: BTreeMap<NodePublic, Option<Peer>>,
}

#[derive(Debug, Default)]
struct Datagrams {
    messages: VecDeque<(ToDataPlane, usize)>,
    bytes: usize,
}

impl Message for ToDataPlane {
    type Queue = PlaneQueue;

    fn push(self, queue: &mut PlaneQueue) {
        match self {
            Self::Filter(filter) => queue.filter = Some(filter),
            Self::Peers { complete, changed, removed } => {
                queue.push_peers(complete, changed, &removed);
            }
            Self::Identity(identity) => queue.identity = Some(identity),
            Self::Path { peer, path } => drop(queue.paths.insert(peer, path)),
            Self::Handshake(peer) => drop(queue.handshakes.insert(peer)),
            Self::Datagrams(ref some) => {
                let bytes = some.iter().map(|one| size_of_val(one) + one.bytes.len()).sum();
                queue.outgoing.push(self, bytes);
            }
            Self::Relayed(ref some) => {
                let bytes = some.iter().map(|one| size_of_val(one) + one.bytes.len()).sum();
                queue.relayed.push(self, bytes);
            }
            Self::Reset => {
                // They belong to another node key.
                queue.peers = None;
                queue.paths.clear();
                queue.handshakes.clear();
                queue.push_command(self);
            }
            command => queue.push_command(command),
        }
    }

    fn pop(queue: &mut PlaneQueue) -> Option<Self> {
        let PlaneQueue { commands, filter, peers, identity, paths, handshakes, outgoing, relayed } =
            queue;
        commands
            .pop_front()
            .or_else(|| filter.take().map(Self::Filter))
            .or_else(|| peers.take().map(PeerChanges::message))
            .or_else(|| identity.take().map(Self::Identity))
            .or_else(|| paths.pop_first().map(|(peer, path)| Self::Path { peer, path }))
            .or_else(|| handshakes.pop_first().map(Self::Handshake))
            .or_else(|| outgoing.pop())
            .or_else(|| relayed.pop())
    }
}

impl Message for ToSteward {
    type Queue = Option<Self>;

    /// Each message contains the whole desired state.
    fn push(self, queue: &mut Option<Self>) {
        *queue = Some(self);
    }

    fn pop(queue: &mut Option<Self>) -> Option<Self> {
        queue.take()
    }
}

impl PlaneQueue {
    fn push_command(&mut self, command: ToDataPlane) {
        let is_login = |command: &&ToDataPlane| matches!(command, ToDataPlane::Login { .. });
        let is_full = || self.commands.iter().filter(is_login).count() >= MAX_LOGINS;
        // Two equal messages in sequence count as one.
        if self.commands.back() == Some(&command) || is_login(&&command) && is_full() {
            return;
        }
        self.commands.push_back(command);
    }

    fn push_peers(&mut self, complete: bool, changed: Vec<Peer>, removed: &[NodePublic]) {
        let changes = self.peers.get_or_insert_default();
        if complete {
            *changes = PeerChanges { complete, peers: BTreeMap::new() };
        }
        for key in removed {
            changes.peers.insert(*key, None);
        }
        changes.peers.extend(changed.into_iter().map(|peer| (peer.key, Some(peer))));
        let is_there = |key: &NodePublic| match changes.peers.get(key) {
            Some(peer) => peer.is_some(),
            None => !changes.complete,
        };
        self.paths.retain(|key, _| is_there(key));
        self.handshakes.retain(is_there);
    }
}

impl PeerChanges {
    fn message(self) -> ToDataPlane {
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        for (key, peer) in self.peers {
            match peer {
                Some(peer) => changed.push(peer),
                None => removed.push(key),
            }
        }
        ToDataPlane::Peers { complete: self.complete, changed, removed }
    }
}

impl Datagrams {
    /// Drops the message if the queue is full, as a network does.
    fn push(&mut self, message: ToDataPlane, bytes: usize) {
        if self.bytes + bytes <= MAX_DATAGRAM_BYTES {
            self.bytes += bytes;
            self.messages.push_back((message, bytes));
        }
    }

    fn pop(&mut self) -> Option<ToDataPlane> {
        let (message, bytes) = self.messages.pop_front()?;
        self.bytes -= bytes;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use ipc::Relayed;

    use super::*;

    fn key(byte: u8) -> NodePublic {
        NodePublic([byte; 32])
    }

    fn peer(byte: u8, keepalive: u16) -> Peer {
        Peer { key: key(byte), allowed_ips: Box::default(), keepalive }
    }

    fn peers(complete: bool, changed: &[Peer], removed: &[u8]) -> ToDataPlane {
        let removed = removed.iter().map(|byte| key(*byte)).collect();
        ToDataPlane::Peers { complete, changed: changed.to_vec(), removed }
    }

    fn datagrams(len: usize) -> Relayed {
        Relayed { region: 1, from: key(1), bytes: vec![0; len], segment: 1000 }
    }

    fn drained(messages: impl IntoIterator<Item = ToDataPlane>) -> Vec<ToDataPlane> {
        let mut queue = PlaneQueue::default();
        messages.into_iter().for_each(|message| message.push(&mut queue));
        std::iter::from_fn(|| ToDataPlane::pop(&mut queue)).collect()
    }

    #[test]
    fn data_plane_that_does_not_read_costs_bounded_memory() {
        let relayed = || ToDataPlane::Relayed(vec![datagrams(60_000)]);
        let sent = drained((0..1000).map(|_| relayed())).len();
        assert!((60..=70).contains(&sent), "{sent} of 60 kB");
        let logins = (0..10_000).map(|id| ToDataPlane::Login { id, server: [0; 32] });
        assert_eq!(drained(logins).len(), MAX_LOGINS);
        let path = |port: u16| ToDataPlane::Path { peer: key(1), path: Path::Relay(port) };
        assert_eq!(drained((0..1000).map(path)), [path(999)]);
    }

    #[test]
    fn datagrams_do_not_delay_state() {
        let data = ToDataPlane::Relayed(vec![datagrams(MAX_DATAGRAM_BYTES / 2)]);
        let changed = peers(false, &[peer(1, 0)], &[]);
        let sent = drained([data.clone(), data.clone(), changed.clone()]);
        assert_eq!(sent, [changed, data]);
    }

    #[test]
    fn queued_peer_changes_are_merged() {
        let sent = drained([
            peers(false, &[peer(1, 0), peer(2, 0)], &[]),
            peers(false, &[peer(1, 9)], &[2, 3]),
            peers(false, &[peer(3, 0)], &[]),
        ]);
        assert_eq!(sent, [peers(false, &[peer(1, 9), peer(3, 0)], &[2])]);
        let sent = drained([
            peers(false, &[peer(1, 0)], &[4]),
            peers(true, &[peer(2, 0)], &[]),
            peers(false, &[peer(3, 0)], &[]),
        ]);
        assert_eq!(sent, [peers(true, &[peer(2, 0), peer(3, 0)], &[])]);
    }

    #[test]
    fn path_of_a_removed_peer_is_not_sent() {
        let path = |byte| ToDataPlane::Path { peer: key(byte), path: Path::Relay(1) };
        let gone = peers(false, &[], &[1]);
        let sent = drained([path(1), ToDataPlane::Handshake(key(1)), path(2), gone.clone()]);
        assert_eq!(sent, [gone, path(2)]);
        let all = peers(true, &[peer(2, 0)], &[]);
        assert_eq!(drained([path(1), path(2), all.clone()]), [all, path(2)]);
        assert_eq!(drained([path(1), ToDataPlane::Reset]), [ToDataPlane::Reset]);
    }

    #[test]
    fn identity_is_sent_after_the_peers() {
        let identity = |byte| {
            let addresses = vec![[100, 64, 0, byte].into()];
            ToDataPlane::Identity(Identity { addresses, ..Identity::default() })
        };
        let peers = peers(true, &[peer(1, 0)], &[]);
        let filter = ToDataPlane::Filter(FilterPolicy::default());
        let sent = drained([identity(1), identity(2), peers.clone(), filter.clone()]);
        assert_eq!(sent, [filter, peers, identity(2)]);
    }

    #[test]
    fn key_commands_remain_in_order() {
        let [first, second] =
            [ToDataPlane::UseCandidate(key(1)), ToDataPlane::UseCandidate(key(2))];
        let commands = [first, ToDataPlane::Reset, second, ToDataPlane::Reset];
        assert_eq!(drained(commands.clone()), commands);
        assert_eq!(drained([ToDataPlane::MakeCandidate, ToDataPlane::MakeCandidate]).len(), 1);
    }
}
