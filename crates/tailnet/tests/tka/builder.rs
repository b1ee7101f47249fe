//! linerate's encodings are equal to Tailscale's, byte by byte: Ed25519 signatures are
//! deterministic.

use tailnet::tka::{NewKey, claim, disablement_hash, first_checkpoint, read_public, sign};

use super::*;

/// The same keys as `signer` of tests/tka-vectors.
fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

fn trusted(number: u8, votes: u64) -> NewKey {
    NewKey::new(signer(number).id(), votes)
}

fn chain(name: &str) -> Chain {
    chains().into_iter().find(|chain| chain.name == name).unwrap()
}

fn begun(name: &str, keys: &[NewKey]) -> (Chain, Authority) {
    let disablement_hashes =
        [b"secret".as_slice(), &[0]].map(|text| disablement_hash(text).unwrap());
    let numbers = (name.len() as u64, 1 << 63);
    let made = first_checkpoint(keys, &disablement_hashes, numbers, &signer(1)).unwrap();
    let chain = chain(name);
    assert_eq!(base16ct::lower::encode_string(&made), chain.checkpoint);
    let authority = begin(&chain);
    (chain, authority)
}

fn texts(updates: &[Vec<u8>]) -> Vec<String> {
    updates.iter().map(|text| base16ct::lower::encode_string(text)).collect()
}

#[test]
fn updates_match_those_of_tailscale() {
    let (chain, mut authority) = begun("straight", &[trusted(1, 2), trusted(2, 1)]);
    let made = authority.edit_keys(&signer(1), &[trusted(3, 4096)], &[]).unwrap();
    assert_eq!(texts(&made), chain.steps[0].updates);
    for step in &chain.steps[..3] {
        inform_step(&mut authority, step).unwrap();
    }
    let out = signer(2).id();
    let made = authority.edit_keys(&signer(3), &[trusted(4, 1)], &[out]).unwrap();
    assert_eq!(texts(&made), chain.steps[3].updates);
}

#[test]
fn checkpoints_are_created_at_the_same_updates_as_tailscale() {
    let (chain, mut authority) = begun("long", &[trusted(1, 1)]);
    let others: Vec<NewKey> = (4..14).map(|number| trusted(number, 1)).collect();
    let ids: Vec<_> = others.iter().map(|key| key.id().unwrap()).collect();
    for step in &chain.steps {
        let made = authority.edit_keys(&signer(1), &others, &ids).unwrap();
        assert_eq!(texts(&made), step.updates);
        inform_step(&mut authority, step).unwrap();
    }
}

#[test]
fn signatures_of_node_keys_and_auth_keys_match_tailscale() {
    let chain = chain("straight");
    let named = |name: &str| {
        chain.signatures.as_ref().unwrap().iter().find(|signature| signature.name == name).unwrap()
    };
    let (first, wrapping) = (named("direct"), signer(100).id());
    let made = sign(&signer(1), &node(&first.node), &wrapping);
    assert_eq!(made, hex(&first.text));
    let authority = followed(&chain);
    assert_eq!(authority.sign(&signer(1), &node(&first.node), &wrapping).unwrap(), made);
    let claimed = claim(&hex(&named("renewed").text)).unwrap();
    assert_eq!(claimed.node, node(&named("renewed").node));
    assert_eq!((claimed.signer, claimed.wrapping), (signer(1).id(), wrapping.to_vec()));
    assert!(claim(&hex(&named("a credential alone").text)).is_err());
    let wrapped = &chain.wrapped.as_ref().unwrap()[0];
    let made = WrappedAuthKey::wrap(&wrapped.auth_key, &signer(1), &[100; 32]);
    assert_eq!(*made, wrapped.text);
}

#[test]
fn untrusted_key_cannot_create_updates_or_signatures() {
    let mut authority = followed(&chain("straight"));
    let (stranger, own) = (signer(9), signer(1));
    assert!(authority.sign(&stranger, &NodePublic::default(), &[]).is_err());
    assert!(authority.edit_keys(&stranger, &[trusted(5, 1)], &[]).is_err());
    let refused =
        |add: &[NewKey], remove: &[[u8; 32]]| authority.edit_keys(&own, add, remove).is_err();
    assert!(refused(&[trusted(1, 1)], &[]) && refused(&[], &[signer(9).id()]));
    assert!(refused(&[trusted(5, 0)], &[]) && refused(&[trusted(5, 4097)], &[]));
    assert!(authority.sign(&own, &NodePublic::default(), &[1; 31]).is_err());
    let disabler = [[7; 32]];
    assert!(first_checkpoint(&[trusted(2, 1)], &disabler, (1, 1), &own).is_err());
    assert!(first_checkpoint(&[trusted(1, 1)], &[], (1, 1), &own).is_err());
    // It may remove all trusted keys except the last.
    let ids = authority.keys_json().len();
    let others: Vec<_> = [3, 4].map(|number| signer(number).id()).to_vec();
    assert_eq!(ids, others.len() + 1);
    let made = authority.edit_keys(&own, &[], &others).unwrap();
    authority.inform(&made).unwrap();
    assert!(authority.edit_keys(&own, &[], &[own.id()]).is_err());
    assert!(authority.edit_keys(&own, &[], &[]).unwrap().is_empty());
}

#[test]
fn missing_updates_are_those_after_the_newest_common_one() {
    let chain = chain("straight");
    let whole = followed(&chain);
    let heads: Vec<_> = chain.steps.iter().map(|step| step.head.parse().unwrap()).collect();
    assert_eq!(whole.missing_updates(&heads[3], &[]), Some(Vec::new()));
    let behind = whole.missing_updates(&heads[0], &[]).unwrap();
    let expected: Vec<String> =
        chain.steps[1..].iter().flat_map(|step| step.updates.clone()).collect();
    assert_eq!(texts(&behind), expected);
    let other = [9; 32];
    let other = tailnet::tka::UpdateHash(other);
    assert_eq!(whole.missing_updates(&other, &[other, heads[0]]), Some(behind));
    assert_eq!(whole.missing_updates(&other, &[]), None);
    let log = whole.log(2);
    assert_eq!(log.iter().map(|entry| entry.1).collect::<Vec<_>>(), ["remove-key", "add-key"]);
    assert_eq!(log[0].0, whole.head());
    let mut gathered = begin(&chain);
    let all: Vec<_> = whole.encoded_updates();
    assert_eq!(gathered.inform_uncompacted(&all).unwrap().len(), all.len() - 1);
    assert_eq!(gathered.inform_uncompacted(&all).unwrap().len(), 0);
    assert_eq!((gathered.head(), gathered.oldest_update()), (whole.head(), all[0].clone()));
}

#[test]
fn public_keys_are_read_in_both_formats() {
    let own = signer(1);
    assert_eq!(read_public(&own.public()), Ok(own.id()));
    assert_eq!(read_public(&own.cli_public()), Ok(own.id()));
    for wrong in ["", "nlpub:", "nlpub:00", "nodekey:00"] {
        assert!(read_public(wrong).is_err(), "{wrong}");
    }
    let text = r#"{"Kind":1,"Votes":3,"Public":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=","Meta":null}"#;
    let key: NewKey = serde_json::from_str(text).unwrap();
    assert_eq!(key, NewKey::new([7; 32], 3));
    let other = text.replace(":1,", ":2,");
    assert!(serde_json::from_str::<NewKey>(&other).unwrap().id().is_err());
}
