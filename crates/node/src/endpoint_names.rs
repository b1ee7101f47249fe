//! The names of peers' endpoints, for resolving them again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use config::{EndpointName, uapi::Change};
use packet::Endpoint;
use wg::PublicKey;

use super::{Node, lock, now};

/// A peer with a named endpoint that does not answer handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    pub peer: PublicKey,
    pub name: EndpointName,
    /// The address to which initiations are sent.
    pub endpoint: Option<SocketAddr>,
}

/// The names of endpoints, by peer.
#[derive(Debug, Default)]
pub(super) struct Names {
    of_peers: Mutex<HashMap<PublicKey, EndpointName>>,
    /// Whether they are resolved again.
    are_followed: AtomicBool,
}

impl Names {
    /// Removes the names of peers that a change removes or moves to an endpoint. From then on the
    /// address applies.
    pub(crate) fn remove(&self, change: &Change) {
        let mut names = self.lock();
        if change.device.replace_peers {
            names.clear();
        }
        for peer in change.device.peers.iter().filter(|it| it.remove || it.endpoint.is_some()) {
            names.remove(&peer.public_key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PublicKey, EndpointName>> {
        self.of_peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Replaces the stored names of endpoints. Endpoints without a name are skipped.
    pub fn name_endpoints(&self, names: impl IntoIterator<Item = (PublicKey, EndpointName)>) {
        let named = names.into_iter().filter(|(_, name)| name.is_name());
        *self.names.lock() = named.collect();
    }

    /// The peers with a named endpoint that do not answer a handshake.
    pub fn unanswered(&self) -> Vec<Unanswered> {
        let names = self.names.lock();
        let control = lock(&self.control);
        let trying = names.iter().filter(|(peer, _)| control.is_handshaking(peer));
        let unanswered = trying.map(|(peer, name)| Unanswered {
            peer: *peer,
            name: name.clone(),
            endpoint: control.endpoint(peer),
        });
        unanswered.collect()
    }

    /// Moves a peer to another address of its name, if name and endpoint are unchanged and the peer
    /// still does not answer. Returns whether it was moved.
    pub fn move_unanswered(&self, unanswered: &Unanswered, to: SocketAddr) -> bool {
        let Unanswered { peer, name, endpoint } = unanswered;
        let names = self.names.lock();
        let mut control = lock(&self.control);
        let is_as_before = names.get(peer) == Some(name)
            && control.is_handshaking(peer)
            && control.endpoint(peer) == *endpoint;
        let moved = is_as_before
            && control.set_endpoint(peer, Endpoint::new(to)).is_ok()
            && control.handshake_now(peer, now()).is_ok();
        drop(control);
        self.engine.wake();
        moved
    }

    /// Notes that the names are resolved again from now on.
    pub fn follow_names(&self) {
        self.names.are_followed.store(true, Ordering::Relaxed);
    }

    /// Whether the names are resolved again.
    pub fn follows_names(&self) -> bool {
        self.names.are_followed.load(Ordering::Relaxed)
    }
}
