//! Values that both directions of a data plane share.

use std::sync::Arc;

use packet::Waker;
use wg::Device;

use crate::{
    Clock, ControlSender, Filter, IcmpErrors, Load, MessageSender, Observer, OwnPackets,
    PeerSockets, PrefixTable, RelayQueues, observer::Watch,
};

/// Optional parts of a data plane. By default all are absent, at no cost.
#[derive(Clone, Default)]
pub struct Attachments {
    /// Receives the packets inside the tunnel.
    pub observer: Option<Arc<dyn Observer>>,
    /// Receives datagrams of control protocols.
    pub control_datagrams: Option<ControlSender>,
    /// Queues to and from the relay client.
    pub relay: Option<RelayQueues>,
    /// Peers behind peer relays.
    pub prefixes: PrefixTable,
    /// Peers that have their own socket.
    pub peer_sockets: PeerSockets,
    /// Decides which packets of peers may enter. Accepts all until a policy is set.
    pub filter: Arc<Filter>,
    /// Receives the packets of open protocols.
    pub messages: Option<MessageSender>,
    /// Packets from this program to peers.
    pub own_packets: OwnPackets,
}

/// Arguments that all halves share.
pub struct Shared {
    pub(crate) device: Arc<Device>,
    pub(crate) clock: Clock,
    /// Each half writes its own counters.
    pub(crate) load: Arc<Load>,
    pub(crate) returned: Arc<IcmpErrors>,
    pub(crate) attached: Attachments,
}

impl Shared {
    /// For halves around `device`. `wake_inbound` wakes the inbound half.
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
