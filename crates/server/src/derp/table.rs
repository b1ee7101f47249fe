//! Which clients are connected to the relay, and which to others of its mesh.
//!
//! ```text
//!   near: a client of this relay ──────────── its queue
//!   far:  a client of another ── the queue of the link there, the oldest link first
//! ```
//!
//! Where a client is both, it is near.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
};

use bytes::BytesMut;
use tailnet::{
    derp::{
        GoneReason, kind,
        mesh::{present, write_present},
        write_frame,
    },
    keys::NodePublic,
};
use tokio::sync::Notify;

use super::queue::Queue;
use crate::counted;

/// The most clients of other relays: more than one network has.
const MOST_FAR: usize = 1 << 17;
/// The most receivers of one far client that are told when it goes.
const MOST_HEARD: usize = 4096;
/// The same of all far clients. When there are more, all are forgotten.
const MOST_HEARD_OF_ALL: usize = 1 << 17;

/// A connection: a client's, or this relay's own to another.
#[derive(Debug)]
pub struct Client {
    /// The client's key.
    pub key: NodePublic,
    /// What waits for it.
    pub queue: Queue,
    /// Whether it may do what relays of the mesh do.
    pub is_of_mesh: bool,
    /// Where it comes from.
    pub at: SocketAddr,
    /// Whether what is sent to its key goes to it.
    is_active: AtomicBool,
    /// It is to be closed.
    closed: Notify,
}

/// How a client is reached.
#[derive(Clone, Debug)]
pub enum Way {
    /// By its own connection.
    Near(Arc<Client>),
    /// By that of another relay.
    Far(Arc<Client>),
}

/// All connections. Of several with one key the one that sent last is sent to.
#[derive(Debug, Default)]
pub struct Table {
    all: RwLock<All>,
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct All {
    near: HashMap<NodePublic, Arc<Client>>,
    far: HashMap<NodePublic, Vec<Arc<Client>>>,
    /// Relays that are told which clients are near.
    watchers: Vec<Arc<Client>>,
    /// By far client: the near ones that it sent to.
    heard: HashMap<NodePublic, HashSet<NodePublic>>,
    /// The number of these near ones.
    pairs: usize,
}

impl Client {
    /// One that has logged in.
    pub fn new(
        key: NodePublic,
        at: SocketAddr,
        is_of_mesh: bool,
        counted: &'static counted::Relay,
    ) -> Self {
        let queue = if is_of_mesh { Queue::of_relay(counted) } else { Queue::new(counted) };
        let (is_active, closed) = (AtomicBool::new(false), Notify::new());
        Self { key, queue, is_of_mesh, at, is_active, closed }
    }

    /// Ends when the connection is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    fn flags(&self) -> u8 {
        if self.is_of_mesh { present::MESH } else { present::REGULAR }
    }
}

impl Way {
    /// The connection.
    pub fn client(&self) -> &Arc<Client> {
        match self {
            Self::Near(client) | Self::Far(client) => client,
        }
    }
}

impl Table {
    /// A client has logged in.
    pub fn insert(&self, client: &Arc<Client>) {
        let mut all = self.write();
        client.is_active.store(true, Relaxed);
        match all.near.insert(client.key, Arc::clone(client)) {
            Some(other) if Arc::ptr_eq(&other, client) => {}
            Some(other) => other.is_active.store(false, Relaxed),
            None => all.tell_present(client),
        }
    }

    /// A client sends.
    pub fn note_active(&self, client: &Arc<Client>) {
        if !client.is_active.load(Relaxed) {
            self.insert(client);
        }
    }

    /// A connection ended. Whether its client is gone from all relays: it may have another.
    pub fn remove(&self, client: &Arc<Client>) -> bool {
        let mut all = self.write();
        client.is_active.store(false, Relaxed);
        all.watchers.retain(|watcher| !Arc::ptr_eq(watcher, client));
        let is_last = all.near.get(&client.key).is_some_and(|other| Arc::ptr_eq(other, client));
        if !is_last {
            return false;
        }
        all.near.remove(&client.key);
        let words = gone(&client.key, GoneReason::Disconnected);
        all.watchers.iter().for_each(|watcher| watcher.queue.fill().presence(&words));
        !all.far.contains_key(&client.key)
    }

    /// How the client with this key is reached.
    pub fn way(&self, key: &NodePublic) -> Option<Way> {
        let all = self.read();
        let far = || Some(Way::Far(Arc::clone(all.far.get(key)?.first()?)));
        all.near.get(key).cloned().map(Way::Near).or_else(far)
    }

    /// Another whenever ways may be others.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Has a relay of the mesh be told which clients are near, now and later.
    pub fn watch(&self, watcher: &Arc<Client>) {
        let mut all = self.write();
        if all.watchers.iter().any(|other| Arc::ptr_eq(other, watcher)) {
            return;
        }
        let mut words = BytesMut::new();
        for client in all.near.values() {
            write_present(&mut words, &client.key, client.at, client.flags());
        }
        watcher.queue.fill().presence(&words);
        all.watchers.push(Arc::clone(watcher));
    }

