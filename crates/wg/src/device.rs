//! What both directions of the data path and the control half share: the tables,
//! the mailboxes between them, and the counters of drops.
//!
//! ```text
//!            route, reserve, sent                session, received
//!   outbound ------------------->  Device  <---------------------- inbound
//!      ^                            ^   |                             |
//!      |  outbound_mailbox              |   |  control_mailbox                |
//!      +------------------------- Control <---------------------------+
//! ```

mod handshakes;
mod inbound;
mod mailbox;
mod outbound;
mod stack_wipes;

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

pub use handshakes::HandshakeCounts;
pub use inbound::{ReceiveError, ReceivedBatch};
pub use mailbox::{ControlNotice, Mailbox, OutboundNotice};
pub use outbound::{Reservation, ReserveError, SentBatch};
pub use stack_wipes::{KeyUser, StackWipes};

use crate::{
    allowed_ips::AllowedIps, drops::Drops, events::Events, index_table::IndexTable,
    keypair::Keypair, peer::Peer, time::Time,
};

/// The shared state of one device.
#[derive(Debug)]
pub struct Device {
    allowed_ips: RwLock<AllowedIps<Arc<Peer>>>,
    indices: RwLock<IndexTable>,
    /// Peers that want something of the control half.
    pub control_mailbox: Mailbox<ControlNotice>,
    /// Peers for which the outbound half has something to send.
    pub outbound_mailbox: Mailbox<OutboundNotice>,
    /// What was dropped, and why.
    pub drops: Drops,
    /// How fast peers answer handshakes.
    pub handshakes: HandshakeCounts,
    /// What happened, for a subscriber.
    pub events: Events,
    /// Sessions that ended, whose keys the data path is to forget.
    pub stack_wipes: StackWipes,
}

/// The allowed IPs of all peers, as they are now.
#[derive(Debug)]
pub struct Routes<'a>(RwLockReadGuard<'a, AllowedIps<Arc<Peer>>>);

impl Routes<'_> {
    /// The peer whose allowed IPs hold `address`.
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

    /// To which peer each address belongs. Held for the packets of one batch.
    pub fn routes(&self) -> Routes<'_> {
        Routes(self.allowed_ips.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The peer whose allowed IPs hold `address`.
    pub fn route(&self, address: IpAddr) -> Option<Arc<Peer>> {
        self.routes().lookup(address).cloned()
    }

    /// Notes that a packet was dropped because its destination is in nobody's allowed IPs: where
    /// peers are looked up, the subscriber is asked who it might be. The sender's next packet may
    /// find a peer.
    pub fn report_unknown_address(&self, address: IpAddr, now: Time) {
        if self.events.looks_up() {
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

    /// Takes keypairs that are out of use out of the index table, and has the data path forget
    /// them.
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
