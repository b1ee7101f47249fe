//! Who is connected, and what time does: nodes go offline, ephemeral ones are forgotten, keys expire.

use std::{collections::BTreeSet, mem, time::Duration};

use crate::{log::Parts, object::NodeId, state::State, time::Time, timers::Timer};

/// The number of a stream of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u64);

/// A node that was never connected has as long as an ephemeral one at least: it may be on its way.
const FIRST_CONNECTION: Duration = Duration::from_secs(5 * 60);

/// The age at which the stored time of a connected node is renewed, because a killed server cannot store it.
const SEEN: Duration = Duration::from_secs(10 * 60);
/// The time from a connection to the first such write. The connection itself writes nothing, so that clients
/// can connect while the store is read-only.
const SOON: Duration = Duration::from_secs(1);
/// The interval between later writes.
const LOOK: Duration = Duration::from_secs(30);
/// The most nodes of one write.
const MOST: usize = 1000;

impl State {
    /// A stream of a node begins. Its number is for [`State::disconnect`].
    pub fn connect(&mut self, id: NodeId, now: Time) -> StreamId {
        let stream = self.connected.begin(id);
        self.undo.stream(id, stream, true);
        let wait = if self.was_seen_long_ago(id, now) { SOON } else { LOOK };
        self.timers.set_at_latest(Timer::Seen, now.after(wait));
        if self.note_lives(id) {
            self.choose_primaries_of(id);
        }
        self.go_online(id);
        stream
    }

    /// A stream of a node ended.
    pub fn disconnect(&mut self, id: NodeId, stream: StreamId, now: Time) {
        if !self.connected.end(id, stream) {
            return;
        }
        self.undo.stream(id, stream, false);
        if self.connected.has(id) || !self.nodes.contains_key(&id) {
            return;
        }
        self.note_seen(id, now);
        self.lose(id, now);
    }

    /// Stores that all connected nodes were seen now. The server is about to end.
    pub fn note_all_seen(&mut self, now: Time) {
        for id in self.connected.here().collect::<Vec<_>>() {
            self.note_seen(id, now);
        }
    }

    /// Renews the stored times of connected nodes.
    fn look_for_seen(&mut self, now: Time) {
        let here = self.connected.here().filter(|id| self.was_seen_long_ago(*id, now));
        let due: Vec<NodeId> = here.take(MOST).collect();
        for id in &due {
            self.note_seen(*id, now);
        }
        if self.connected.here().next().is_some() {
            let wait = if due.len() == MOST { SOON } else { LOOK };
            self.timers.set(Timer::Seen, now.after(wait));
        }
    }

