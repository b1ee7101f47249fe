//! The timers of a peer (paper 6; kernel `timers.c`). Timers that follow traffic are marks of
//! [`crate::peer::Activity`]; the others are here. The device's list contains each peer once, at
//! its earliest deadline.

use std::time::Duration;

use rand_core::CryptoRng;

use super::{Control, entry::Entry};
use crate::{
    PublicKey,
    constants::{REKEY_ATTEMPT_TIME, WIPE_AFTER_TIME},
    device::OutboundNotice,
    time::{Now, Time},
};

#[derive(Default)]
pub(super) struct Timers {
    /// Time to repeat the pending initiation, or to send a delayed one.
    pub retransmit: Option<Time>,
    /// Start of the present handshake attempt.
    pub attempt_began: Option<Time>,
    /// Time of the last sent initiation or response.
    pub last_handshake_sent: Option<Time>,
    /// Time to wipe the secrets of dead sessions.
    wipe: Option<Time>,
    /// The peer's deadline in the device's list.
    planned: Option<Time>,
}

impl Timers {
    /// Stops the handshake attempt, because our own key changed.
    pub(super) fn clear_handshake(&mut self) {
        self.retransmit = None;
        self.attempt_began = None;
        self.last_handshake_sent = None;
    }

    /// Schedules the wipe of a new session.
    pub(super) fn session_derived(&mut self, now: Time) {
        self.wipe = Some(now + WIPE_AFTER_TIME);
    }
}

impl<R: CryptoRng> Control<R> {
    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some((deadline, key)) = self.deadlines.first().copied()
            && deadline <= now.time
        {
            self.deadlines.pop_first();
            self.handle_peer_timeout(&key, now);
            self.plan(&key, now.time);
        }
    }

    fn handle_peer_timeout(&mut self, key: &PublicKey, now: Now) {
        self.handle_exchange_timeout(key, now);
        let Some(entry) = self.peers.get_mut(key) else { return };
        if entry.timers.wipe.take_if(|wipe| *wipe <= now.time).is_some() {
            entry.wipe_secrets(&self.device);
        }
        let activity = &entry.peer.activity;
        let keepalive = activity.take_keepalive(now.time);
        let persistent = entry.take_persistent(now.time);
        let stale = entry.stale_deadline().is_some_and(|deadline| deadline <= now.time);
        if keepalive || persistent {
            self.device.outbound_mailbox.post(&entry.peer, OutboundNotice::Keepalive);
        }
        let unanswered = activity.take_unanswered(now.time);
        if stale {
            entry.post_stale(&self.device);
        }
        let retransmit = entry.timers.retransmit.take_if(|at| *at <= now.time).is_some();
        if retransmit {
            self.retransmit(key, now);
        } else if unanswered {
            entry.peer.clear_source();
            self.initiate(key, now);
        }
        if let Some(entry) = self.peers.get_mut(key) {
            entry.path.handle_timeout(self.search_limit, &self.device, now.time);
        }
    }

    /// Repeats or gives up an unanswered handshake, or starts a delayed one.
    fn retransmit(&mut self, key: &PublicKey, now: Now) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        if entry.is_handshake_stale(now.time) {
            entry.post_stale(&self.device);
        }
        let mut began = entry.timers.attempt_began.unwrap_or(now.time);
        if entry.peer.activity.take_requested() {
            began = now.time;
            entry.timers.attempt_began = Some(began);
        }
        entry.peer.activity.block_handshakes_until(None);
        if now.time.since(began) >= REKEY_ATTEMPT_TIME {
            entry.timers.attempt_began = None;
            entry.timers.wipe.get_or_insert(now.time + WIPE_AFTER_TIME);
            self.device.outbound_mailbox.post(&entry.peer, OutboundNotice::Purge);
            return;
        }
        // The path may be dead only for this source address. A delayed first initiation says
        // nothing about the path.
        if entry.handshake.is_unanswered(now.time) {
            entry.peer.clear_source();
        }
        self.send_initiation(key, now);
    }

    /// Schedules the peer at its earliest deadline.
    pub(super) fn plan(&mut self, key: &PublicKey, now: Time) {
        let jitter = self.jitter();
        let Some(entry) = self.peers.get_mut(key) else { return };
        let running = self.running;
        let watched = self.device.events.is_enabled();
        let planned = entry.peer.activity.replan(|| {
            let activity = &entry.peer.activity;
            let unanswered = activity.unanswered_deadline().map(|deadline| deadline + jitter);
            let followers = [
                unanswered,
                entry.stale_deadline().filter(|_| watched),
                activity.keepalive_deadline(),
                entry.persistent_deadline(),
                entry.path.deadline(),
                entry.agreement.deadline(),
            ];
            let followers = followers.into_iter().flatten().filter(|_| running);
            followers.chain(entry.timers.retransmit).chain(entry.timers.wipe).min()
        });
        // A deadline in the past that was not handled is checked again, later.
        let planned = planned.map(|time| time.max(now + TICK));
        if let Some(old) = std::mem::replace(&mut entry.timers.planned, planned) {
            self.deadlines.remove(&(old, *key));
        }
        if let Some(new) = planned {
            self.deadlines.insert((new, *key));
        }
    }

    /// Removes the peer from the device's list.
    pub(super) fn unplan(&mut self, entry: &Entry) {
        if let Some(old) = entry.timers.planned {
            self.deadlines.remove(&(old, *entry.peer.public_key()));
        }
    }
}

/// Minimum interval between two checks of one peer.
const TICK: Duration = Duration::from_millis(1);

impl Entry {
    /// Whether a persistent keepalive is due. The next one is due an interval later, even if this
    /// one cannot be sent.
    fn take_persistent(&self, now: Time) -> bool {
        let due = self.persistent_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.peer.activity.restart_interval(now);
        }
        due
    }

    fn persistent_deadline(&self) -> Option<Time> {
        let interval = match self.persistent_keepalive {
            0 => return None,
            seconds => Duration::from_secs(seconds.into()),
        };
        self.peer.activity.last_traversal().map(|last| last + interval)
    }
}
