//! Settings of a network. They come from the server's configuration, not from the store.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::addresses::{Allocation, Prefixes};

/// The settings of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The domain of node names.
    pub base_domain: String,
    /// The networks from which addresses are allocated.
    pub prefixes: Prefixes,
    /// The order in which addresses are allocated.
    pub allocation: Allocation,
    /// The relays, as JSON of `tailcfg.DERPMap`.
    pub relays: String,
    pub dns: Dns,
    /// The time after which a disconnected node is shown as offline.
    pub offline_after: Duration,
    /// The time after which a disconnected ephemeral node is deleted.
    pub ephemeral_after: Duration,
    /// Whether a policy may name users by their names at the provider. This is safe only if users cannot choose them,
    /// and the provider never reuses them.
    pub trusts_usernames: bool,
    /// The lifetime of a node key; `None` if keys do not expire. Keys of tagged nodes never expire.
    pub key_lifetime: Option<Duration>,
}

/// The DNS configuration for nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Whether nodes resolve the names of nodes (MagicDNS).
    pub magic: bool,
    /// The resolvers for all other names.
    pub nameservers: Vec<String>,
    /// Whether these resolvers replace those of the host. Else they are used only on a host without resolvers.
    pub overrides: bool,
    /// The resolvers of each domain.
    pub split: BTreeMap<String, Vec<String>>,
    /// Further search domains.
    pub search: Vec<String>,
    /// Further names and their addresses. A name may have several.
    pub extra: Vec<(String, IpAddr)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            base_domain: "tailnet.internal".into(),
            prefixes: Prefixes::default(),
            allocation: Allocation::default(),
            relays: r#"{"Regions":{}}"#.into(),
            dns: Dns { magic: true, ..Dns::default() },
            // A client that changes networks reconnects within seconds.
            offline_after: Duration::from_secs(10),
            ephemeral_after: Duration::from_secs(30 * 60),
            trusts_usernames: false,
            key_lifetime: None,
        }
    }
}
