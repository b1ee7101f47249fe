//! Additional answers of an interface's control socket: the offered networks of a router, for
//! `linerate doctor`. It also refuses to go down if wg-quick(8) must do that.

use config::uapi::Stats;
use ipnet::IpNet;

use crate::uapi_socket::Extras;

/// State of an interface that its node does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterfaceExtras {
    /// Networks behind this host that peers may reach.
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
