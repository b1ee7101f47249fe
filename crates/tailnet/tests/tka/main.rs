//! Compares tailnet lock with Tailscale's package: `vectors.json`, which `tests/tka-vectors`
//! prints.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod builder;
mod command;
mod follow;
mod hostile;

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use serde::Deserialize;
use tailnet::{
    keys::NodePublic,
    messages::TkaInfo,
    tka::{
        Authority, DecodeError, TkaKey, VerifyError, WrappedAuthKey, rejected_peers,
        sync::{Requester, Step as CommandStep, step},
    },
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Chain {
    name: String,
    checkpoint: String,
    steps: Vec<Step>,
    signatures: Option<Vec<Signature>>,
    secrets: Vec<Secret>,
    renewed: Option<Vec<Renewal>>,
    wrapped: Option<Vec<Wrapped>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Renewal {
    key: String,
    public: String,
    first: String,
    nodes: Vec<String>,
    texts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wrapped {
    text: String,
    auth_key: String,
    node: String,
    signed: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Step {
    updates: Vec<String>,
    accepted: bool,
    head: String,
    keys: Vec<String>,
    offer: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Signature {
    name: String,
    node: String,
    text: String,
    accepted: bool,
    former: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Secret {
    secret: String,
    accepted: bool,
}

/// Returns the chains of the tree, or others. `go run . -changes 2000` creates more.
fn chains() -> Vec<Chain> {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tka/vectors.json");
    let path = env::var_os("LINERATE_TKA_VECTORS").map_or_else(own, PathBuf::from);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(text).unwrap()
}

fn node(text: &str) -> NodePublic {
    NodePublic(hex(text).try_into().unwrap())
}

fn begin(chain: &Chain) -> Authority {
    Authority::bootstrap(&hex(&chain.checkpoint)).unwrap()
}

fn tell(authority: &mut Authority, step: &Step) -> Result<(), VerifyError> {
    let updates: Vec<Vec<u8>> = step.updates.iter().map(|text| hex(text)).collect();
    authority.inform(&updates)
}

/// Returns the authority after a whole chain.
fn followed(chain: &Chain) -> Authority {
    let mut authority = begin(chain);
    for step in &chain.steps {
        let _ = tell(&mut authority, step);
    }
    authority
}

#[test]
fn every_update_is_accepted_or_not_as_tailscale_does_and_leads_to_the_same_keys() {
    for chain in chains() {
        let mut authority = begin(&chain);
        let mut known = BTreeSet::new();
        for (number, step) in chain.steps.iter().enumerate() {
            let told = tell(&mut authority, step);
            let place = format!("{} {number}: {told:?}", chain.name);
            assert_eq!(told.is_ok(), step.accepted, "{place}");
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
fn every_signature_is_accepted_or_not_as_tailscale_does() {
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
fn a_node_signs_its_next_key_as_tailscale_does() {
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
fn a_secret_turns_it_off_where_tailscale_says_so() {
    let chain = &chains()[0];
    let authority = followed(chain);
    for secret in &chain.secrets {
        assert_eq!(authority.is_disabled_by(&hex(&secret.secret)), secret.accepted);
    }
}

#[test]
fn an_offer_names_the_updates_that_tailscales_names() {
    let requester = Requester { version: 119, node_key: NodePublic([1; 32]) };
    for chain in chains().iter().filter(|chain| chain.name != "long") {
        let mut authority = begin(chain);
        for step in &chain.steps {
            let _ = tell(&mut authority, step);
            let offer = serde_json::to_value(requester.offer(&authority)).unwrap();
            assert_eq!(offer["Head"], step.head);
            assert_eq!(offer["Ancestors"], serde_json::json!(step.offer), "{}", chain.name);
        }
    }
}

#[test]
fn what_is_kept_comes_back_and_a_long_chain_loses_its_beginning() {
    for chain in chains() {
        let authority = followed(&chain);
        let kept = authority.encoded_updates();
        assert!(kept.len() < 350, "{}", kept.len());
        let told: usize = chain.steps.iter().map(|step| step.updates.len()).sum();
        assert!(chain.name != "long" || kept.len() < told);
        let mut restored = Authority::from_stored(&kept).unwrap();
        assert_eq!(restored.head(), authority.head());
        // And goes on.
        let last = chain.steps.last().unwrap();
        assert_eq!(tell(&mut restored, last), Ok(()));
        assert_eq!(restored.head(), authority.head());
    }
    assert!(Authority::from_stored::<&[u8]>(&[]).is_err());
    assert!(Authority::bootstrap(&hex(&chains()[0].steps[0].updates[0])).is_err());
}

#[test]
fn of_nodes_that_renewed_one_key_the_newest_alone_counts() {
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

#[test]
fn what_is_to_be_done_follows_from_both_heads() {
    let chain = &chains()[0];
    let authority = begin(chain);
    let input = |head: &str, disabled| TkaInfo { head: head.into(), disabled };
    let head = authority.head().to_string();
    assert_eq!(step(None, None), CommandStep::Nothing);
    assert_eq!(step(Some(&input("x", true)), None), CommandStep::Nothing);
    assert_eq!(step(Some(&input(&head, false)), None), CommandStep::Begin);
    assert_eq!(step(Some(&input(&head, false)), Some(&authority)), CommandStep::Nothing);
    assert_eq!(step(Some(&input("x", false)), Some(&authority)), CommandStep::Update);
    assert_eq!(step(None, Some(&authority)), CommandStep::Disable);
    assert_eq!(step(Some(&input(&head, true)), Some(&authority)), CommandStep::Disable);
}
