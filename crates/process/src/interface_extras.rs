//! What the control socket of an interface shows and refuses: the offered networks of a router, for
//! `linerate doctor`, and going down where wg-quick(8) has to do that.

use config::uapi::Stats;
use ipnet::IpNet;

use crate::control::Extras;

/// The part of an interface's state that its peer does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterfaceExtras {
    /// The networks that peers may reach behind this host.
    pub networks: Vec<IpNet>,
    /// Whether wg-quick(8) brought the interface up.
    pub by_wg_quick: bool,
}

impl Extras for InterfaceExtras {
    fn describe(&self, stats: &mut Stats) {
        stats.offers.clone_from(&self.networks);
    }

    fn refuses_down(&self) -> bool {
        self.by_wg_quick
    }
}
