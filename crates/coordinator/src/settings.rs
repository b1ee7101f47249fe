//! What a network is set up with. It comes from the server's configuration, not from the store.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::addresses::{Allocation, Prefixes};

/// What a network is set up with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The domain of nodes' names.
    pub base_domain: String,
    /// The networks that addresses are of.
    pub prefixes: Prefixes,
    /// Which of them a new node is given.
    pub allocation: Allocation,
    /// The relays, as JSON of `tailcfg.DERPMap`.
    pub relays: String,
    /// How names are resolved.
    pub dns: Dns,
    /// How long a node may be without a connection before others are told.
    pub offline_after: Duration,
    /// How long an ephemeral node may be without one before it is forgotten.
    pub ephemeral_after: Duration,
    /// Whether a policy may mean users by the names that they have at a provider: where users cannot choose
    /// them, and the provider gives none to another.
    pub trusts_usernames: bool,
    /// How long a node key lives; none for without end. Those of tagged nodes always do.
    pub key_lifetime: Option<Duration>,
}

/// How names are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Whether nodes resolve names of nodes.
    pub magic: bool,
    /// Who is asked for all other names.
    pub nameservers: Vec<String>,
    /// Whether those are asked instead of a host's own, not only where it has none.
    pub overrides: bool,
    /// Who is asked for names that end so.
    pub split: BTreeMap<String, Vec<String>>,
    /// What else is tried behind a short name.
    pub search: Vec<String>,
    /// Names beside those of nodes, and the address of each; a name may have several.
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
            // A client that changes its network is back within seconds.
            offline_after: Duration::from_secs(10),
            ephemeral_after: Duration::from_secs(30 * 60),
            trusts_usernames: false,
            key_lifetime: None,
        }
    }
}
