//! Table of the clients that are connected to this relay, and of those connected to other relays of
//! the mesh.
//!
//! ```text
//!   local:  client of this relay ──── its queue
//!   remote: client of another relay ── queue of the link to that relay, the oldest link first
//! ```
//!
//! If a client is connected to both, the local connection is used.

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
        relay_mesh::{present, write_present},
        write_frame,
    },
    keys::NodePublic,
};
use tokio::sync::Notify;

use super::queue::Queue;
use crate::network::counters;

/// Maximum number of clients of other relays, more than one network has.
const MOST_REMOTE: usize = 1 << 17;
/// Maximum number of receivers of one remote client that are notified when it disconnects.
const MOST_RECEIVERS: usize = 4096;
/// The same for all remote clients together. When it is exceeded, all receivers are removed.
const MOST_PAIRS: usize = 1 << 17;

/// A connection of a client, or of this relay to another relay.
#[derive(Debug)]
pub(super) struct Client {
    /// The client's key.
    pub key: NodePublic,
    /// Frames for the client.
    pub queue: Queue,
    /// Whether the connection has the rights of a mesh relay.
    pub is_of_mesh: bool,
    /// Source address.
    pub at: SocketAddr,
    /// Whether frames for the key are sent to this connection.
    is_active: AtomicBool,
    /// Notified when the connection must be closed.
    closed: Notify,
}

/// How a client is reached.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// Over its own connection.
    Local(Arc<Client>),
    /// Over the link to another relay.
    Remote(Arc<Client>),
}

/// All connections. Of several connections with the same key, the one that sent last receives.
#[derive(Debug, Default)]
pub(super) struct Table {
    all: RwLock<All>,
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct All {
    local: HashMap<NodePublic, Arc<Client>>,
    remote: HashMap<NodePublic, Vec<Arc<Client>>>,
    /// Relays that are notified of local clients.
    watchers: Vec<Arc<Client>>,
    /// For each remote client, the local clients that it sent to.
    conversations: HashMap<NodePublic, HashSet<NodePublic>>,
    /// Total number of these local clients.
    pairs: usize,
}

impl Client {
    /// Creates the connection of a client that has logged in.
    pub(super) fn new(
        key: NodePublic,
        at: SocketAddr,
        is_of_mesh: bool,
        counters: &'static counters::RelayCounters,
    ) -> Self {
        let queue = if is_of_mesh { Queue::of_relay(counters) } else { Queue::new(counters) };
        let (is_active, closed) = (AtomicBool::new(false), Notify::new());
        Self { key, queue, is_of_mesh, at, is_active, closed }
    }

    /// Returns when the connection must be closed.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    fn flags(&self) -> u8 {
        if self.is_of_mesh { present::MESH } else { present::REGULAR }
    }
}

impl Route {
    /// The connection to send to.
    pub(super) fn client(&self) -> &Arc<Client> {
        match self {
            Self::Local(client) | Self::Remote(client) => client,
        }
    }
}

impl Table {
    /// Adds a client that has logged in.
    pub(super) fn insert(&self, client: &Arc<Client>) {
        let mut all = self.write();
        client.is_active.store(true, Relaxed);
        match all.local.insert(client.key, Arc::clone(client)) {
            Some(other) if Arc::ptr_eq(&other, client) => {}
            Some(other) => other.is_active.store(false, Relaxed),
            None => all.notify_present(client),
        }
    }

    /// Notes that a connection sent a frame.
    pub(super) fn note_active(&self, client: &Arc<Client>) {
        if !client.is_active.load(Relaxed) {
            self.insert(client);
        }
    }

    /// Removes a connection. Returns whether its client is gone from all relays. It may have
    /// another connection.
    pub(super) fn remove(&self, client: &Arc<Client>) -> bool {
        let mut all = self.write();
        client.is_active.store(false, Relaxed);
        all.watchers.retain(|watcher| !Arc::ptr_eq(watcher, client));
        let is_last = all.local.get(&client.key).is_some_and(|other| Arc::ptr_eq(other, client));
        if !is_last {
            return false;
        }
        all.local.remove(&client.key);
        let frame = gone(&client.key, GoneReason::Disconnected);
        all.watchers.iter().for_each(|watcher| watcher.queue.fill().presence(&frame));
        !all.remote.contains_key(&client.key)
    }

    /// The route to the client with this key.
    pub(super) fn route(&self, key: &NodePublic) -> Option<Route> {
        let all = self.read();
        let remote = || Some(Route::Remote(Arc::clone(all.remote.get(key)?.first()?)));
        all.local.get(key).cloned().map(Route::Local).or_else(remote)
    }

