//! Compares tailnet lock with Tailscale's package: `vectors.json`, which `tests/tka-vectors`
//! prints.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod builder;
mod signed_twice;
mod vectors;

use std::collections::BTreeSet;

use tailnet::{
    keys::NodePublic,
    tka::{
        Authority, DecodeError, TkaKey, VerifyError, WrappedAuthKey, rejected_peers,
        sync_requests::Requester,
    },
};

use self::vectors::{Chain, Signature, begin, chains, followed, hex, inform_step, node};

#[test]
fn verdicts_and_keys_of_all_updates_match_tailscale() {
    for chain in chains() {
        let mut authority = begin(&chain);
        let mut known = BTreeSet::new();
        for (number, step) in chain.steps.iter().enumerate() {
            let informed = inform_step(&mut authority, step);
            let place = format!("{} {number}: {informed:?}", chain.name);
            assert_eq!(informed.is_ok(), step.accepted, "{place}");
            assert_eq!(authority.head().to_string(), step.head, "{place}");
            known.extend(step.keys.iter().cloned());
            for key in &known {
                let id = hex(key).try_into().unwrap();
                assert_eq!(authority.trusts(&id), step.keys.contains(key), "{place}: {key}");
            }
        }
    }
}

#[test]
fn verdicts_of_all_signatures_match_tailscale() {
    let mut accepted = 0;
    for chain in chains() {
        let authority = followed(&chain);
        for signature in chain.signatures.iter().flatten() {
            let Signature { name, text, .. } = signature;
            let checked = authority.check(&node(&signature.node), &hex(text));
            // Go's decoder reads one of CBOR's simple values as a number. No encoder writes that.
            let is_odd =
                name == "changed" && checked == Err(VerifyError::Malformed(DecodeError::NotCbor));
            let same = checked.is_ok() == signature.accepted;
            assert!(same || is_odd, "{name}: {checked:?} {text}");
            accepted += u32::from(checked.is_ok());
            if checked.is_err() {
                continue;
            }
            // The previous key is rejected.
            let text = hex(text);
            let peers = [(node(&signature.node), &text[..])].into_iter();
            let former = signature.former.iter().flatten().map(|former| (node(former), &[][..]));
            let refused = rejected_peers(&authority, peers.chain(former.clone()));
            assert_eq!(refused.len(), former.count(), "{name}");
            assert!(!refused.contains_key(&node(&signature.node)), "{name}");
        }
    }
    assert!(accepted > 20, "{accepted}");
}

#[test]
fn renewed_signature_matches_tailscale() {
    let chains = chains();
    let authority = followed(&chains[0]);
    for renewal in chains[0].renewed.iter().flatten() {
        let own: TkaKey = renewal.key.parse().unwrap();
        assert_eq!((&*own.text(), &own.public()), (&renewal.key, &renewal.public));
        let mut former = hex(&renewal.first);
        for (name, text) in renewal.nodes.iter().zip(&renewal.texts) {
            let renewed = own.renew_signature(&node(name), &former).unwrap();
            assert_eq!(renewed, hex(text), "{name}");
            assert_eq!(own.renew_signature(&node(name), &renewed).as_ref(), Ok(&renewed));
            former = renewed;
        }
        // Many more renewals.
        for number in 100..150 {
            let next = NodePublic([number; 32]);
            former = own.renew_signature(&next, &former).unwrap();
            assert_eq!(authority.check(&next, &former), Ok(()), "{number}");
        }
        assert!(own.renew_signature(&node(&renewal.nodes[0]), b"").is_err());
    }
    for wrapped in chains.iter().flat_map(|chain| chain.wrapped.iter().flatten()) {
        let read = WrappedAuthKey::read(&wrapped.text).unwrap();
        assert_eq!(read.auth_key(), wrapped.auth_key);
        assert_eq!(read.sign(&node(&wrapped.node)), hex(&wrapped.signed));
        assert!(WrappedAuthKey::read(&wrapped.auth_key).is_none());
        assert!(WrappedAuthKey::read(&wrapped.text[..wrapped.text.len() - 1]).is_none());
        assert!(!format!("{read:?}").contains("tskey"));
    }
}

#[test]
fn verdicts_of_disablement_secrets_match_tailscale() {
    let chain = &chains()[0];
    let authority = followed(chain);
    for secret in &chain.secrets {
        assert_eq!(authority.is_disabled_by(&hex(&secret.secret)), secret.accepted);
    }
}

#[test]
fn ancestors_in_an_offer_match_tailscale() {
    let requester = Requester { version: 119, node_key: NodePublic([1; 32]) };
    for chain in chains().iter().filter(|chain| chain.name != "long") {
        let mut authority = begin(chain);
        for step in &chain.steps {
            let _ = inform_step(&mut authority, step);
            let offer = serde_json::to_value(requester.offer(&authority)).unwrap();
            assert_eq!(offer["Head"], step.head);
            assert_eq!(offer["Ancestors"], serde_json::json!(step.offer), "{}", chain.name);
        }
    }
}

#[test]
fn stored_updates_are_restored_and_a_long_chain_is_compacted() {
    for chain in chains() {
        let authority = followed(&chain);
        let kept = authority.encoded_updates();
        assert!(kept.len() < 350, "{}", kept.len());
        let total: usize = chain.steps.iter().map(|step| step.updates.len()).sum();
        assert!(chain.name != "long" || kept.len() < total);
        let mut restored = Authority::from_stored(&kept).unwrap();
        assert_eq!(restored.head(), authority.head());
        // And goes on.
        let last = chain.steps.last().unwrap();
        assert_eq!(inform_step(&mut restored, last), Ok(()));
        assert_eq!(restored.head(), authority.head());
    }
    assert!(Authority::from_stored::<&[u8]>(&[]).is_err());
    assert!(Authority::bootstrap(&hex(&chains()[0].steps[0].updates[0])).is_err());
}

#[test]
fn only_the_node_with_the_most_renewals_is_accepted() {
    let chain = &chains()[0];
    let authority = followed(chain);
    let signatures = chain.signatures.as_deref().unwrap();
    let named = |name: &str| {
        let signature = signatures.iter().find(|signature| signature.name == name).unwrap();
        (node(&signature.node), hex(&signature.text))
    };
    let refused = |names: &[&str]| {
        let peers: Vec<(NodePublic, Vec<u8>)> = names.iter().map(|name| named(name)).collect();
        let refused =
            rejected_peers(&authority, peers.iter().map(|(node, text)| (*node, &text[..])));
        peers.iter().map(|(node, _)| refused.get(node).copied()).collect::<Vec<_>>()
    };
    assert_eq!(refused(&["direct"]), [None]);
    assert_eq!(refused(&["direct", "renewed"]), [Some(VerifyError::Rotated), None]);
    let of_three = refused(&["renewed 2 times", "direct", "renewed"]);
    assert_eq!(of_three, [None, Some(VerifyError::Rotated), Some(VerifyError::Rotated)]);
    // Several nodes may renew from the same key of an auth key.
    assert_eq!(refused(&["by a credential", "renewed"]), [None, None]);
    let alone = refused(&["a credential alone"]);
    assert_eq!(alone, [Some(VerifyError::Credential)]);
}
