//! DERP relays: connections to regions, for datagrams without a direct path.
//!
//! ```text
//!   commands ──► run ──► one queue per region ──► region: connect, log in, serve ──► relay
//!                          50 ms, 1 MiB             │    ▲                             │
//!   events ◄────────────────────────────────────────┘    └────────── frames ◄──────────┘
//! ```
//!
//! The home region stays connected. Another region is connected while it has datagrams, and is
//! closed after a minute without any. The datagrams of one read are one event. The data plane has
//! the node key, so each login requests its sealed contents by an event.
//!
//! A relay's `ServerInfo` is also sealed for the node key and may contain a rate limit. It is not
//! opened: the relay delays excess data, and the queue here is short.

mod connect;
mod queue;
mod region;
mod serve;
mod state;
#[cfg(test)]
mod tests;
mod tls;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use mesh::permitted_addresses::Scope;
use tailnet::{
    keys::NodePublic,
    map_messages::{DerpMap, DerpRegion},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use self::{queue::Chunk, region::Handle};
use super::control::dial::{Dialer, SocketHook};

/// The limit of unsent bytes in the kernel. More bytes wait in the queue, from which they can be
/// dropped.
const UNSENT: u32 = 64 << 10;

/// The settings of the connections to relays.
pub struct Settings {
    /// Opens the connections.
    pub dialer: Dialer,
}

/// Commands to the relays' task.
#[derive(Debug)]
pub enum Command {
    /// All relays, and the scope of their addresses. An empty map changes nothing.
    Map(DerpMap, Scope),
    /// The home region.
    Home(Option<u16>),
    /// Sends datagrams to a peer.
    Send {
        /// The region.
        region: u16,
        /// The peer.
        to: NodePublic,
        /// The datagrams, back to back.
        bytes: Bytes,
        /// The length of each but the last.
        segment: usize,
        /// Whether the peer accepts bundles.
        bundled: bool,
    },
    /// The network changed: tests the connections.
    NetworkChanged,
    /// The node key changed: logs in again.
    KeyChanged,
    /// Measures the latency of a region by HTTP, for networks that block UDP.
    Measure {
        /// The region.
        region: u16,
        /// The round-trip time of a request; `None` if it failed.
        reply: oneshot::Sender<Option<Duration>>,
    },
}

/// Events of the relays' task.
#[derive(Debug)]
pub enum Event {
    /// Received datagrams.
    Received {
        /// The region.
        region: u16,
        /// Senders and datagrams.
        datagrams: Vec<(NodePublic, Bytes)>,
    },
    /// A relay of a region accepted the login.
    Connected {
        /// The region.
        region: u16,
        /// The round-trip time of a request to it.
        latency: Duration,
    },
    /// The connection to a region ended or failed. It is retried if the region is home or has
    /// datagrams.
    Disconnected {
        /// The region.
        region: u16,
        /// Whether a relay had accepted the login.
        was_up: bool,
        /// The reason.
        why: String,
    },
    /// A peer is not connected to a region.
    PeerGone {
        /// The region.
        region: u16,
        /// The peer.
        peer: NodePublic,
        /// The relay's code for the reason: 0 if the peer left, 1 if it is unknown there.
        reason: u8,
    },
    /// A relay's warning about the connection; empty if it is resolved.
    Health {
        /// The region.
        region: u16,
        /// The warning.
        text: String,
    },
    /// Requests the contents of a login, sealed with the node key for the relay's key.
    Login {
        /// The region.
        region: u16,
        /// The relay's key.
        server: [u8; 32],
        /// The contents; empty without a node key.
        reply: oneshot::Sender<Bytes>,
    },
}

/// Runs the connections to relays until the channel of commands is closed.
pub async fn run(
    settings: Settings,
    mut commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
) {
    let limit: SocketHook = Arc::new(|socket| sys::unsent::limit_unsent(socket, UNSENT));
    let dialer = settings.dialer.with_hook(limit);
    let (scope, home, regions) = (Scope::default(), None, BTreeMap::new());
    let mut relays = Relays { dialer, scope, events, home, regions };
    while let Some(command) = commands.recv().await {
        relays.handle(command);
    }
}

struct Relays {
    dialer: Dialer,
    scope: Scope,
    events: mpsc::Sender<Event>,
    home: Option<u16>,
    regions: BTreeMap<u16, (Arc<DerpRegion>, Option<Handle>)>,
}

impl Relays {
    fn handle(&mut self, command: Command) {
        match command {
            Command::Map(map, scope) => self.set_map(map, scope),
            Command::Home(home) => self.set_home(home),
            Command::Send { region, to, bytes, segment, bundled } => {
                let Some(handle) = self.open(region) else { return };
                handle.shared().push(Chunk { at: Instant::now(), to, bytes, segment, bundled });
            }
            Command::NetworkChanged => self.handles().for_each(|handle| handle.shared().check()),
            Command::KeyChanged => self.handles().for_each(|handle| handle.shared().reconnect()),
            Command::Measure { region, reply } => {
                let Some((relays, _)) = self.regions.get(&region) else { return };
                let (relays, dialer) = (Arc::clone(relays), self.dialer.clone());
                tokio::spawn(async move {
                    let _ = reply.send(connect::measure(&dialer, &relays).await.ok());
                });
            }
        }
    }

    /// Connections to unchanged relays remain.
    fn set_map(&mut self, map: DerpMap, scope: Scope) {
        let regions = map.regions.unwrap_or_default();
        let mut regions: BTreeMap<u16, DerpRegion> =
            regions.into_iter().filter_map(|(id, region)| Some((id, region?))).collect();
        if regions.is_empty() {
            return;
        }
        let is_same = std::mem::replace(&mut self.scope, scope) == scope;
        self.dialer = self.dialer.clone().within(scope);
        self.regions.retain(|id, (relays, _)| {
            is_same && regions.get(id).is_some_and(|region| region.nodes == relays.nodes)
        });
        regions.retain(|id, _| !self.regions.contains_key(id));
        let new = regions.into_iter().map(|(id, region)| (id, (Arc::new(region), None)));
        self.regions.extend(new);
        self.set_home(self.home);
    }

    fn set_home(&mut self, home: Option<u16>) {
        if let Some(old) = self.home.filter(|old| home != Some(*old))
            && let Some((_, Some(handle))) = self.regions.get(&old)
        {
            handle.shared().set_home(false);
        }
        self.home = home;
        if let Some(handle) = home.and_then(|home| self.open(home)) {
            handle.shared().set_home(true);
        }
    }

    /// The handle of a region, which is started if necessary.
    fn open(&mut self, id: u16) -> Option<&Handle> {
        let (relays, handle) = self.regions.get_mut(&id)?;
        let open = || region::open(id, Arc::clone(relays), self.dialer.clone(), &self.events);
        Some(handle.get_or_insert_with(open))
    }

    fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.regions.values().filter_map(|(_, handle)| handle.as_ref())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settings")
    }
}
