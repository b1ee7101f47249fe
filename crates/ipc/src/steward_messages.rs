//! Messages between the agent and the steward.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The desired state of the host around the interface. It is always complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredHost {
    /// The interface's addresses.
    pub addresses: Vec<IpNet>,
    /// The networks that are routed to the interface.
    pub routes: Vec<IpNet>,
    /// Whether all other traffic goes to an exit node.
    pub exit: bool,
    /// Whether local networks stay reachable while an exit node is in use.
    pub local_networks: bool,
    /// The networks that peers may reach through this machine.
    pub offered: Vec<IpNet>,
    /// Whether packets of peers get this machine's address.
    pub masquerade: bool,
    /// The DNS settings; `None` leaves them unchanged.
    pub names: Option<DesiredDns>,
    /// The UDP port of the peer relay; 0 for any.
    pub relay_server: Option<u16>,
}

/// The desired DNS settings of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredDns {
    /// The resolvers.
    pub servers: Vec<IpAddr>,
    /// The search domains.
    pub search: Vec<String>,
    /// The domains for which the resolvers are used; empty for all names.
    pub domains: Vec<String>,
}

/// A message from the agent to the steward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSteward {
    /// The desired state of the host.
    Host(DesiredHost),
}

/// A message from the steward to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSteward {
    /// A desired state was applied.
    Done {
        /// A line for each part that failed.
        problems: Vec<String>,
        /// The resolvers that the host had before.
        servers: Vec<IpAddr>,
    },
    /// The node goes down: the agent must release its resources elsewhere, and exit.
    End,
}

impl FromSteward {
    /// An empty result.
    pub fn nothing() -> Self {
        Self::Done { problems: Vec::new(), servers: Vec::new() }
    }
}