    fn was_seen_long_ago(&self, id: NodeId, now: Time) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|entry| entry.node.last_seen.is_none_or(|at| now.since(at) >= SEEN))
    }

    fn note_seen(&mut self, id: NodeId, now: Time) {
        self.change_node(id, now, |node| {
            node.last_seen = Some(now);
            Parts::none()
        });
    }

    /// Another server of the network has the streams of these nodes, and of no others.
    pub fn hear_server(&mut self, server: i64, nodes: BTreeSet<NodeId>, now: Time) {
        let (come, gone) = self.connected.take(server, nodes);
        for id in come {
            self.note_lives(id);
            self.go_online(id);
        }
        for id in gone {
            self.lose(id, now);
        }
    }

    /// Another server of the network said nothing since then: what it said before is void.
    pub fn lose_server(&mut self, server: i64, since: Time) {
        let (_, gone) = self.connected.take(server, BTreeSet::new());
        for id in gone {
            self.lose(id, since);
        }
    }

    /// The nodes whose streams are this server's.
    pub fn connected_here(&self) -> impl Iterator<Item = NodeId> {
        self.connected.here()
    }

    /// How often those became others.
    pub fn connections(&self) -> u64 {
        self.connected.changes()
    }

    pub(crate) fn lose(&mut self, id: NodeId, since: Time) {
        if self.connected.has(id) || !self.nodes.contains_key(&id) {
            return;
        }
        self.connected.lose(id, since);
        self.timers.set(Timer::Offline(id), since.after(self.settings.offline_after));
        self.set_ephemeral_timer(id);
    }

    /// A client that begins a stream lives; whether it did not answer before.
    fn note_lives(&mut self, id: NodeId) -> bool {
        let did = self.nodes.get_mut(&id).map(|entry| mem::replace(&mut entry.answers, true));
        did == Some(false)
    }

    fn go_online(&mut self, id: NodeId) {
        if self.note_online(id) {
            self.choose_primaries_of(id);
        }
    }

    /// A node is connected; whether it was not. Which networks go to it then is not looked at.
    pub(crate) fn note_online(&mut self, id: NodeId) -> bool {
        let was = self.nodes.get_mut(&id).map(|entry| mem::replace(&mut entry.online, true));
        let is_other = was == Some(false);
        if is_other {
            self.note_parts(id, Parts::ONLINE);
        }
        is_other
    }

    /// When [`State::handle_timeout`] is to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if mem::take(&mut self.reroutes) {
            self.choose_primaries();
        }
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Offline(id) => self.go_offline(id, now),
                Timer::Ephemeral(id) => self.forget_ephemeral(id, now),
                Timer::Expiry(id) => self.expire(id, now),
                Timer::Endpoints(id) => self.drop_endpoints(id, now),
                Timer::Waiting(number) => {
                    self.waiting.remove(&number);
                }
                Timer::Seen => self.look_for_seen(now),
            }
        }
    }

    /// Sets the timers that a node has by what it is.
    pub(crate) fn set_timers(&mut self, id: NodeId, now: Time) {
        let Some(entry) = self.nodes.get(&id) else { return };
        if let Some(at) = entry.node.expires.filter(|at| *at > now) {
            self.timers.set(Timer::Expiry(id), at);
        }
        self.set_ephemeral_timer(id);
    }

    fn set_ephemeral_timer(&mut self, id: NodeId) {
        if let Some(at) = self.forgotten_at(id) {
            self.timers.set(Timer::Ephemeral(id), at);
        }
    }

    /// When an ephemeral node without a stream is forgotten, if it stays so.
    fn forgotten_at(&self, id: NodeId) -> Option<Time> {
        let entry = self.nodes.get(&id).filter(|entry| entry.node.ephemeral)?;
        let patience = self.settings.ephemeral_after;
        // Another server may have had its stream, and nobody else was told when it ended.
        let gone = self.connected.gone_since(id).unwrap_or_default().max(self.started);
        (!self.connected.has(id)).then(|| match entry.node.last_seen {
            Some(seen) => seen.max(gone).after(patience),
            None => entry.node.created.max(gone).after(patience.max(FIRST_CONNECTION)),
        })
    }

    fn go_offline(&mut self, id: NodeId, now: Time) {
        let is_connected = self.connected.has(id);
        // It may have been back in between, and have gone again.
        let gone_for = self.connected.gone_since(id).map_or(Duration::MAX, |at| now.since(at));
        let Some(entry) = self.nodes.get_mut(&id) else { return };
        if !is_connected && entry.online && gone_for >= self.settings.offline_after {
            entry.online = false;
            self.choose_primaries_of(id);
            self.note_parts(id, Parts::ONLINE);
        }
    }

    fn forget_ephemeral(&mut self, id: NodeId, now: Time) {
        match self.forgotten_at(id) {
            Some(at) if at <= now => self.remove_node(id),
            Some(at) => self.timers.set(Timer::Ephemeral(id), at),
            None => {}
        }
    }

    fn expire(&mut self, id: NodeId, now: Time) {
        if self.nodes.get(&id).is_some_and(|entry| entry.node.has_expired(now)) {
            self.note_parts(id, Parts::KEY);
        }
    }
}