    /// Closes a client's connection.
    pub fn close(&self, key: &NodePublic) {
        if let Some(client) = self.read().near.get(key) {
            client.closed.notify_one();
        }
    }

    /// A client is connected to the relay that this link leads to. Returns false if there are too many.
    #[must_use]
    pub fn arrive(&self, link: &Arc<Client>, key: NodePublic) -> bool {
        let mut all = self.write();
        if all.far.len() >= MOST_FAR && !all.far.contains_key(&key) {
            return false;
        }
        let links = all.far.entry(key).or_default();
        if !links.iter().any(|other| Arc::ptr_eq(other, link)) {
            links.push(Arc::clone(link));
        }
        true
    }

    /// It is not any more.
    pub fn leave(&self, link: &Arc<Client>, key: &NodePublic) {
        self.write().leave(link, key);
    }

    /// A link ended.
    pub fn lose(&self, link: &Arc<Client>) {
        let mut all = self.write();
        let by_it = |links: &Vec<Arc<Client>>| links.iter().any(|other| Arc::ptr_eq(other, link));
        let lost: Vec<NodePublic> =
            all.far.iter().filter(|(_, links)| by_it(links)).map(|(key, _)| *key).collect();
        lost.iter().for_each(|key| all.leave(link, key));
    }

    /// A client sent to one that is not here, and is told so. A relay of the mesh is told in line with
    /// the clients that come and go: it would take one that came back for one that is gone.
    pub fn tell_not_here(&self, sender: &Client, peer: &NodePublic) {
        let words = gone(peer, GoneReason::NotHere);
        if !sender.is_of_mesh {
            sender.queue.fill().control(&words);
            return;
        }
        let all = self.read();
        if !all.near.contains_key(peer) {
            sender.queue.fill().presence(&words);
        }
    }

