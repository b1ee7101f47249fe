//! Reports to the agent: events of peers at once, and their traffic once a second while there is
//! any.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use ipc::{Activity, PeerEvent, ToAgent};
use node::Node;
use sys::clock;
use tailnet::keys::NodePublic;
use wg::{Event, PublicKey, config::PeerTraffic};

use super::{LineSender, endpoint_tables::EndpointTables};

/// The interval of reports while a peer sends or receives.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of checks while no peer does.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// Pending reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    /// Events of peers.
    pub events: bool,
    pub network: bool,
    /// The line is closed.
    pub ended: bool,
}

/// Wakes the reporting thread. The caller does not wait for the agent.
#[derive(Debug, Default)]
pub(super) struct Notifier(Mutex<Pending>, Condvar);

impl Notifier {
    pub(super) fn notify(&self, set: impl FnOnce(&mut Pending)) {
        set(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.1.notify_one();
    }

    fn wait(&self, at_most: Duration) -> Pending {
        let pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let none = Pending::default();
        let waited = self.1.wait_timeout_while(pending, at_most, |pending| *pending == none);
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *pending)
    }
}

/// The time of the next report.
#[derive(Debug, Default)]
struct ReportTimer {
    at: Duration,
    busy: bool,
}

impl ReportTimer {
    /// Without traffic, an event is the first sign of some.
    fn is_due(&self, now: Duration, event: bool) -> bool {
        now >= self.at || event && !self.busy
    }

    fn done(&mut self, now: Duration, busy: bool) {
        *self = Self { at: now + if busy { BUSY_INTERVAL } else { IDLE_INTERVAL }, busy };
    }
}

pub(super) struct Reporter {
    node: Arc<Node>,
    tables: EndpointTables,
    line: LineSender,
    notifier: Arc<Notifier>,
    /// The bytes of each peer at the last report.
    last: HashMap<PublicKey, (u64, u64)>,
}

impl Reporter {
    pub(super) fn new(
        node: Arc<Node>,
        tables: EndpointTables,
        line: LineSender,
        notifier: Arc<Notifier>,
    ) -> Self {
        let notifier_of_events = notifier.clone();
        node.subscribe(Arc::new(move || {
            notifier_of_events.notify(|pending| pending.events = true);
        }));
        Self { node, tables, line, notifier, last: HashMap::new() }
    }

    /// Runs until the line is closed.
    pub(super) fn run(mut self) {
        let (mut timer, mut sent) = (ReportTimer::default(), Ok(()));
        while sent.is_ok() {
            let now = || clock::boottime();
            let pending = self.notifier.wait(timer.at.saturating_sub(now()));
            if pending.ended {
                return;
            }
            sent = self.send_pending(pending);
            if timer.is_due(now(), pending.events) {
                let active = self.active();
                timer.done(now(), !active.is_empty());
                if !active.is_empty() {
                    sent = sent.and(self.line.send(&ToAgent::Activity(active)));
                }
            }
        }
    }

    fn send_pending(&self, pending: Pending) -> io::Result<()> {
        if pending.network {
            self.line.send(&ToAgent::NetworkChanged)?;
        }
        while let Some(event) = self.node.poll_event() {
            if let Some(event) = self.translate(event) {
                self.line.send(&ToAgent::Event(event))?;
            }
        }
        Ok(())
    }

    /// Peers with traffic since the last call.
    fn active(&mut self) -> Vec<Activity> {
        let bytes = |one: &PeerTraffic| (one.rx_bytes, one.tx_bytes);
        let mut all = self.node.traffic();
        // In a large network, most peers are idle.
        all.retain(|one| bytes(one) != (0, 0));
        let now = all.iter().map(|one| (one.public_key, bytes(one))).collect();
        let last = std::mem::replace(&mut self.last, now);
        let active = all.iter().filter(|one| last.get(&one.public_key) != Some(&bytes(one)));
        active.map(|one| report(one, &self.tables)).collect()
    }

    fn translate(&self, event: Event) -> Option<PeerEvent> {
        let key = |key: PublicKey| NodePublic(*key.as_bytes());
        match event {
            Event::HandshakeDone(peer) => Some(PeerEvent::HandshakeDone(key(peer))),
            Event::NewPath { peer, from } => {
                Some(PeerEvent::NewPath { peer: key(peer), from: self.tables.path_of(&from)? })
            }
            Event::Stale(peer) => Some(PeerEvent::Stale(key(peer))),
            Event::HandshakeWanted(peer) => Some(PeerEvent::SessionNeeded(key(peer))),
            // The agent configures all peers in advance.
            Event::UnknownPeer { .. } | Event::UnknownAddress(_) => None,
        }
    }
}

/// The traffic of all peers.
pub(super) fn activity(node: &Node, tables: &EndpointTables) -> Vec<Activity> {
    node.traffic().iter().map(|one| report(one, tables)).collect()
}

fn report(one: &PeerTraffic, tables: &EndpointTables) -> Activity {
    Activity {
        peer: NodePublic(*one.public_key.as_bytes()),
        received: one.rx_bytes,
        sent: one.tx_bytes,
        last_handshake: one.last_handshake,
        received_from: one.received_from.as_ref().and_then(|from| tables.path_of(from)),
        path_mtu: one.path_mtu,
        post_quantum: one.post_quantum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_never_blocks_and_wait_returns_each_flag_once() {
        let notifier = Notifier::default();
        for _ in 0..10_000 {
            notifier.notify(|pending| pending.network = true);
        }
        notifier.notify(|pending| pending.events = true);
        assert_eq!(
            notifier.wait(Duration::ZERO),
            Pending { events: true, network: true, ended: false }
        );
        assert_eq!(notifier.wait(Duration::ZERO), Pending::default());
    }

    #[test]
    fn constant_events_do_not_delay_reports() {
        let (mut timer, mut made) = (ReportTimer::default(), 0);
        for now in (0..10_000).step_by(10).map(Duration::from_millis) {
            if timer.is_due(now, true) {
                timer.done(now, true);
                made += 1;
            }
        }
        assert_eq!(made, 10);
    }
}
