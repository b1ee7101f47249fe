//! What both directions of a data plane have in common.

use std::sync::Arc;

use packet::Waker;
use wg::Device;

use crate::{Clock, ControlSender, Filter, Load, Observer, Relay, Returned, observer::Watch};

/// What is attached to a data plane. By default nothing is, and costs nothing.
#[derive(Clone, Default)]
pub struct Attached {
    /// Who may want to see the packets inside the tunnel.
    pub observer: Option<Arc<dyn Observer>>,
    /// Where datagrams go that are registered there.
    pub control_datagrams: Option<ControlSender>,
    /// Where relayed endpoints lead.
    pub relay: Option<Relay>,
    /// Which packets of peers may enter: all, until a policy is set.
    pub filter: Arc<Filter>,
}

/// Given to each half when it is made.
pub struct Shared {
    pub(crate) device: Arc<Device>,
    pub(crate) clock: Clock,
    /// Each half counts its own of it.
    pub(crate) load: Arc<Load>,
    pub(crate) returned: Arc<Returned>,
    pub(crate) attached: Attached,
}

impl Shared {
    /// For halves around `device`, of which `wake_inbound` wakes the inbound one.
    pub fn new(device: Arc<Device>, clock: Clock, wake_inbound: Waker, attached: Attached) -> Self {
        let returned = Arc::new(Returned::new(wake_inbound));
        Self { device, clock, load: Arc::default(), returned, attached }
    }

    pub(crate) fn watch(&self) -> Option<Watch> {
        let observer = self.attached.observer.clone();
        observer.map(|observer| Watch::new(observer, self.clock.clone()))
    }
}
