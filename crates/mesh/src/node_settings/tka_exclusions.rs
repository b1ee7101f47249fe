//! Tailnet lock's effect on the settings.

use std::collections::HashMap;

use base64ct::{Base64, Encoding as _};
use tailnet::{
    keys::NodePublic,
    map_messages::Node,
    tka::{Authority, VerifyError, rejected_peers},
};

use super::{Environment, MAX_REPORTED, TkaStatus};
use crate::network_map::NetworkMap;

/// The excluded peers.
pub(super) enum Excluded {
    /// All peers: the trusted keys are unknown.
    All,
    /// Some peers, with the reasons.
    Some(HashMap<NodePublic, VerifyError>),
}

impl Excluded {
    pub(super) fn has(&self, peer: &NodePublic) -> bool {
        match self {
            Self::All => true,
            Self::Some(refused) => refused.contains_key(peer),
        }
    }
}

/// Returns the excluded peers. If keys are stored, they count even if the coordinator reports that
/// tailnet lock is off: only a secret turns it off.
pub(super) fn excluded(
    map: &NetworkMap,
    own: &Node,
    environment: &Environment<'_>,
    problems: &mut Vec<String>,
) -> Excluded {
    let (authority, own_key) = match environment.tka {
        TkaStatus::Unknown if map.tka().is_none() => return Excluded::Some(HashMap::new()),
        TkaStatus::Unknown => {
            problems.push(
                "tailnet lock is on, but its keys are not known: all peers are rejected".into(),
            );
            return Excluded::All;
        }
        // The agent reports the reason.
        TkaStatus::Damaged => return Excluded::All,
        TkaStatus::On { authority, own_key } => (authority, own_key),
    };
    let refused = rejected_by_tka(map, authority);
    let is_told = |peer: &&Node| !peer.unsigned_peer_api_only;
    let told = map.peers().filter(is_told);
    let told = told.filter_map(|peer| Some((peer, refused.get(&peer.key)?)));
    for (number, (peer, why)) in told.enumerate() {
        if number == MAX_REPORTED {
            problems.push("tailnet lock rejects more peers".into());
            break;
        }
        let name = peer.name.trim_end_matches('.');
        problems
            .push(format!("tailnet lock rejects {name}, because of its key's signature: {why}"));
    }
    if authority.check(&own.key, &key_signature(own)).is_err() {
        problems.push(format!(
            "tailnet lock: peers reject this node until its key is signed: run `tailscale lock sign \
             {} {own_key}` on a node with a trusted key",
            own.key
        ));
    }
    Excluded::Some(refused)
}

/// Returns the peers that tailnet lock rejects. This includes those that the coordinator exempts:
/// Tailscale's clients admit these only to their peer API, which linerate does not have.
pub fn rejected_by_tka(
    map: &NetworkMap,
    authority: &Authority,
) -> HashMap<NodePublic, VerifyError> {
    let signatures: Vec<(NodePublic, Vec<u8>)> =
        map.peers().map(|peer| (peer.key, key_signature(peer))).collect();
    rejected_peers(authority, signatures.iter().map(|(key, signature)| (*key, &signature[..])))
}

/// Returns the tailnet-lock signature of a node's key; empty if it is invalid base64.
pub fn key_signature(node: &Node) -> Vec<u8> {
    Base64::decode_vec(&node.key_signature).unwrap_or_default()
}
