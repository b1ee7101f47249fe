//! What both directions of a data plane have in common.

use std::sync::Arc;

use packet::Waker;
use wg::Device;

use crate::{
    Clock, ControlSender, Filter, IcmpErrors, Load, MessageSender, Observer, OwnPackets,
    PeerSockets, PrefixTable, RelayQueues, observer::Watch,
};

/// What is attached to a data plane. By default nothing is, and costs nothing.
#[derive(Clone, Default)]
pub struct Attachments {
    /// Sees the packets inside the tunnel, when it wants to.
    pub observer: Option<Arc<dyn Observer>>,
    /// Gets the datagrams that are registered with it.
    pub control_datagrams: Option<ControlSender>,
    /// Sends to relayed endpoints, and receives from them.
    pub relay: Option<RelayQueues>,
    /// Peers behind nodes that pass datagrams on.
    pub prefixes: PrefixTable,
    /// Peers that are reached from sockets of their own.
    pub peer_sockets: PeerSockets,
    /// Which packets of peers may enter: all, until a policy is set.
    pub filter: Arc<Filter>,
    /// Gets the packets of protocols that the filter's policy names as open.
    pub messages: Option<MessageSender>,
    /// Packets of this program's own to peers.
    pub own_packets: OwnPackets,
}

/// Passed to the constructor of each half.
pub struct Shared {
    pub(crate) device: Arc<Device>,
    pub(crate) clock: Clock,
    /// Each half writes its own counters.
    pub(crate) load: Arc<Load>,
    pub(crate) returned: Arc<IcmpErrors>,
    pub(crate) attached: Attachments,
}

impl Shared {
    /// For halves around `device`. `wake_inbound` wakes the inbound one.
    pub fn new(
        device: Arc<Device>,
        clock: Clock,
        wake_inbound: Waker,
        attached: Attachments,
    ) -> Self {
        let returned = Arc::new(IcmpErrors::new(wake_inbound));
        Self { device, clock, load: Arc::default(), returned, attached }
    }

    pub(crate) fn watch(&self) -> Option<Watch> {
        let observer = self.attached.observer.clone();
        observer.map(|observer| Watch::new(observer, self.clock.clone()))
    }
}
