//! Commands for a program that chooses the paths to peers. They may be called while packets flow,
//! and each changes only what it names.

use std::net::SocketAddr;

use ipnet::IpNet;
use packet::{Endpoint, Waker};
use rand_core::CryptoRng;

use super::{Control, initiations::OURS_APART, newcomers::Newcomers};
use crate::{PublicKey, device::ControlNotice, time::Now};

/// Why a command was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// There is no peer with this key.
    UnknownPeer(PublicKey),
    /// The peer has no endpoint.
    NoEndpoint,
    /// The interface is down.
    Down,
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPeer(key) => write!(f, "{} is no peer", key.to_base64()),
            Self::NoEndpoint => f.write_str("the peer has no endpoint"),
            Self::Down => f.write_str("the interface is down"),
        }
    }
}

impl std::error::Error for CommandError {}

/// A network that is given to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIpMove {
    /// The network; host bits are ignored.
    pub net: IpNet,
    /// Whose it is from now on, whoever had it.
    pub to: PublicKey,
}

impl<R: CryptoRng> Control<R> {
    /// Has events noted from now on, to be read by [`Events::poll`](crate::Events::poll). `waker` is
    /// called for each, and must not block. Only the first subscriber counts.
    pub fn subscribe(&mut self, waker: Waker) {
        self.device.events.switch_on(waker);
        for entry in self.peers.values() {
            // What was sent already may be unanswered.
            self.device.control_mailbox.post(&entry.peer, ControlNotice::Replan);
        }
    }

    /// Says whether the subscriber is asked about unknown public keys that begin a handshake, and
    /// about addresses that belong to no peer. It answers by adding the peer with
    /// [`Control::apply`], or not at all.
    pub fn set_peer_lookup(&mut self, on: bool) {
        self.device.events.look_up(on);
        self.newcomers = Newcomers::default();
    }

    /// Begins a handshake now, even if there is a session or an initiation is unanswered. If the
    /// last initiation was sent less than 40 ms ago, it waits for the rest of these, as the peer
    /// might refuse it.
    ///
    /// # Errors
    /// There is no such peer, it has no endpoint, or the interface is down.
    pub fn handshake_now(&mut self, peer: &PublicKey, now: Now) -> Result<(), CommandError> {
        let entry = self.peers.get_mut(peer).ok_or(CommandError::UnknownPeer(*peer))?;
        if !self.running {
            return Err(CommandError::Down);
        }
        entry.peer.endpoint().ok_or(CommandError::NoEndpoint)?;
        entry.timers.attempt_began = Some(now.time);
        match entry.timers.last_handshake_sent.map(|sent| sent + OURS_APART) {
            Some(earliest) if now.time < earliest => {
                entry.timers.retransmit = Some(earliest);
                entry.peer.activity.hold_handshakes(Some(earliest));
            }
            _ => self.send_initiation(peer, now),
        }
        self.plan(peer, now.time);
        Ok(())
    }

    /// Whether a handshake with a peer is in progress: an initiation was sent and is not answered
    /// yet. Returns `false` for an unknown peer.
    pub fn is_handshaking(&self, peer: &PublicKey) -> bool {
        let Some(entry) = self.peers.get(peer) else { return false };
        entry.timers.attempt_began.is_some() && entry.handshake.pending.is_some()
    }

    /// The address of a peer. Returns `None` if the peer is unknown or is reached through a relay.
    pub fn endpoint(&self, peer: &PublicKey) -> Option<SocketAddr> {
        self.peers.get(peer)?.peer.endpoint()?.remote.direct()
    }

    /// Sets where a peer is reached, from the next datagram on. A peer that roams may move again.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn set_endpoint(
        &mut self,
        peer: &PublicKey,
        endpoint: Endpoint,
    ) -> Result<(), CommandError> {
        let entry = self.peers.get(peer).ok_or(CommandError::UnknownPeer(*peer))?;
        let kept_alive = entry.keeps_alive();
        entry.peer.set_endpoint(endpoint);
        if self.running {
            self.device.outbound_mailbox.post(&entry.peer, entry.notice_after(kept_alive));
        }
        Ok(())
    }

    /// Gives networks to other peers, all at once: each packet sees all of them moved, or none.
    ///
    /// # Errors
    /// There is no peer with one of the keys.
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
