//! Tells the agent what happens to peers: events at once, and what was sent and received once a
//! second while there is any.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use node::Node;
use sys::clock;
use tailnet::{
    keys::NodePublic,
    line::{Activity, PeerEvent, ToAgent},
};
use wg::{Event, PublicKey, config::PeerTraffic};

use super::{ToLine, places::Places};

/// The interval of reports while a peer sends or receives.
const BUSY: Duration = Duration::from_secs(1);
/// The interval at which one looks whether any does.
const IDLE: Duration = Duration::from_secs(5);

/// What there is to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Events of peers.
    pub events: bool,
    /// The network changed.
    pub network: bool,
    /// Nobody will hear any more.
    pub ended: bool,
}

/// Wakes the thread that tells. Who rings does not wait for the agent.
#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<News>, Condvar);

impl Bell {
    pub fn ring(&self, say: impl FnOnce(&mut News)) {
        say(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.1.notify_one();
    }

    fn wait(&self, at_most: Duration) -> News {
        let news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let none = News::default();
        let waited = self.1.wait_timeout_while(news, at_most, |news| *news == none);
        let (mut news, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *news)
    }
}

/// When the next report is due.
#[derive(Debug, Default)]
struct Reports {
    at: Duration,
    busy: bool,
}

impl Reports {
    /// Where nothing was sent or received, an event is the first sign that it is again.
    fn is_due(&self, now: Duration, event: bool) -> bool {
        now >= self.at || event && !self.busy
    }

    fn done(&mut self, now: Duration, busy: bool) {
        *self = Self { at: now + if busy { BUSY } else { IDLE }, busy };
    }
}

pub(super) struct Watch {
    node: Arc<Node>,
    places: Places,
    line: ToLine,
    bell: Arc<Bell>,
    /// The bytes of each peer at the last report.
    last: HashMap<PublicKey, (u64, u64)>,
}

impl Watch {
    pub fn new(node: Arc<Node>, places: Places, line: ToLine, bell: Arc<Bell>) -> Self {
        let wake = bell.clone();
        node.subscribe(Arc::new(move || wake.ring(|news| news.events = true)));
        Self { node, places, line, bell, last: HashMap::new() }
    }

    /// Until nobody will ever read what is told.
    pub fn run(mut self) {
        let (mut reports, mut told) = (Reports::default(), Ok(()));
        while told.is_ok() {
            let now = || clock::boottime();
            let news = self.bell.wait(reports.at.saturating_sub(now()));
            if news.ended {
                return;
            }
            told = self.tell(news);
            if reports.is_due(now(), news.events) {
                let active = self.active();
                reports.done(now(), !active.is_empty());
                if !active.is_empty() {
                    told = told.and(self.line.send(&ToAgent::Activity(active)));
                }
            }
        }
    }

    fn tell(&self, news: News) -> io::Result<()> {
        if news.network {
            self.line.send(&ToAgent::NetworkChanged)?;
        }
        while let Some(event) = self.node.poll_event() {
            if let Some(event) = self.translate(event) {
                self.line.send(&ToAgent::Event(event))?;
            }
        }
        Ok(())
    }

    /// Peers that sent or received something since the last call.
    fn active(&mut self) -> Vec<Activity> {
        let bytes = |one: &PeerTraffic| (one.rx_bytes, one.tx_bytes);
        let mut all = self.node.traffic();
        // Of a large network, most have none.
        all.retain(|one| bytes(one) != (0, 0));
        let now = all.iter().map(|one| (one.public_key, bytes(one))).collect();
        let last = std::mem::replace(&mut self.last, now);
        let active = all.iter().filter(|one| last.get(&one.public_key) != Some(&bytes(one)));
        active.map(|one| report(one, &self.places)).collect()
    }

    fn translate(&self, event: Event) -> Option<PeerEvent> {
        let key = |key: PublicKey| NodePublic(*key.as_bytes());
        match event {
            Event::HandshakeDone(peer) => Some(PeerEvent::HandshakeDone(key(peer))),
            Event::NewPath { peer, from } => {
                Some(PeerEvent::NewPath { peer: key(peer), from: self.places.path_of(&from)? })
            }
            Event::Stale(peer) => Some(PeerEvent::Stale(key(peer))),
            Event::HandshakeWanted(peer) => Some(PeerEvent::Wanted(key(peer))),
            // Nobody is looked up.
            Event::UnknownPeer { .. } | Event::UnknownAddress(_) => None,
        }
    }
}

/// What all peers sent and received.
pub(super) fn activity(node: &Node, places: &Places) -> Vec<Activity> {
    node.traffic().iter().map(|one| report(one, places)).collect()
}

fn report(one: &PeerTraffic, places: &Places) -> Activity {
    Activity {
        peer: NodePublic(*one.public_key.as_bytes()),
        received: one.rx_bytes,
        sent: one.tx_bytes,
        last_handshake: one.last_handshake,
        heard_from: one.received_from.as_ref().and_then(|from| places.path_of(from)),
        path_mtu: one.path_mtu,
        post_quantum: one.post_quantum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rings_never_waits_and_what_was_rung_for_is_told_once() {
        let bell = Bell::default();
        for _ in 0..10_000 {
            bell.ring(|news| news.network = true);
        }
        bell.ring(|news| news.events = true);
        assert_eq!(bell.wait(Duration::ZERO), News { events: true, network: true, ended: false });
        assert_eq!(bell.wait(Duration::ZERO), News::default());
    }

    #[test]
    fn events_without_end_hold_up_no_report() {
        let (mut reports, mut made) = (Reports::default(), 0);
        for now in (0..10_000).step_by(10).map(Duration::from_millis) {
            if reports.is_due(now, true) {
                reports.done(now, true);
                made += 1;
            }
        }
        assert_eq!(made, 10);
    }
}
