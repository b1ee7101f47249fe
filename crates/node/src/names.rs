//! The names that endpoints of peers were resolved from, to resolve them again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use config::{conf::EndpointName, uapi::Change};
use wg::PublicKey;

use super::{Node, lock};

/// A peer with a named endpoint that does not answer handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    pub peer: PublicKey,
    pub name: EndpointName,
    /// The address that initiations are sent to.
    pub endpoint: Option<SocketAddr>,
}

/// The names of endpoints, by peer.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<PublicKey, EndpointName>>);

impl Names {
    /// Drops the names of the peers that a change removes or gives an endpoint. From then on the
    /// address counts.
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
    /// Stores the names that endpoints were resolved from, in place of all former ones. Endpoints
    /// that are addresses are skipped.
    pub fn name_endpoints(&self, names: impl IntoIterator<Item = (PublicKey, EndpointName)>) {
        let named = names.into_iter().filter(|(_, name)| name.is_name());
        *self.names.lock() = named.collect();
    }

    /// The peers with a named endpoint that do not answer a handshake.
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
