//! The peers that tailnet lock rejects (`ipn/ipnlocal/tailnet-lock.go`, `tkaFilterNetmapLocked`).

use std::collections::{HashMap, HashSet};

use super::{
    Authority, VerifyError,
    node_signature::{self, Rotation},
};
use crate::keys::NodePublic;

/// Returns the rejected peers with the reasons. A peer is given by its key and the signature of its
/// key, which may be empty.
///
/// A node that renews its key signs the new key itself, and its previous keys are rejected. If
/// several nodes renewed the same first key, only the one with the most renewals is accepted; if
/// there is a tie, none.
pub fn rejected_peers<'a>(
    authority: &Authority,
    peers: impl Iterator<Item = (NodePublic, &'a [u8])>,
) -> HashMap<NodePublic, VerifyError> {
    let (mut refused, mut former) = (HashMap::new(), HashSet::new());
    let mut renewed: HashMap<Vec<u8>, Vec<(NodePublic, usize)>> = HashMap::new();
    for (node, signature) in peers {
        let checked = match signature {
            [] => Err(VerifyError::Unsigned),
            text => node_signature::check(&authority.state, &node, text),
        };
        match checked {
            Err(why) => drop(refused.insert(node, why)),
            Ok(None) => {}
            Ok(Some(Rotation { former: keys, own })) => {
                if let Some(own) = own {
                    renewed.entry(own).or_default().push((node, keys.len()));
                }
                former.extend(keys);
            }
        }
    }
    for mut nodes in renewed.into_values() {
        nodes.retain(|(node, _)| !former.contains(node));
        let most = nodes.iter().map(|(_, times)| *times).max().unwrap_or_default();
        let are_newest = nodes.iter().filter(|(_, times)| *times == most).count();
        let kept = |times: usize| times == most && are_newest == 1;
        former.extend(nodes.into_iter().filter(|(_, times)| !kept(*times)).map(|(node, _)| node));
    }
    for node in former {
        refused.entry(node).or_insert(VerifyError::Rotated);
    }
    refused
}
