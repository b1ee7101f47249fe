//! Commands for a program that chooses the paths to peers. They may be called while packets flow.
//! Each changes only the value that it names.

use std::net::SocketAddr;

use ipnet::IpNet;
use packet::{Endpoint, Waker};
use rand_core::CryptoRng;

use super::{Control, initiations::MIN_OWN_INITIATION_INTERVAL, unknown_senders::UnknownSenders};
use crate::{PublicKey, device::ControlNotice, time::Now};

/// Reason why a command was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// No peer has this key.
    UnknownPeer(PublicKey),
    /// The peer does not have an endpoint.
    NoEndpoint,
    /// The interface is down.
    Down,
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPeer(key) => write!(f, "no peer has the public key {}", key.to_base64()),
            Self::NoEndpoint => f.write_str("the peer does not have an endpoint"),
            Self::Down => f.write_str("the interface is down"),
        }
    }
}

impl std::error::Error for CommandError {}

/// A network and the peer that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIpMove {
    /// The network. Host bits are ignored.
    pub net: IpNet,
    /// The new owner. Any previous owner loses the network.
    pub to: PublicKey,
}

impl<R: CryptoRng> Control<R> {
    /// Starts to record events, which [`Events::poll`](crate::Events::poll) returns. `waker` is
    /// called for each event and must not block. Only the first subscriber is accepted.
    pub fn subscribe(&mut self, waker: Waker) {
        self.device.events.enable(waker);
        for entry in self.peers.values() {
            // Data that was sent before may be unanswered.
            self.device.control_mailbox.post(&entry.peer, ControlNotice::Replan);
        }
    }

    /// Switches peer lookup. When it is on, the subscriber gets events about unknown public keys
    /// that start a handshake, and about addresses that belong to no peer. It may answer by adding
    /// the peer with [`Control::apply`].
    pub fn set_peer_lookup(&mut self, on: bool) {
        self.device.events.set_lookup(on);
        self.unknown_senders = UnknownSenders::default();
    }

    /// Starts a handshake now, even if there is a session or an unanswered initiation. If the last
    /// initiation was sent less than 40 ms ago, the handshake waits until 40 ms have passed,
    /// because the peer might refuse it earlier.
    ///
    /// # Errors
    /// The peer is unknown, has no endpoint, or the interface is down.
    pub fn handshake_now(&mut self, peer: &PublicKey, now: Now) -> Result<(), CommandError> {
        let entry = self.peers.get_mut(peer).ok_or(CommandError::UnknownPeer(*peer))?;
        if !self.running {
            return Err(CommandError::Down);
        }
        entry.peer.endpoint().ok_or(CommandError::NoEndpoint)?;
        entry.timers.attempt_began = Some(now.time);
        match entry.timers.last_handshake_sent.map(|sent| sent + MIN_OWN_INITIATION_INTERVAL) {
            Some(earliest) if now.time < earliest => {
                entry.timers.retransmit = Some(earliest);
                entry.peer.activity.block_handshakes_until(Some(earliest));
            }
            _ => self.send_initiation(peer, now),
        }
        self.plan(peer, now.time);
        Ok(())
    }

    /// Whether a sent initiation is still unanswered. Returns `false` for an unknown peer.
    pub fn is_handshaking(&self, peer: &PublicKey) -> bool {
        let Some(entry) = self.peers.get(peer) else { return false };
        entry.timers.attempt_began.is_some() && entry.handshake.pending.is_some()
    }

    /// Returns the address of a peer. Returns `None` if the peer is unknown or is reached through a
    /// relay.
    pub fn endpoint(&self, peer: &PublicKey) -> Option<SocketAddr> {
        self.peers.get(peer)?.peer.endpoint()?.remote.direct()
    }

    /// Sets the endpoint of a peer, from the next datagram on. A peer that roams may move again.
    ///
    /// # Errors
    /// The peer is unknown.
    pub fn set_endpoint(
        &mut self,
        peer: &PublicKey,
        endpoint: Endpoint,
    ) -> Result<(), CommandError> {
        let entry = self.peers.get(peer).ok_or(CommandError::UnknownPeer(*peer))?;
        let had_keepalive = entry.has_keepalive();
        entry.peer.set_endpoint(endpoint);
        if self.running {
            self.device
                .outbound_mailbox
                .post(&entry.peer, entry.notice_after_change(had_keepalive));
        }
        Ok(())
    }

    /// Moves networks to other peers atomically: each packet sees either all moves or none.
    ///
    /// # Errors
    /// A peer is unknown. Nothing is moved.
    pub fn move_allowed_ips(&mut self, moves: &[AllowedIpMove]) -> Result<(), CommandError> {
        let unknown = moves.iter().find(|wanted| !self.peers.contains_key(&wanted.to));
        if let Some(wanted) = unknown {
            return Err(CommandError::UnknownPeer(wanted.to));
        }
        let device = self.device.clone();
        let mut table = device.allowed_ips_mut();
        for wanted in moves {
            let net = wanted.net.trunc();
            let Some(entry) = self.peers.get_mut(&wanted.to) else { continue };
            let loser = table.insert(net, entry.peer.clone());
            if let Some(loser) = loser {
                self.disown(&loser, &net);
            }
            if let Some(entry) = self.peers.get_mut(&wanted.to) {
                entry.allowed_ips.insert(net);
            }
        }
        Ok(())
    }
}
