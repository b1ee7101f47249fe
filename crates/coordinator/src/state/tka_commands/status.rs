//! The status of tailnet lock for administrators. Signatures are verified after the state's mutex is released,
//! because this takes long in a large network.

use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{keys::NodePublic, tka::Authority};

use crate::object::NodeId;
use crate::state::State;

/// The status, with signatures that are not verified yet.
#[derive(Debug)]
pub struct TkaStatus {
    authority: Option<Arc<Authority>>,
    /// All nodes, if tailnet lock is on.
    nodes: Vec<Signed>,
    allowed: Option<NodeId>,
}

#[derive(Debug)]
struct Signed {
    name: String,
    key: NodePublic,
    signature: String,
}

impl State {
    /// The status of tailnet lock.
    pub fn tka_status(&self) -> TkaStatus {
        let authority = self.tka.authority().cloned();
        let nodes = self.nodes.all().filter(|_| authority.is_some()).map(|entry| {
            let node = &entry.node;
            Signed { name: node.name.clone(), key: node.key, signature: node.signature.clone() }
        });
        let nodes = nodes.collect();
        TkaStatus { authority, nodes, allowed: self.tka.stored().allowed.map(|(id, _)| id) }
    }
}

impl TkaStatus {
    /// Verifies all signatures. Returns JSON that includes the locked out nodes.
    pub fn verified(&self) -> Value {
        let authority = self.authority.as_deref();
        let is_signed = |node: &&Signed| {
            let signature = Base64::decode_vec(&node.signature).unwrap_or_default();
            authority.is_some_and(|authority| authority.check(&node.key, &signature).is_ok())
        };
        let unsigned = self.nodes.iter().filter(|node| !is_signed(node));
        json!({
            "enabled": authority.is_some(),
            "head": authority.map(|authority| authority.head().to_string()),
            "trusted_keys": authority.map(Authority::keys_json).unwrap_or_default(),
            "locked_out": unsigned.map(|node| &node.name).collect::<Vec<_>>(),
            "may_initialize": self.allowed,
        })
    }
}
