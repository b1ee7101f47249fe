//! The endpoints of peers that are not at an address of their own: at relays, and behind nodes that
//! pass datagrams on.

use std::net::SocketAddr;

use engine::{Prefixed, Prefixes, Relay};
use packet::{Endpoint, Remote, Waker};
use tailnet::{
    line::Path,
    peer_relay::{Geneve, Protocol, Vni},
};

/// The tables of such endpoints. Clones are the same.
#[derive(Clone)]
pub(super) struct Places {
    pub relay: Relay,
    pub prefixes: Prefixes,
}

impl Places {
    /// Empty ones. `wake_inbound` ends the wait of the data plane's UDP side.
    pub fn new(wake_inbound: Waker) -> Self {
        Self { relay: Relay::new(wake_inbound), prefixes: Prefixes::default() }
    }

    /// Where a datagram came from, in the agent's words.
    pub fn path_of(&self, endpoint: &Endpoint) -> Option<Path> {
        match endpoint.remote {
            Remote::Direct(address) => Some(Path::Direct(address)),
            Remote::Relayed(_) => {
                let relay = self.relay.peer(endpoint).map(|peer| Path::Relay(peer.region));
                relay.or_else(|| {
                    let Prefixed { at, prefix } = self.prefixes.place(endpoint)?;
                    Some(Path::PeerRelay { at, vni: Geneve::read(&prefix)?.vni })
                })
            }
        }
    }
}

/// Where a peer is that is passed on by a peer relay.
pub(super) fn passed(at: SocketAddr, vni: Vni) -> Prefixed {
    let header = Geneve { control: false, protocol: Protocol::WireGuard, vni };
    Prefixed { at, prefix: header.bytes() }
}
