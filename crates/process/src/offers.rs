//! What a router tells of itself to who asks about its interface: `linerate doctor` looks
//! whether it is so.

use std::{io, net::IpAddr, time::Duration};

use config::uapi::Stats;
use ipnet::IpNet;

use crate::control::Extras;

/// The networks that peers may reach behind this host, and nothing where none are named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers(pub Vec<IpNet>);

impl Extras for Offers {
    fn describe(&self, stats: &mut Stats) {
        stats.offers.clone_from(&self.0);
    }

    fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        ().ping(host)
    }
}