    /// A number that changes whenever a route may have changed.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Notifies a relay of the mesh of all local clients, now and later.
    pub(super) fn watch(&self, watcher: &Arc<Client>) {
        let mut all = self.write();
        if all.watchers.iter().any(|other| Arc::ptr_eq(other, watcher)) {
            return;
        }
        let mut frame = BytesMut::new();
        for client in all.local.values() {
            write_present(&mut frame, &client.key, client.at, client.flags());
        }
        watcher.queue.fill().presence(&frame);
        all.watchers.push(Arc::clone(watcher));
    }

    /// Closes a client's connection.
    pub(super) fn close(&self, key: &NodePublic) {
        if let Some(client) = self.read().local.get(key) {
            client.closed.notify_one();
        }
    }

    /// Adds a client that is connected to the relay at the other end of a link. Returns false if
    /// there are too many.
    #[must_use]
    pub(super) fn add_remote(&self, link: &Arc<Client>, key: NodePublic) -> bool {
        let mut all = self.write();
        if all.remote.len() >= MOST_REMOTE && !all.remote.contains_key(&key) {
            return false;
        }
        let links = all.remote.entry(key).or_default();
        if !links.iter().any(|other| Arc::ptr_eq(other, link)) {
            links.push(Arc::clone(link));
        }
        true
    }

    /// Removes a client from a link.
    pub(super) fn remove_remote(&self, link: &Arc<Client>, key: &NodePublic) {
        self.write().remove_remote(link, key);
    }

    /// Removes a link with all its clients.
    pub(super) fn remove_link(&self, link: &Arc<Client>) {
        let mut all = self.write();
        let by_it = |links: &Vec<Arc<Client>>| links.iter().any(|other| Arc::ptr_eq(other, link));
        let lost: Vec<NodePublic> =
            all.remote.iter().filter(|(_, links)| by_it(links)).map(|(key, _)| *key).collect();
        lost.iter().for_each(|key| all.remove_remote(link, key));
    }

    /// Notifies the sender of a datagram that the peer is not connected. A relay of the mesh
    /// gets this in order with the presence frames: otherwise, it could take a client that
    /// reconnected for one that left.
    pub(super) fn send_not_here(&self, sender: &Client, peer: &NodePublic) {
        let frame = gone(peer, GoneReason::NotHere);
        if !sender.is_of_mesh {
            sender.queue.fill().control(&frame);
            return;
        }
        let all = self.read();
        if !all.local.contains_key(peer) {
            sender.queue.fill().presence(&frame);
        }
    }