    /// A far client sends to a near one, which is told when it goes.
    pub fn hear(&self, from: NodePublic, to: NodePublic) {
        // No way is another by that.
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.far.contains_key(&from) {
            if all.pairs >= MOST_HEARD_OF_ALL {
                all.heard.clear();
                all.pairs = 0;
            }
            let heard = all.heard.entry(from).or_default();
            if heard.len() < MOST_HEARD && heard.insert(to) {
                all.pairs += 1;
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        let all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // A way that is asked for after the new number was seen waits, and is the new one.
        self.version.fetch_add(1, AcqRel);
        all
    }
}

impl All {
    fn tell_present(&self, client: &Client) {
        let mut words = BytesMut::new();
        write_present(&mut words, &client.key, client.at, client.flags());
        self.watchers.iter().for_each(|watcher| watcher.queue.fill().presence(&words));
    }

    fn leave(&mut self, link: &Arc<Client>, key: &NodePublic) {
        let Some(links) = self.far.get_mut(key) else { return };
        links.retain(|other| !Arc::ptr_eq(other, link));
        if !links.is_empty() {
            return;
        }
        self.far.remove(key);
        let heard = self.heard.remove(key).unwrap_or_default();
        self.pairs -= heard.len();
        if self.near.contains_key(key) {
            return;
        }
        let words = gone(key, GoneReason::Disconnected);
        for client in heard.iter().filter_map(|to| self.near.get(to)) {
            client.queue.fill().control(&words);
        }
    }
}

/// The frame that says that a peer is not connected.
pub fn gone(peer: &NodePublic, reason: GoneReason) -> BytesMut {
    let mut out = BytesMut::new();
    write_frame(&mut out, kind::PEER_GONE, &[&peer.0[..], &[reason.byte()]].concat());
    out
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tailnet::derp::{Decoder, FromRelay, mesh::read_present};

    use super::*;

    fn client(number: u8) -> Arc<Client> {
        let at = "192.0.2.1:7".parse().unwrap();
        Arc::new(Client::new(NodePublic([number; 32]), at, number >= 100, counted::of_tests()))
    }

    /// What it was told: clients, and whether each is present.
    fn told(client: &Client) -> Vec<(u8, bool)> {
        let (mut out, mut decoder) = (BytesMut::new(), Decoder::default());
        let _ = client.queue.take(&mut out).now_or_never();
        let frames = std::iter::from_fn(|| decoder.poll_frame(&mut out).unwrap());
        let read = |(kind, contents): (u8, bytes::Bytes)| match kind {
            kind::PEER_PRESENT => (read_present(&contents).unwrap().0[0], true),
            _ => match FromRelay::read(kind, contents) {
                Ok(Some(FromRelay::PeerGone { peer, .. })) => (peer.0[0], false),
                other => panic!("{other:?}"),
            },
        };
        frames.map(read).collect()
    }

    fn is_near(table: &Table, client: &Arc<Client>) -> bool {
        let way = table.way(&client.key);
        matches!(way, Some(Way::Near(other)) if Arc::ptr_eq(&other, client))
    }

    fn is_by(table: &Table, key: u8, link: &Arc<Client>) -> bool {
        let way = table.way(&NodePublic([key; 32]));
        matches!(way, Some(Way::Far(other)) if Arc::ptr_eq(&other, link))
    }

    #[test]
    fn of_two_with_one_key_the_one_that_sent_last_is_sent_to() {
        let (table, old, new) = (Table::default(), client(1), client(1));
        table.insert(&old);
        table.insert(&new);
        assert!(is_near(&table, &new));
        let version = table.version();
        table.note_active(&old);
        assert!(is_near(&table, &old) && table.version() != version);
        assert!(!table.remove(&new));
        assert!(is_near(&table, &old));
        assert!(table.remove(&old));
        assert!(table.way(&old.key).is_none());
    }

    #[test]
    fn a_relay_that_watches_is_told_of_each_client_once() {
        let (table, watcher, there, late, again) =
            (Table::default(), client(100), client(1), client(2), client(2));
        table.insert(&there);
        table.watch(&watcher);
        table.watch(&watcher);
        assert_eq!(told(&watcher), [(1, true)]);
        table.insert(&late);
        table.insert(&again);
        table.note_active(&late);
        table.remove(&late);
        assert_eq!(told(&watcher), [(2, true), (2, false)]);
        assert!(!table.remove(&again), "it was another's turn");
        table.remove(&watcher);
        table.insert(&again);
        assert_eq!(told(&watcher), []);
    }

    #[test]
    fn a_relay_is_told_in_order_that_a_client_is_not_here_and_that_it_is_again() {
        let (table, relay, one) = (Table::default(), client(100), client(1));
        table.watch(&relay);
        table.insert(&one);
        table.remove(&one);
        table.tell_not_here(&relay, &one.key);
        table.insert(&one);
        // The datagram that is late was looked at before.
        table.tell_not_here(&relay, &one.key);
        assert_eq!(told(&relay), [(1, true), (1, false), (1, false), (1, true)]);
        table.tell_not_here(&one, &client(2).key);
        assert_eq!(told(&one), [(2, false)]);
    }

    #[test]
    fn a_far_client_is_reached_by_a_link_until_that_ends_and_near_is_before_far() {
        let (table, one, other, near) = (Table::default(), client(100), client(101), client(1));
        assert!(table.arrive(&one, near.key));
        assert!(table.arrive(&other, near.key));
        assert!(is_by(&table, 1, &one));
        table.insert(&near);
        assert!(is_near(&table, &near));
        assert!(!table.remove(&near), "it is far yet");
        table.lose(&one);
        assert!(is_by(&table, 1, &other));
        table.leave(&other, &near.key);
        assert!(table.way(&near.key).is_none() && table.read().far.is_empty());
    }

    #[test]
    fn a_client_that_heard_a_far_one_is_told_when_that_is_gone_from_the_region() {
        let (table, link, other, near) = (Table::default(), client(100), client(101), client(1));
        let far = NodePublic([2; 32]);
        table.insert(&near);
        table.hear(far, near.key);
        assert!(table.arrive(&link, far));
        table.leave(&link, &far);
        assert_eq!(told(&near), [], "it was none of the mesh's when it was heard");
        assert!(table.arrive(&link, far));
        assert!(table.arrive(&other, far));
        table.hear(far, near.key);
        table.lose(&link);
        assert_eq!(told(&near), []);
        table.lose(&other);
        assert_eq!(told(&near), [(2, false)]);
    }

    #[test]
    fn what_another_relay_says_of_its_clients_has_bounded_memory() {
        let (table, link) = (Table::default(), client(100));
        let key = |number: usize| {
            let mut key = [3; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            NodePublic(key)
        };
        assert!((0..MOST_FAR).all(|number| table.arrive(&link, key(number))));
        assert!(!table.arrive(&link, key(MOST_FAR)) && table.arrive(&link, key(0)));
        for to in 0..MOST_HEARD + 9 {
            table.hear(key(0), key(to));
        }
        assert_eq!(table.read().pairs, MOST_HEARD);
        for to in 0..2 * MOST_HEARD_OF_ALL {
            table.hear(key(1 + to % 100), key(to));
        }
        let counted: usize = table.read().heard.values().map(HashSet::len).sum();
        assert_eq!(table.read().pairs, counted);
        assert!(counted <= MOST_HEARD_OF_ALL, "{counted}");
        table.lose(&link);
        let all = table.read();
        assert_eq!((all.far.len(), all.heard.len(), all.pairs), (0, 0, 0));
    }

    #[test]
    fn a_connection_is_closed_by_its_key() {
        let (table, one) = (Table::default(), client(1));
        table.insert(&one);
        table.close(&client(2).key);
        assert!(one.closed().now_or_never().is_none());
        table.close(&one.key);
        assert!(one.closed().now_or_never().is_some());
    }
}
