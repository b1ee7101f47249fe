//! Tells the agent what happens to peers: events at once, and what was sent and received once a
//! second while there is any.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use engine::Relay;
use node::Node;
use tailnet::{
    keys::NodePublic,
    line::{Activity, PeerEvent, ToAgent},
};
use wg::{Event, PublicKey};

use super::{ToLine, path_of};

/// The interval of reports while a peer sends or receives.
const BUSY: Duration = Duration::from_secs(1);
/// The interval at which one looks whether any does.
const IDLE: Duration = Duration::from_secs(5);

pub(super) struct Watch {
    node: Arc<Node>,
    relay: Relay,
    line: ToLine,
    woken: Arc<(Mutex<bool>, Condvar)>,
    /// The bytes of each peer at the last report.
    last: HashMap<PublicKey, (u64, u64)>,
}

impl Watch {
    pub fn new(node: Arc<Node>, relay: Relay, line: ToLine) -> Self {
        let woken = Arc::<(Mutex<bool>, Condvar)>::default();
        let wake = woken.clone();
        node.subscribe(Arc::new(move || {
            *wake.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            wake.1.notify_one();
        }));
        Self { node, relay, line, woken, last: HashMap::new() }
    }

    pub fn run(mut self) {
        let mut interval = IDLE;
        loop {
            let woken = self.wait(interval);
            while let Some(event) = self.node.poll_event() {
                if let Some(event) = self.translate(event)
                    && self.line.send(&ToAgent::Event(event)).is_err()
                {
                    return;
                }
            }
            if woken && interval == BUSY {
                continue;
            }
            let active = self.active();
            interval = if active.is_empty() { IDLE } else { BUSY };
            if !active.is_empty() && self.line.send(&ToAgent::Activity(active)).is_err() {
                return;
            }
        }
    }

    /// Whether it was woken by an event.
    fn wait(&self, interval: Duration) -> bool {
        let flag = self.woken.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.woken.1.wait_timeout_while(flag, interval, |woken| !*woken);
        let (mut flag, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *flag)
    }

    /// Peers that sent or received something since the last call.
    fn active(&mut self) -> Vec<Activity> {
        let all = self.node.traffic();
        self.last.retain(|key, _| all.iter().any(|peer| peer.public_key == *key));
        let is_active = |one: &wg::config::PeerTraffic| {
            let bytes = (one.rx_bytes, one.tx_bytes);
            self.last.insert(one.public_key, bytes).unwrap_or_default() != bytes
        };
        let active: Vec<_> = all.into_iter().filter(is_active).collect();
        active.iter().map(|one| report(one, &self.relay)).collect()
    }

    fn translate(&self, event: Event) -> Option<PeerEvent> {
        let key = |key: PublicKey| NodePublic(*key.as_bytes());
        match event {
            Event::HandshakeDone(peer) => Some(PeerEvent::HandshakeDone(key(peer))),
            Event::NewPath { peer, from } => {
                Some(PeerEvent::NewPath { peer: key(peer), from: path_of(&from, &self.relay)? })
            }
            Event::Stale(peer) => Some(PeerEvent::Stale(key(peer))),
            Event::Wanted(peer) => Some(PeerEvent::Wanted(key(peer))),
            // Nobody is looked up.
            Event::UnknownPeer { .. } | Event::UnknownAddress(_) => None,
        }
    }
}

/// What all peers sent and received.
pub(super) fn activity(node: &Node, relay: &Relay) -> Vec<Activity> {
    node.traffic().iter().map(|one| report(one, relay)).collect()
}

fn report(one: &wg::config::PeerTraffic, relay: &Relay) -> Activity {
    Activity {
        peer: NodePublic(*one.public_key.as_bytes()),
        received: one.rx_bytes,
        sent: one.tx_bytes,
        last_handshake: one.last_handshake,
        heard_from: one.heard_from.as_ref().and_then(|from| path_of(from, relay)),
        path_mtu: one.path_mtu,
    }
}