    /// Notes that a remote client sent to a local one, which is notified when the remote client
    /// disconnects.
    pub(super) fn note_remote_sender(&self, from: NodePublic, to: NodePublic) {
        // This changes no route, so the version stays.
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.remote.contains_key(&from) {
            if all.pairs >= MOST_PAIRS {
                all.conversations.clear();
                all.pairs = 0;
            }
            let conversations = all.conversations.entry(from).or_default();
            if conversations.len() < MOST_RECEIVERS && conversations.insert(to) {
                all.pairs += 1;
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        let all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // A lookup that starts after the new version was seen waits for the lock, and finds
        // the new routes.
        self.version.fetch_add(1, AcqRel);
        all
    }
}

impl All {
    fn notify_present(&self, client: &Client) {
        let mut frame = BytesMut::new();
        write_present(&mut frame, &client.key, client.at, client.flags());
        self.watchers.iter().for_each(|watcher| watcher.queue.fill().presence(&frame));
    }

    fn remove_remote(&mut self, link: &Arc<Client>, key: &NodePublic) {
        let Some(links) = self.remote.get_mut(key) else { return };
        links.retain(|other| !Arc::ptr_eq(other, link));
        if !links.is_empty() {
            return;
        }
        self.remote.remove(key);
        let conversations = self.conversations.remove(key).unwrap_or_default();
        self.pairs -= conversations.len();
        if self.local.contains_key(key) {
            return;
        }
        let frame = gone(key, GoneReason::Disconnected);
        for client in conversations.iter().filter_map(|to| self.local.get(to)) {
            client.queue.fill().control(&frame);
        }
    }
}

/// The frame that a peer is not connected.
pub(super) fn gone(peer: &NodePublic, reason: GoneReason) -> BytesMut {
    let mut out = BytesMut::new();
    write_frame(&mut out, kind::PEER_GONE, &[&peer.0[..], &[reason.byte()]].concat());
    out
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tailnet::derp::{Decoder, FromRelay, relay_mesh::read_present};

    use super::*;

    fn client(number: u8) -> Arc<Client> {
        let at = "192.0.2.1:7".parse().unwrap();
        Arc::new(Client::new(NodePublic([number; 32]), at, number >= 100, counters::for_tests()))
    }

    /// The presence frames for a relay: clients, and whether each is connected.
    fn presence_events(client: &Client) -> Vec<(u8, bool)> {
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

    fn is_local(table: &Table, client: &Arc<Client>) -> bool {
        let route = table.route(&client.key);
        matches!(route, Some(Route::Local(other)) if Arc::ptr_eq(&other, client))
    }

    fn is_through(table: &Table, key: u8, link: &Arc<Client>) -> bool {
        let route = table.route(&NodePublic([key; 32]));
        matches!(route, Some(Route::Remote(other)) if Arc::ptr_eq(&other, link))
    }

    #[test]
    fn of_two_connections_with_one_key_the_last_sender_receives() {
        let (table, old, new) = (Table::default(), client(1), client(1));
        table.insert(&old);
        table.insert(&new);
        assert!(is_local(&table, &new));
        let version = table.version();
        table.note_active(&old);
        assert!(is_local(&table, &old) && table.version() != version);
        assert!(!table.remove(&new));
        assert!(is_local(&table, &old));
        assert!(table.remove(&old));
        assert!(table.route(&old.key).is_none());
    }

    #[test]
    fn a_watcher_is_notified_of_each_client_once() {
        let (table, watcher, there, late, again) =
            (Table::default(), client(100), client(1), client(2), client(2));
        table.insert(&there);
        table.watch(&watcher);
        table.watch(&watcher);
        assert_eq!(presence_events(&watcher), [(1, true)]);
        table.insert(&late);
        table.insert(&again);
        table.note_active(&late);
        table.remove(&late);
        assert_eq!(presence_events(&watcher), [(2, true), (2, false)]);
        assert!(!table.remove(&again), "another connection was active");
        table.remove(&watcher);
        table.insert(&again);
        assert_eq!(presence_events(&watcher), []);
    }

    #[test]
    fn not_here_and_presence_reach_a_relay_in_order() {
        let (table, relay, one) = (Table::default(), client(100), client(1));
        table.watch(&relay);
        table.insert(&one);
        table.remove(&one);
        table.send_not_here(&relay, &one.key);
        table.insert(&one);
        // The late datagram was looked up before.
        table.send_not_here(&relay, &one.key);
        assert_eq!(presence_events(&relay), [(1, true), (1, false), (1, false), (1, true)]);
        table.send_not_here(&one, &client(2).key);
        assert_eq!(presence_events(&one), [(2, false)]);
    }

    #[test]
    fn a_remote_client_is_reached_by_its_links_and_local_takes_precedence() {
        let (table, one, other, local) = (Table::default(), client(100), client(101), client(1));
        assert!(table.add_remote(&one, local.key));
        assert!(table.add_remote(&other, local.key));
        assert!(is_through(&table, 1, &one));
        table.insert(&local);
        assert!(is_local(&table, &local));
        assert!(!table.remove(&local), "it is still remote");
        table.remove_link(&one);
        assert!(is_through(&table, 1, &other));
        table.remove_remote(&other, &local.key);
        assert!(table.route(&local.key).is_none() && table.read().remote.is_empty());
    }

    #[test]
    fn a_receiver_is_notified_when_a_remote_sender_left_the_region() {
        let (table, link, other, local) = (Table::default(), client(100), client(101), client(1));
        let remote = NodePublic([2; 32]);
        table.insert(&local);
        table.note_remote_sender(remote, local.key);
        assert!(table.add_remote(&link, remote));
        table.remove_remote(&link, &remote);
        assert_eq!(presence_events(&local), [], "it was not in the mesh when it sent");
        assert!(table.add_remote(&link, remote));
        assert!(table.add_remote(&other, remote));
        table.note_remote_sender(remote, local.key);
        table.remove_link(&link);
        assert_eq!(presence_events(&local), []);
        table.remove_link(&other);
        assert_eq!(presence_events(&local), [(2, false)]);
    }

    #[test]
    fn the_table_of_remote_clients_is_bounded() {
        let (table, link) = (Table::default(), client(100));
        let key = |number: usize| {
            let mut key = [3; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            NodePublic(key)
        };
        assert!((0..MOST_REMOTE).all(|number| table.add_remote(&link, key(number))));
        assert!(!table.add_remote(&link, key(MOST_REMOTE)) && table.add_remote(&link, key(0)));
        for to in 0..MOST_RECEIVERS + 9 {
            table.note_remote_sender(key(0), key(to));
        }
        assert_eq!(table.read().pairs, MOST_RECEIVERS);
        for to in 0..2 * MOST_PAIRS {
            table.note_remote_sender(key(1 + to % 100), key(to));
        }
        let sum: usize = table.read().conversations.values().map(HashSet::len).sum();
        assert_eq!(table.read().pairs, sum);
        assert!(sum <= MOST_PAIRS, "{sum}");
        table.remove_link(&link);
        let all = table.read();
        assert_eq!((all.remote.len(), all.conversations.len(), all.pairs), (0, 0, 0));
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
