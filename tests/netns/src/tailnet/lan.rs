//! A network behind a router with one host, which also has an address of the Internet.

use crate::cable::{address, cable};
use crate::host::Host;

/// The network and its addresses.
pub struct Lan;

impl Lan {
    /// The network.
    pub const NETWORK: &str = "192.168.77.0/24";
    /// The router's address there.
    pub const ROUTER: &str = "192.168.77.1";
    /// The host's address.
    pub const HOST: &str = "192.168.77.2";
    /// An address of the Internet, which the host also has.
    pub const WORLD: &str = "203.0.113.1";

    /// Adds the host behind a router. Does not enable forwarding on the router.
    pub fn behind(router: &Host) -> Host {
        let behind = Host::new("behind");
        cable(router, "lan", &behind, "eth0", 1500);
        address(router, "lan", &format!("{}/24", Self::ROUTER));
        address(&behind, "eth0", &format!("{}/24", Self::HOST));
        address(&behind, "lo", &format!("{}/32", Self::WORLD));
        behind.run(format!("ip route add default via {}", Self::ROUTER));
        router.run(format!("ip route add {}/32 via {}", Self::WORLD, Self::HOST));
        behind
    }
}
