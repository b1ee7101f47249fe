//! Relays: connections to regions, by which datagrams go that have no direct path.
//!
//! ```text
//!   commands ──► run ──► a queue a region ──► region: connect, log in, serve ──► relay
//!                          50 ms, 1 MiB          │    ▲                            │
//!   events ◄─────────────────────────────────────┘    └────────── frames ◄─────────┘
//! ```
//!
//! The home region stays connected; another is connected when there is something to send, and until
//! nothing was said for a minute. What one read brings is one event. The node key is with the data
//! plane, so a login asks for its contents by an event.
//!
//! A relay's `ServerInfo` is sealed for the node key too, and may ask that no more than so much be
//! sent. It is not opened: the relay holds up what comes faster, and the queue here is short.

mod connect;
mod queue;
mod region;
mod serve;
#[cfg(test)]
mod tests;
mod tls;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tailnet::{
    keys::NodePublic,
    messages::{DerpMap, DerpRegion},
    scope::Scope,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use self::{queue::Chunk, region::Handle};
use super::control::dial::{Dialer, SocketHook};

/// How much waits in the kernel. What waits longer is in the queue, where it can be dropped.
const UNSENT: u32 = 64 << 10;

/// How relays are reached.
pub struct Settings {
    /// What connects.
    pub dialer: Dialer,
}

/// What relays are told.
#[derive(Debug)]
pub enum Command {
    /// All relays, and the scope of their addresses. An empty map changes nothing.
    Map(DerpMap, Scope),
    /// The region that is home.
    Home(Option<u16>),
    /// Send datagrams to a peer.
    Send {
        /// Through this region.
        region: u16,
        /// The peer.
        to: NodePublic,
        /// The datagrams, back to back.
        bytes: Bytes,
        /// The length of each but the last.
        segment: usize,
        /// Whether the peer takes bundles.
        bundled: bool,
    },
    /// The network is another: find out whether the connections still work.
    NetworkChanged,
    /// The node key is another: log in anew.
    KeyChanged,
    /// Connect to a region only to say how far it is; nothing if that fails. For where UDP is
    /// blocked.
    Measure {
        /// The region.
        region: u16,
        /// The round trip of a request.
        reply: oneshot::Sender<Option<Duration>>,
    },
}

/// What happens at relays.
#[derive(Debug)]
pub enum Event {
    /// Datagrams came.
    Received {
        /// Through this region.
        region: u16,
        /// Senders and datagrams.
        datagrams: Vec<(NodePublic, Bytes)>,
    },
    /// A relay of a region accepted the login.
    Connected {
        /// The region.
        region: u16,
        /// The round trip of a request to it.
        latency: Duration,
    },
    /// The connection to a region broke, or none could be made. It is tried again if it is home, or
    /// if there is something to send.
    Disconnected {
        /// The region.
        region: u16,
        /// Whether a relay had accepted the login.
        was_up: bool,
        /// Why.
        why: String,
    },
    /// A peer is not connected to a region.
    PeerGone {
        /// The region.
        region: u16,
        /// The peer.
        peer: NodePublic,
        /// The relay's number for the reason: 0 it left, 1 it is not known there.
        reason: u8,
    },
    /// What a relay says of the connection; empty for nothing any more.
    Health {
        /// The region.
        region: u16,
        /// Its words.
        text: String,
    },
    /// The contents of a login are wanted, sealed with the node key for a relay's.
    Login {
        /// The region.
        region: u16,
        /// The relay's key.
        server: [u8; 32],
        /// The contents; empty if there is no node key.
        reply: oneshot::Sender<Bytes>,
    },
}

/// Keeps connections to relays, as it is told, until nobody tells it any more.
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
                handle.send(Chunk { at: Instant::now(), to, bytes, segment, bundled });
            }
            Command::NetworkChanged => self.handles().for_each(Handle::check),
            Command::KeyChanged => self.handles().for_each(Handle::reconnect),
            Command::Measure { region, reply } => {
                let Some((relays, _)) = self.regions.get(&region) else { return };
                let (relays, dialer) = (Arc::clone(relays), self.dialer.clone());
                tokio::spawn(async move {
                    let _ = reply.send(connect::measure(&dialer, &relays).await.ok());
                });
            }
        }
    }

    /// Connections to relays that are in the new map as they were in the old are kept.
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
            handle.set_home(false);
        }
        self.home = home;
        if let Some(handle) = home.and_then(|home| self.open(home)) {
            handle.set_home(true);
        }
    }

    /// What tells a region, which is begun with unless it runs.
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
