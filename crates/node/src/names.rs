//! The names that endpoints of peers were resolved from, to resolve them again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use config::{conf::EndpointName, uapi::Change};
use wg::PublicKey;

use super::{Node, lock};

/// A peer that has the name of its endpoint, and does not answer handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    pub peer: PublicKey,
    pub name: EndpointName,
    /// Where the initiations are sent.
    pub endpoint: Option<SocketAddr>,
}

/// The name of each peer's endpoint that has one.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<PublicKey, EndpointName>>);

impl Names {
    /// Drops the names of the peers whose endpoints a change sets: an address counts from then on.
    pub fn forget(&self, change: &Change) {
        let mut names = self.lock();
        if change.device.replace_peers {
            names.clear();
        }
        for peer in change.device.peers.iter().filter(|it| it.remove || it.endpoint.is_some()) {
            names.remove(&peer.public_key);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PublicKey, EndpointName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Stores the names that endpoints were resolved from, in place of all former ones. An endpoint
    /// that is an address has none.
    pub fn name_endpoints(&self, names: impl IntoIterator<Item = (PublicKey, EndpointName)>) {
        let named = names.into_iter().filter(|(_, name)| name.is_name());
        *self.names.lock() = named.collect();
    }

    /// The peers that have the name of an endpoint, and do not answer a handshake.
    pub fn unanswered(&self) -> Vec<Unanswered> {
        let names = self.names.lock();
        let control = lock(&self.control);
        let trying = names.iter().filter(|(peer, _)| control.is_trying(peer));
        let unanswered = trying.map(|(peer, name)| Unanswered {
            peer: *peer,
            name: name.clone(),
            endpoint: control.endpoint(peer),
        });
        unanswered.collect()
    }
}
