//! The endpoints of peers behind DERP relays, behind peer relays and at auxiliary sockets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{PeerSockets, PrefixTable, PrefixedAddr, RelayQueues};
use ipc::{AuxiliarySocket, Path};
use packet::{Endpoint, Remote, Waker};
use tailnet::geneve::{Geneve, Protocol, Vni};

/// The tables of such endpoints. Clones share them.
#[derive(Clone)]
pub(super) struct EndpointTables {
    pub relay: RelayQueues,
    pub prefixes: PrefixTable,
    pub auxiliaries: PeerSockets,
    auxiliary_endpoints: Arc<Mutex<Vec<AuxiliaryEndpoint>>>,
}

/// The endpoint of a peer that is reached from an auxiliary socket.
#[derive(Clone, Copy)]
struct AuxiliaryEndpoint {
    endpoint: Endpoint,
    at: SocketAddr,
    socket: AuxiliarySocket,
}

impl EndpointTables {
    /// Empty tables. `wake_inbound` ends the wait of the data plane's UDP side.
    pub(super) fn new(wake_inbound: Waker) -> Self {
        Self {
            relay: RelayQueues::new(wake_inbound),
            prefixes: PrefixTable::default(),
            auxiliaries: PeerSockets::default(),
            auxiliary_endpoints: Arc::default(),
        }
    }

    /// Adds the endpoint of a peer at this address and socket.
    pub(super) fn add_auxiliary(
        &self,
        endpoint: Endpoint,
        at: SocketAddr,
        socket: AuxiliarySocket,
    ) {
        self.auxiliary_endpoints().push(AuxiliaryEndpoint { endpoint, at, socket });
    }

    pub(super) fn remove_auxiliary(&self, endpoint: &Endpoint) {
        self.auxiliary_endpoints().retain(|one| one.endpoint != *endpoint);
    }

    /// The socket of an endpoint, and the address of its peer.
    pub(super) fn auxiliary(&self, endpoint: &Endpoint) -> Option<(SocketAddr, AuxiliarySocket)> {
        let auxiliary_endpoints = self.auxiliary_endpoints();
        auxiliary_endpoints
            .iter()
            .find(|one| one.endpoint == *endpoint)
            .map(|one| (one.at, one.socket))
    }

    fn auxiliary_endpoints(&self) -> MutexGuard<'_, Vec<AuxiliaryEndpoint>> {
        self.auxiliary_endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent's name for the source of a datagram.
    pub(super) fn path_of(&self, endpoint: &Endpoint) -> Option<Path> {
        match endpoint.remote {
            Remote::Direct(address) => Some(Path::Direct(address)),
            Remote::Relayed(_) => {
                let relay = self.relay.peer(endpoint).map(|peer| Path::Relay(peer.region));
                let auxiliary = || {
                    let (at, socket) = self.auxiliary(endpoint)?;
                    Some(Path::Auxiliary { at, number: socket.number })
                };
                relay.or_else(auxiliary).or_else(|| {
                    let PrefixedAddr { at, prefix } = self.prefixes.get(endpoint)?;
                    Some(Path::PeerRelay { at, vni: Geneve::read(&prefix)?.vni })
                })
            }
        }
    }
}

/// The address and header of a peer behind a peer relay.
pub(super) fn behind_peer_relay(at: SocketAddr, vni: Vni) -> PrefixedAddr {
    let header = Geneve { control: false, protocol: Protocol::WireGuard, vni };
    PrefixedAddr { at, prefix: header.bytes() }
}
