//! State shared by both directions of the data path and the control half: the tables, the mailboxes
//! between them, and the drop counters.
//!
//! ```text
//!         route, reserve, handle_sent              session, handle_received
//!   outbound ---------------------->  Device  <---------------------- inbound
//!      ^                               ^   |                             |
//!      |  outbound_mailbox             |   |  control_mailbox            |
//!      +---------------------------- Control <---------------------------+
//! ```

mod handshakes;
mod inbound;
mod mailbox;
mod outbound;
mod path_mtu;
mod post_quantum;
mod stack_wipes;

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

pub use handshakes::HandshakeCounts;
pub use inbound::{ReceiveError, ReceivedMessages};
pub(crate) use mailbox::Mailbox;
pub use mailbox::{ControlNotice, OutboundNotice};
pub use outbound::{Reservation, ReserveError, SentDatagrams};
pub use stack_wipes::{KeyUser, StackWipes};

use crate::{
    allowed_ips::AllowedIps, drops::Drops, events::Events, index_table::IndexTable,
    keypair::Keypair, peer::Peer, time::Time,
};

#[derive(Debug)]
pub struct Device {
    allowed_ips: RwLock<AllowedIps<Arc<Peer>>>,
    indices: RwLock<IndexTable>,
    /// Peers with notices for the control half.
    pub control_mailbox: Mailbox<ControlNotice>,
    /// Peers with notices for the outbound half.
    pub outbound_mailbox: Mailbox<OutboundNotice>,
    /// Dropped packets by reason.
    pub drops: Drops,
    /// Answered handshakes and their durations.
    pub handshakes: HandshakeCounts,
    /// Events for a subscriber.
    pub events: Events,
    /// Requests to wipe the stacks of the threads that used the keys of ended sessions.
    pub stack_wipes: StackWipes,
}

/// A read lock on the allowed IPs of all peers.
#[derive(Debug)]
pub struct Routes<'a>(RwLockReadGuard<'a, AllowedIps<Arc<Peer>>>);

impl Routes<'_> {
    /// Returns the peer that owns `address` by its allowed IPs.
    pub fn lookup(&self, address: IpAddr) -> Option<&Arc<Peer>> {
        self.0.lookup(address)
    }
}

impl Device {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            allowed_ips: RwLock::default(),
            indices: RwLock::default(),
            control_mailbox: Mailbox::new(|peer| &peer.control_mailbox),
            outbound_mailbox: Mailbox::new(|peer| &peer.outbound_mailbox),
            drops: Drops::default(),
            handshakes: HandshakeCounts::default(),
            events: Events::default(),
            stack_wipes: StackWipes::default(),
        })
    }

    /// Read-locks the allowed IPs, for one batch of packets.
    pub fn routes(&self) -> Routes<'_> {
        Routes(self.allowed_ips.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the peer that owns `address` by its allowed IPs.
    pub fn route(&self, address: IpAddr) -> Option<Arc<Peer>> {
        self.routes().lookup(address).cloned()
    }

    /// Reports a packet that was dropped because no peer's allowed IPs contain `address`. With peer
    /// lookup on, the subscriber gets an event and may add a peer, which receives the sender's next
    /// packet.
    pub fn report_unknown_address(&self, address: IpAddr, now: Time) {
        if self.events.is_lookup_enabled() {
            self.events.post_unknown_address(address, now);
        }
    }

    pub(crate) fn allowed_ips_mut(&self) -> RwLockWriteGuard<'_, AllowedIps<Arc<Peer>>> {
        self.allowed_ips.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn indices(&self) -> RwLockReadGuard<'_, IndexTable> {
        self.indices.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn indices_mut(&self) -> RwLockWriteGuard<'_, IndexTable> {
        self.indices.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes keypairs that are out of use from the index table, and requests that the data path
    /// wipes copies of their keys.
    pub(crate) fn retire(&self, keypairs: impl IntoIterator<Item = Arc<Keypair>>) {
        let mut any = false;
        for keypair in keypairs {
            self.indices_mut().remove(keypair.local_index);
            any = true;
        }
        if any {
            self.stack_wipes.request();
        }
    }
}
