//! The offered networks of a router, shown by the control socket: `linerate doctor` checks whether
//! they can be reached.

use config::uapi::Stats;
use ipnet::IpNet;

use crate::control::Extras;

/// The networks that peers may reach behind this host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers(pub Vec<IpNet>);

impl Extras for Offers {
    fn describe(&self, stats: &mut Stats) {
        stats.offers.clone_from(&self.0);
    }
}
