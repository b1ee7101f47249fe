//! Who is connected, and what time does: nodes go offline, ephemeral ones are forgotten, keys expire.

use std::time::Duration;

use crate::{log::Parts, object::NodeId, state::State, time::Time};

/// What is to be looked at when its time comes. It may have become void by then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A node without a stream.
    Offline(NodeId),
    /// An ephemeral node without one for longer.
    Ephemeral(NodeId),
    /// A key that expires.
    Expiry(NodeId),
    /// A node that said that it has no endpoints.
    Endpoints(NodeId),
    /// A registration that waits for an administrator.
    Waiting(String),
}

/// The number of a stream of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

/// A node that was never connected has as long as an ephemeral one at least: it may be on its way.
const FIRST_CONNECTION: Duration = Duration::from_secs(5 * 60);

impl State {
    /// A stream of a node begins. Its number is for [`State::disconnect`].
    pub fn connect(&mut self, id: NodeId) -> StreamId {
        self.last_stream += 1;
        let stream = StreamId(self.last_stream);
        let Some(entry) = self.nodes.get_mut(&id) else { return stream };
        entry.streams.insert(stream);
        if !entry.online {
            entry.online = true;
            self.choose_primaries_of(id);
            self.note_parts(id, Parts::ONLINE);
        }
        stream
    }

    /// A stream of a node ended.
    pub fn disconnect(&mut self, id: NodeId, stream: StreamId, now: Time) {
        let Some(entry) = self.nodes.get_mut(&id) else { return };
        if !entry.streams.remove(&stream) || !entry.streams.is_empty() {
            return;
        }
        self.timers.insert((now.after(self.settings.offline_after), Timer::Offline(id)));
        self.change_node(id, now, |node| {
            node.last_seen = Some(now);
            Parts::none()
        });
        self.set_ephemeral_timer(id);
    }

    /// When [`State::handle_timeout`] is to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, _)) = self.timers.first()
            && *at <= now
        {
            let Some((_, timer)) = self.timers.pop_first() else { return };
            match timer {
                Timer::Offline(id) => self.go_offline(id, now),
                Timer::Ephemeral(id) => self.forget_ephemeral(id, now),
                Timer::Expiry(id) => self.expire(id, now),
                Timer::Endpoints(id) => self.drop_endpoints(id, now),
                Timer::Waiting(number) => {
                    self.waiting.remove(&number);
                }
            }
        }
    }

    /// Sets the timers that a node has by what it is.
    pub(crate) fn set_timers(&mut self, id: NodeId, now: Time) {
        let Some(entry) = self.nodes.get(&id) else { return };
        if let Some(at) = entry.node.expires.filter(|at| *at > now) {
            self.timers.insert((at, Timer::Expiry(id)));
        }
        if entry.streams.is_empty() {
            self.set_ephemeral_timer(id);
        }
    }

    fn set_ephemeral_timer(&mut self, id: NodeId) {
        if let Some(at) = self.forgotten_at(id) {
            self.timers.insert((at, Timer::Ephemeral(id)));
        }
    }

    /// When an ephemeral node without a stream is forgotten, if it stays so.
    fn forgotten_at(&self, id: NodeId) -> Option<Time> {
        let entry = self.nodes.get(&id).filter(|entry| entry.node.ephemeral)?;
        let patience = self.settings.ephemeral_after;
        (entry.streams.is_empty()).then(|| match entry.node.last_seen {
            Some(seen) => seen.max(self.started).after(patience),
            None => entry.node.created.max(self.started).after(patience.max(FIRST_CONNECTION)),
        })
    }

    fn go_offline(&mut self, id: NodeId, now: Time) {
        let Some(entry) = self.nodes.get_mut(&id) else { return };
        // It may have been back in between, and have gone again.
        let gone_for = entry.node.last_seen.map_or(Duration::MAX, |seen| now.since(seen));
        if entry.streams.is_empty() && entry.online && gone_for >= self.settings.offline_after {
            entry.online = false;
            self.choose_primaries_of(id);
            self.note_parts(id, Parts::ONLINE);
        }
    }

    fn forget_ephemeral(&mut self, id: NodeId, now: Time) {
        match self.forgotten_at(id) {
            Some(at) if at <= now => self.remove_node(id),
            Some(at) => {
                self.timers.insert((at, Timer::Ephemeral(id)));
            }
            None => {}
        }
    }

    fn expire(&mut self, id: NodeId, now: Time) {
        if self.nodes.get(&id).is_some_and(|entry| entry.node.has_expired(now)) {
            self.note_parts(id, Parts::WHOLE);
        }
    }
}
