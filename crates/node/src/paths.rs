//! The interface for a program that chooses the paths of peers: events, commands, and datagrams of
//! other protocols.

use std::sync::atomic::{AtomicU64, Ordering};

use packet::{ControlSend as _, Endpoint, SendError, Waker};
use sys::{BindError, ProbeSockets};
use wg::{CommandError, Event, PublicKey, config::PeerTraffic};

use super::{Node, lock, now};

/// Counters of birthday probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbingStats {
    /// Sockets that were opened.
    pub sockets: u64,
    /// Sockets that a probe of a peer reached.
    pub connected: u64,
    /// Ports of peers that were probed.
    pub probes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Probing {
    sockets: AtomicU64,
    connected: AtomicU64,
    probes: AtomicU64,
}

impl Node {
    /// Enables events for [`Node::poll_event`]. `waker` is called for each and must not block. Only
    /// the first subscriber counts.
    pub fn subscribe(&self, waker: Waker) {
        lock(&self.control).subscribe(waker);
        self.engine.wake();
    }

    /// Takes the next event.
    pub fn poll_event(&self) -> Option<Event> {
        self.device.events.poll()
    }

    /// Sets the endpoint of a peer.
    ///
    /// # Errors
    /// The peer is unknown.
    pub fn set_endpoint(&self, peer: &PublicKey, endpoint: Endpoint) -> Result<(), CommandError> {
        lock(&self.control).set_endpoint(peer, endpoint)
    }

    /// Starts a handshake with a peer now.
    ///
    /// # Errors
    /// The peer is unknown or without an endpoint, or the interface is down.
    pub fn handshake_now(&self, peer: &PublicKey) -> Result<(), CommandError> {
        let begun = lock(&self.control).handshake_now(peer, now());
        self.engine.wake();
        begun
    }

    /// Sends a datagram of another protocol from the UDP socket: from `to.local` if it is set, and
    /// with `hops` as its TTL.
    ///
    /// # Errors
    /// It was not sent.
    pub fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError> {
        if let (Some(control), Some(to)) = (&self.control_datagrams, to.remote.direct()) {
            control.expect_from(to.ip());
        }
        self.udp.send_control(datagram, to, hops)
    }

    /// Opens this many additional sockets at other ports, for birthday probing.
    ///
    /// # Errors
    /// The first socket failed.
    pub fn open_flows(&self, count: u16) -> Result<ProbeSockets, BindError> {
        let flows = self.udp.open_probe_sockets(count, self.fwmark())?;
        self.probing.sockets.fetch_add(flows.count().into(), Ordering::Relaxed);
        Ok(flows)
    }

    /// The counters of birthday probing.
    pub fn probing_stats(&self) -> ProbingStats {
        let Probing { sockets, connected, probes } = &self.probing;
        let [sockets, connected, probes] =
            [sockets, connected, probes].map(|one| one.load(Ordering::Relaxed));
        ProbingStats { sockets, connected, probes }
    }

    /// Counts a socket that a probe of a peer reached.
    pub fn count_connected(&self) {
        self.probing.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts probed ports.
    pub fn count_probes(&self, probes: u64) {
        self.probing.probes.fetch_add(probes, Ordering::Relaxed);
    }

    /// The traffic of each peer.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        lock(&self.control).traffic().collect()
    }

    /// The port of the UDP socket; once bound, the actual port.
    pub fn listen_port(&self) -> u16 {
        lock(&self.socket_settings).port
    }
}
