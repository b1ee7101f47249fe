//! For a program that chooses where peers are reached: events, commands, and datagrams of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use packet::{ControlSend as _, Endpoint, SendError, Waker};
use sys::{BindError, ProbeSockets};
use wg::{CommandError, Event, PublicKey, config::PeerTraffic};

use super::{Node, lock, now};

/// What was done to meet peers by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbingStats {
    /// Sockets that were opened for it.
    pub sockets: u64,
    /// Those that a peer's call met.
    pub connected: u64,
    /// Ports of peers that were called.
    pub probes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Probing {
    sockets: AtomicU64,
    connected: AtomicU64,
    probes: AtomicU64,
}

impl Node {
    /// Has events noted from now on, for [`Node::poll_event`]. `waker` is called for each, and
    /// must not block. Only the first subscriber counts.
    pub fn subscribe(&self, waker: Waker) {
        lock(&self.control).subscribe(waker);
        self.engine.wake();
    }

    /// The next event.
    pub fn poll_event(&self) -> Option<Event> {
        self.device.events.poll()
    }

    /// Sets where a peer is reached.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn set_endpoint(&self, peer: &PublicKey, endpoint: Endpoint) -> Result<(), CommandError> {
        lock(&self.control).set_endpoint(peer, endpoint)
    }

    /// Begins a handshake with a peer now.
    ///
    /// # Errors
    /// There is no such peer, it has no endpoint, or the interface is down.
    pub fn handshake_now(&self, peer: &PublicKey) -> Result<(), CommandError> {
        let begun = lock(&self.control).handshake_now(peer, now());
        self.engine.wake();
        begun
    }

    /// Sends a datagram of another protocol by the UDP socket, from `to.local` where that is given,
    /// past as many routers as `hops` says.
    ///
    /// # Errors
    /// It did not go.
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

    /// Opens so many sockets beside the one of this peer, at ports of their own.
    ///
    /// # Errors
    /// There is not even one.
    pub fn open_flows(&self, count: u16) -> Result<ProbeSockets, BindError> {
        let flows = self.udp.open_probe_sockets(count, self.fwmark())?;
        self.probing.sockets.fetch_add(flows.count().into(), Ordering::Relaxed);
        Ok(flows)
    }

    /// What was done to meet peers by chance.
    pub fn probing_stats(&self) -> ProbingStats {
        let Probing { sockets, connected, probes } = &self.probing;
        let [sockets, connected, probes] =
            [sockets, connected, probes].map(|one| one.load(Ordering::Relaxed));
        ProbingStats { sockets, connected, probes }
    }

    /// One of these was met by a peer's call.
    pub fn count_connected(&self) {
        self.probing.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// So many ports are called by chance.
    pub fn count_probes(&self, probes: u64) {
        self.probing.probes.fetch_add(probes, Ordering::Relaxed);
    }

    /// What each peer sent and received.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        lock(&self.control).traffic().collect()
    }

    /// The port of the UDP socket: once it is bound, the one that it has.
    pub fn listen_port(&self) -> u16 {
        lock(&self.socket_settings).port
    }
}
