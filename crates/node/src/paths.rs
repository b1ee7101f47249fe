//! For a program that chooses where peers are reached: events, commands, and datagrams of its own.

use packet::{ControlSend as _, Endpoint, SendError, Waker};
use wg::{CommandError, Event, PublicKey, config::PeerTraffic};

use super::{Node, lock, now};

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
        self.udp.send_control(datagram, to, hops)
    }

    /// What each peer sent and received.
    pub fn traffic(&self) -> Vec<PeerTraffic> {
        lock(&self.control).traffic().collect()
    }

    /// The port of the UDP socket: once it is bound, the one that it has.
    pub fn listen_port(&self) -> u16 {
        lock(&self.outer).port
    }
}
