//! A network behind a router, with a host in it, and behind that a piece of the rest of the world.

use crate::cable::{address, cable};
use crate::host::Host;

/// The network, with the addresses in it.
pub struct Lan;

impl Lan {
    /// The network.
    pub const NETWORK: &str = "192.168.77.0/24";
    /// The router's address there.
    pub const ROUTER: &str = "192.168.77.1";
    /// A host's.
    pub const HOST: &str = "192.168.77.2";
    /// An address of the rest of the world, which the host has too.
    pub const WORLD: &str = "203.0.113.1";

    /// The host behind a router. Whether the router forwards is not changed.
    pub fn behind(router: &Host) -> Host {
        let behind = Host::new("behind");
        cable(router, "lan", &behind, "eth0", 1500);
        address(router, "lan", &format!("{}/24", Lan::ROUTER));
        address(&behind, "eth0", &format!("{}/24", Lan::HOST));
        address(&behind, "lo", &format!("{}/32", Lan::WORLD));
        behind.run(format!("ip route add default via {}", Lan::ROUTER));
        router.run(format!("ip route add {}/32 via {}", Lan::WORLD, Lan::HOST));
        behind
    }
}
