//! Configuration: applies changes and returns the state.

use std::sync::Arc;

use crypto::noise::Identity;
use ipnet::IpNet;
use packet::Endpoint;
use rand_core::CryptoRng;

use super::{Control, OwnKey, entry::Entry, unknown_senders::UnknownSenders};
use crate::{
    PrivateKey, PublicKey,
    config::{AllowedIpChange, DeviceChange, PeerChange, PeerState, PeerTraffic},
    constants::MAX_PEERS,
    cookie::CookieChecker,
    peer::Peer,
    stack,
};

/// Error of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The device would have more than [`MAX_PEERS`] peers.
    TooManyPeers,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a device has at most {MAX_PEERS} peers")
    }
}

impl std::error::Error for ConfigError {}

impl<R: CryptoRng> Control<R> {
    /// Applies a change.
    ///
    /// # Errors
    /// The change cannot be applied. The parts before the failed one remain applied.
    pub fn apply(&mut self, change: DeviceChange) -> Result<(), ConfigError> {
        if let Some(key) = change.private_key {
            stack::run_and_wipe(|| self.set_private_key(key));
        }
        if change.replace_peers {
            for key in self.peers.keys().copied().collect::<Vec<_>>() {
                self.remove_peer(&key);
            }
        }
        for peer in change.peers {
            self.change_peer(peer)?;
        }
        Ok(())
    }

    /// Our own private key.
    pub fn private_key(&self) -> Option<&PrivateKey> {
        self.own.as_ref().map(|own| &own.identity.private)
    }

    /// The state of every peer.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = PeerState> {
        self.peers.values().map(|entry| {
            let (rx_bytes, tx_bytes) = entry.peer.bytes();
            PeerState {
                public_key: *entry.peer.public_key(),
                preshared_key: entry.psk.clone(),
                endpoint: entry.peer.endpoint().and_then(|endpoint| endpoint.remote.direct()),
                last_handshake: entry.last_handshake,
                rx_bytes,
                tx_bytes,
                persistent_keepalive: entry.persistent_keepalive,
                allowed_ips: entry.allowed_ips.to_vec(),
                path_mtu: entry.path.found(),
                post_quantum: entry.agreed(),
            }
        })
    }

    /// Returns the traffic counters of each peer. Cheaper than [`Control::peers`].
    pub fn traffic(&self) -> impl ExactSizeIterator<Item = PeerTraffic> {
        self.peers.values().map(|entry| {
            let (rx_bytes, tx_bytes) = entry.peer.bytes();
            PeerTraffic {
                public_key: *entry.peer.public_key(),
                rx_bytes,
                tx_bytes,
                last_handshake: entry.last_handshake,
                received_from: entry.peer.received_from(),
                path_mtu: entry.path.found(),
                post_quantum: entry.agreed(),
            }
        })
    }

    /// Sets the private key. A new key ends every session and handshake (kernel `wg_set_device`).
    fn set_private_key(&mut self, key: Option<PrivateKey>) {
        if self.private_key() == key.as_ref() {
            return;
        }
        self.own = key.map(|private| {
            let identity = Identity::new(private);
            let checker = CookieChecker::new(&identity.public);
            OwnKey { identity, checker }
        });
        self.unknown_senders = UnknownSenders::default();
        if let Some(own) = self.own_key() {
            self.remove_peer(&own);
        }
        for entry in self.peers.values_mut() {
            entry.wipe_secrets(&self.device);
            entry.handshake.clear_static_static();
            entry.agreement.reset();
            entry.timers.clear_handshake();
            entry.peer.activity.block_handshakes_until(None);
        }
    }

    fn own_key(&self) -> Option<PublicKey> {
        self.own.as_ref().map(|own| own.identity.public)
    }

    fn change_peer(&mut self, change: PeerChange) -> Result<(), ConfigError> {
        let key = change.public_key;
        if change.remove {
            self.remove_peer(&key);
            return Ok(());
        }
        // A device is never its own peer (kernel `set_peer`).
        if self.own_key() == Some(key) || change.update_only && !self.peers.contains_key(&key) {
            return Ok(());
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&key) {
            return Err(ConfigError::TooManyPeers);
        }
        let entry = self.peers.entry(key).or_insert_with(|| {
            self.unknown_senders.admit(key);
            Box::new(Entry::new(Peer::new(key)))
        });
        if let Some(psk) = change.preshared_key {
            entry.psk = psk;
        }
        let had_keepalive = entry.has_keepalive();
        if let Some(remote) = change.endpoint {
            entry.peer.set_endpoint(Endpoint::new(remote));
        }
        if let Some(roaming) = change.roaming {
            entry.peer.set_roaming(roaming);
        }
        if let Some(interval) = change.persistent_keepalive {
            entry.persistent_keepalive = interval;
        }
        let notice = entry.notice_after_change(had_keepalive);
        let peer = entry.peer.clone();
        if change.replace_allowed_ips {
            self.clear_allowed_ips(&key);
        }
        for allowed_ip in change.allowed_ips {
            self.change_allowed_ip(&peer, allowed_ip);
        }
        if self.running {
            self.device.outbound_mailbox.post(&peer, notice);
        }
        // A shorter interval may need an earlier deadline.
        self.device.control_mailbox.post(&peer, crate::device::ControlNotice::Replan);
        Ok(())
    }

    fn remove_peer(&mut self, key: &PublicKey) {
        self.clear_allowed_ips(key);
        if let Some(mut entry) = self.peers.remove(key) {
            self.unplan(&entry);
            entry.reset(&self.device);
            self.device.events.remove_peer(&entry.peer);
        }
    }

    fn change_allowed_ip(&mut self, peer: &Arc<Peer>, change: AllowedIpChange) {
        let net = change.net.trunc();
        let mut table = self.device.allowed_ips_mut();
        let loser = if change.remove {
            match table.get(net) {
                Some(owner) if Arc::ptr_eq(owner, peer) => table.remove(net),
                _ => return,
            }
        } else {
            table.insert(net, peer.clone())
        };
        drop(table);
        if let Some(loser) = loser {
            self.disown(&loser, &net);
        }
        if !change.remove
            && let Some(entry) = self.peers.get_mut(peer.public_key())
        {
            entry.allowed_ips.insert(net);
        }
    }

    pub(super) fn disown(&mut self, loser: &Peer, net: &IpNet) {
        if let Some(entry) = self.peers.get_mut(loser.public_key()) {
            entry.allowed_ips.remove(net);
        }
    }

    fn clear_allowed_ips(&mut self, key: &PublicKey) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        for net in std::mem::take(&mut entry.allowed_ips).to_vec() {
            self.device.allowed_ips_mut().remove(net);
        }
    }
}
