//! What both directions of a data plane have in common.

use std::sync::Arc;

use packet::Waker;
use wg::Device;

use crate::{
    Auxiliaries, Clock, ControlSender, Filter, Load, MessageSender, Observer, OwnPackets, Prefixes,
    Relay, Returned, observer::Watch,
};

/// What is attached to a data plane. By default nothing is, and costs nothing.
#[derive(Clone, Default)]
pub struct Attached {
    /// Sees the packets inside the tunnel, when it wants to.
    pub observer: Option<Arc<dyn Observer>>,
    /// Gets the datagrams that are registered with it.
    pub control_datagrams: Option<ControlSender>,
    /// Sends to relayed endpoints, and receives from them.
    pub relay: Option<Relay>,
    /// Peers behind nodes that pass datagrams on.
    pub prefixes: Prefixes,
    /// Peers that are reached from sockets of their own.
    pub auxiliaries: Auxiliaries,
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
    pub(crate) returned: Arc<Returned>,
    pub(crate) attached: Attached,
}

impl Shared {
    /// For halves around `device`. `wake_inbound` wakes the inbound one.
    pub fn new(device: Arc<Device>, clock: Clock, wake_inbound: Waker, attached: Attached) -> Self {
        let returned = Arc::new(Returned::new(wake_inbound));
        Self { device, clock, load: Arc::default(), returned, attached }
    }

    pub(crate) fn watch(&self) -> Option<Watch> {
        let observer = self.attached.observer.clone();
        observer.map(|observer| Watch::new(observer, self.clock.clone()))
    }
}
