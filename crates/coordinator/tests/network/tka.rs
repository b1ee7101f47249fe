//! Tailnet lock: requests of nodes, and the maps of each node.

use std::{sync::LazyLock, time::Duration};

use base64ct::{Base64, Encoding as _};
use coordinator::{State, TkaRefusal, TkaRequest, object::Stored};
use serde_json::{Value, json};
use tailnet::{
    keys::NodePublic,
    tka::{Authority, NewKey, TkaKey, disablement_hash, first_checkpoint, sign},
};

use super::simulation::{Machine, World};

const SECRET: &[u8] = b"secret";
/// The hash of the secret, which is slow to compute.
static DISABLER: LazyLock<[u8; 32]> = LazyLock::new(|| disablement_hash(SECRET).unwrap());

fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

fn request(world: &mut World, by: &Machine, path: &str, body: Value) -> Result<Value, TkaRefusal> {
    let answer = request_without_storing(world, by, path, body);
    world.commit();
    answer
}

fn request_without_storing(
    world: &mut World,
    by: &Machine,
    path: &str,
    body: Value,
) -> Result<Value, TkaRefusal> {
    let mut tka_request = read(by, path, body);
    tka_request.hash();
    let (id, now) = (by.id, world.now);
    let answer = world.state.handle_tka_request(id, &tka_request, now);
    answer.map(|text| serde_json::from_str(&text).unwrap())
}

/// A request of a node.
fn read(by: &Machine, path: &str, mut body: Value) -> TkaRequest {
    (body["Version"], body["NodeKey"]) = (json!(131), json!(by.key));
    let (key, tka_request) = TkaRequest::read(path, body.to_string().as_bytes()).unwrap().unwrap();
    assert_eq!(key, by.key);
    tka_request
}

/// The body of a request that sends updates after a head.
fn send(head: &str, updates: &[Vec<u8>], interactive: bool) -> Value {
    let updates: Vec<String> = updates.iter().map(|text| base64(text)).collect();
    json!({ "Head": head, "MissingAUMs": updates, "Interactive": interactive })
}

fn checkpoint() -> Vec<u8> {
    let keys = [1, 2].map(|number| NewKey::new(signer(number).id(), 1));
    first_checkpoint(&keys, &[*DISABLER], (1, 2), &signer(1)).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

fn signature(by: u8, machine: &Machine) -> Vec<u8> {
    sign(&signer(by), &machine.key, &signer(100 + machine.key.0[0]).id())
}

/// Turns tailnet lock on from a machine, with signatures of these machines.
fn turn_on(world: &mut World, by: &Machine, signed: &[&Machine]) -> Result<Value, TkaRefusal> {
    let begin = json!({ "GenesisAUM": base64(&checkpoint()) });
    request(world, by, "init/begin", begin)?;
    let signatures: serde_json::Map<String, Value> =
        signed.iter().map(|one| (one.id.to_string(), json!(base64(&signature(1, one))))).collect();
    request(world, by, "init/finish", json!({ "Signatures": signatures }))
}

fn locked() -> (World, Machine, Machine) {
    let mut world = World::new();
    let key = world.reusable();
    let (mut one, mut other) = (world.join(1, &key), world.join(2, &key));
    world.state.allow_tka_init(one.id, world.now).unwrap();
    turn_on(&mut world, &one, &[&one, &other]).unwrap();
    for machine in [&mut one, &mut other] {
        world.poll(machine);
    }
    (world, one, other)
}

/// The authority of a node that synchronizes from the start.
fn fresh_authority(world: &mut World, by: &Machine) -> Authority {
    let first = request(world, by, "bootstrap", json!({ "Head": "" })).unwrap();
    let first = Base64::decode_vec(first["GenesisAUM"].as_str().unwrap()).unwrap();
    let mut known = Authority::bootstrap(&first).unwrap();
    let head = known.head().to_string();
    let offer = json!({ "Head": head, "Ancestors": [head] });
    let offer = request(world, by, "sync/offer", offer).unwrap();
    let missing = offer["MissingAUMs"].as_array().unwrap().iter();
    let missing: Vec<Vec<u8>> =
        missing.map(|text| Base64::decode_vec(text.as_str().unwrap()).unwrap()).collect();
    known.inform(&missing).unwrap();
    assert_eq!(offer["Head"], known.head().to_string());
    known
}

#[test]
fn an_allowed_node_turns_tailnet_lock_on_if_all_nodes_are_signed() {
    let mut world = World::new();
    let key = world.reusable();
    let (one, other) = (world.join(1, &key), world.join(2, &key));
    assert_eq!(turn_on(&mut world, &one, &[&one, &other]), Err(TkaRefusal::NotAllowed));
    world.state.allow_tka_init(other.id, world.now).unwrap();
    assert_eq!(turn_on(&mut world, &one, &[&one, &other]), Err(TkaRefusal::NotAllowed));
    world.state.allow_tka_init(one.id, world.now).unwrap();
    world.pass(Duration::from_secs(2 * 3600));
    assert_eq!(turn_on(&mut world, &one, &[&one, &other]), Err(TkaRefusal::NotAllowed));
    world.state.allow_tka_init(one.id, world.now).unwrap();
    let left_out = turn_on(&mut world, &one, &[&one]).unwrap_err();
    assert!(left_out.to_string().contains("host-2"), "{left_out}");
    let finish = json!({ "Signatures": {}, "SupportDisablement": "AAAA" });
    let finished = request(&mut world, &one, "init/finish", finish);
    assert_eq!(finished, Err(TkaRefusal::SupportSecret));
    let finished = request(&mut world, &other, "init/finish", json!({ "Signatures": {} }));
    assert_eq!(finished, Err(TkaRefusal::NotBegun));
    assert!(matches!(
        request(&mut world, &one, "init/begin", json!({ "GenesisAUM": "AAAA" })),
        Err(TkaRefusal::Refused(_))
    ));
    turn_on(&mut world, &one, &[&one, &other]).unwrap();
    assert_eq!(turn_on(&mut world, &one, &[&one, &other]), Err(TkaRefusal::IsOn));
    assert!(world.state.audit().next().unwrap().what.contains("turn tailnet lock on"));
}

#[test]
fn the_permission_to_turn_it_on_ends_after_an_hour_or_for_another_node() {
    let mut world = World::new();
    let key = world.reusable();
    let (one, other) = (world.join(1, &key), world.join(2, &key));
    let begin = json!({ "GenesisAUM": base64(&checkpoint()) });
    let signed = |one: &Machine| (one.id.to_string(), json!(base64(&signature(1, one))));
    let signatures: serde_json::Map<String, Value> =
        [&one, &other].map(signed).into_iter().collect();
    let finish = json!({ "Signatures": signatures });
    world.state.allow_tka_init(one.id, world.now).unwrap();
    request(&mut world, &one, "init/begin", begin.clone()).unwrap();
    world.pass(Duration::from_secs(3600));
    let finished = request(&mut world, &one, "init/finish", finish.clone());
    assert_eq!(finished, Err(TkaRefusal::NotAllowed));
    world.state.allow_tka_init(one.id, world.now).unwrap();
    request(&mut world, &one, "init/begin", begin).unwrap();
    world.state.allow_tka_init(other.id, world.now).unwrap();
    let finished = request(&mut world, &one, "init/finish", finish.clone());
    assert_eq!(finished, Err(TkaRefusal::NotBegun));
    world.state.allow_tka_init(one.id, world.now).unwrap();
    let finished = request(&mut world, &one, "init/finish", finish);
    assert_eq!(finished, Err(TkaRefusal::NotBegun));
}

#[test]
fn only_the_machine_that_began_is_initializing_and_only_for_an_hour() {
    let mut world = World::new();
    let key = world.reusable();
    let (one, other) = (world.join(1, &key), world.join(2, &key));
    let of = |world: &World| {
        [&one, &other].map(|by| world.state.is_initializing_tka(&by.machine, world.now))
    };
    world.state.allow_tka_init(one.id, world.now).unwrap();
    assert_eq!(of(&world), [false, false]);
    let begin = json!({ "GenesisAUM": base64(&checkpoint()) });
    request(&mut world, &one, "init/begin", begin).unwrap();
    assert_eq!(of(&world), [true, false]);
    world.restart();
    assert_eq!(of(&world), [true, false]);
    world.pass(Duration::from_secs(3600));
    assert_eq!(of(&world), [false, false]);
}

#[test]
fn nodes_receive_the_head_and_all_signatures_even_after_a_restart() {
    let (mut world, mut one, other) = locked();
    let frame = one.frames.last().unwrap().clone();
    assert!(frame.contains(&"TKAInfo".to_owned()), "{frame:?}");
    let expected = json!(base64(&signature(1, &other)));
    assert_eq!(one.peers[&other.id.0]["KeySignature"], expected);
    assert_eq!(one.own["KeySignature"], json!(base64(&signature(1, &one))));
    world.restart();
    let known = fresh_authority(&mut world, &other);
    known.check(&one.key, &signature(1, &one)).unwrap();
    world.follow(&mut one);
    assert!(one.frames.last().unwrap().contains(&"TKAInfo".to_owned()));
    assert_eq!(one.peers[&other.id.0]["KeySignature"], expected);
}

#[test]
fn a_node_that_joins_is_unsigned_until_a_trusted_key_signs_it() {
    let (mut world, mut one, other) = locked();
    let key = world.reusable();
    let third = world.join(3, &key);
    world.poll(&mut one);
    assert_eq!(one.peers[&third.id.0].get("KeySignature"), None);
    assert_eq!(world.state.tka_status().verified()["locked_out"], json!(["host-3"]));
    let sign = |by: u8, of: &Machine| json!({ "Signature": base64(&signature(by, of)) });
    let stranger = request(&mut world, &third, "sign", sign(9, &third));
    assert!(matches!(stranger, Err(TkaRefusal::Refused(_))), "{stranger:?}");
    let unregistered = Machine::new(8);
    assert_eq!(
        request(&mut world, &other, "sign", sign(2, &unregistered)),
        Err(TkaRefusal::NoNode)
    );
    request(&mut world, &other, "sign", sign(2, &third)).unwrap();
    world.poll(&mut one);
    assert_eq!(one.peers[&third.id.0]["KeySignature"], base64(&signature(2, &third)));
    let entries = world.state.audit().count();
    request(&mut world, &other, "sign", sign(2, &third)).unwrap();
    assert_eq!(world.state.audit().count(), entries, "nothing changed");
    let by = json!({ "KeyID": base64(&signer(2).id()) });
    let affected = request(&mut world, &one, "affected-sigs", by).unwrap();
    assert_eq!(affected["Signatures"], json!([base64(&signature(2, &third))]));
}

/// The affected signatures of all present and previous keys.
fn affected(world: &mut World, by: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    for number in 1..=4 {
        let key = json!({ "KeyID": base64(&signer(number).id()) });
        let answer = request(world, by, "affected-sigs", key).unwrap();
        let texts = answer["Signatures"].as_array().unwrap().iter();
        all.extend(texts.map(|text| text.as_str().unwrap().to_owned()));
    }
    all.sort();
    all
}

#[test]
fn affected_signatures_are_the_valid_signatures_of_the_key() {
    let (mut world, one, mut other) = locked();
    let key = world.reusable();
    let third = world.join(3, &key);
    let sign = json!({ "Signature": base64(&signature(2, &third)) });
    request(&mut world, &one, "sign", sign).unwrap();
    // One machine renews its key, and one has a new key without a signature.
    let (before, own) = (signature(1, &other), signer(102));
    other.key = NodePublic([202; 32]);
    let renewed = own.renew_signature(&other.key, &before).unwrap();
    world.send_register(
        &other,
        json!({ "Auth": { "AuthKey": key }, "NodeKeySignature": base64(&renewed) }),
    );
    let unsigned = world.join(4, &key);
    let expected = |mut texts: Vec<Vec<u8>>| {
        texts.sort_by_key(|text| base64(text));
        texts.iter().map(|text| base64(text)).collect::<Vec<_>>()
    };
    let all = vec![signature(1, &one), renewed.clone(), signature(2, &third)];
    assert_eq!(affected(&mut world, &one), expected(all));
    assert_eq!(world.state.tka_status().verified()["locked_out"], json!(["host-4"]));
    // A stored signature becomes invalid with the trust in its key.
    let known = fresh_authority(&mut world, &one);
    let made = known.edit_keys(&signer(1), &[], &[signer(2).id()]).unwrap();
    let head = known.head().to_string();
    request(&mut world, &one, "sync/send", send(&head, &made, true)).unwrap();
    assert_eq!(affected(&mut world, &one), expected(vec![signature(1, &one), renewed]));
    assert_eq!(world.state.tka_status().verified()["locked_out"], json!(["host-3", "host-4"]));
    assert_ne!(unsigned.id, third.id);
}

#[test]
fn updates_are_accepted_if_signed_by_trusted_keys_after_the_head() {
    let (mut world, mut one, other) = locked();
    let known = fresh_authority(&mut world, &one);
    let head = known.head().to_string();
    let add = |number: u8| [NewKey::new(signer(number).id(), 1)];
    let made = known.edit_keys(&signer(2), &add(3), &[]).unwrap();
    let answer = request(&mut world, &one, "sync/send", send(&head, &made, true)).unwrap();
    let now = fresh_authority(&mut world, &other);
    assert_eq!(answer["Head"], now.head().to_string());
    assert!(now.trusts(&signer(3).id()));
    world.poll(&mut one);
    assert!(one.frames.last().unwrap().contains(&"TKAInfo".to_owned()));
    // Another node with an update of the same head must make it again.
    let late = known.edit_keys(&signer(1), &add(4), &[]).unwrap();
    let answer = request(&mut world, &one, "sync/send", send(&head, &late, true));
    assert_eq!(answer, Err(TkaRefusal::Stale));
    let mut wrong = now.edit_keys(&signer(1), &add(4), &[]).unwrap();
    *wrong[0].last_mut().unwrap() ^= 1;
    let head = now.head().to_string();
    let answer = request(&mut world, &one, "sync/send", send(&head, &wrong, false));
    assert!(matches!(answer, Err(TkaRefusal::Refused(_))), "{answer:?}");
    let received = request(&mut world, &one, "sync/send", send(&head, &[], false)).unwrap();
    assert_eq!(received["Head"], head);
    world.restart();
    assert_eq!(fresh_authority(&mut world, &one).head(), now.head());
    let stranger = "A".repeat(52);
    let offer = json!({ "Head": stranger, "Ancestors": [stranger] });
    assert_eq!(request(&mut world, &one, "sync/offer", offer), Err(TkaRefusal::OtherChain));
}

#[test]
fn a_request_verified_with_a_previous_head_is_stale() {
    let (mut world, one, other) = locked();
    let known = fresh_authority(&mut world, &one);
    let adds = |by: u8, key: u8| {
        let made = known.edit_keys(&signer(by), &[NewKey::new(signer(key).id(), 1)], &[]).unwrap();
        send(&known.head().to_string(), &made, false)
    };
    let mut tka_requests = [
        read(&one, "sync/send", adds(1, 3)),
        read(&one, "sync/send", adds(2, 4)),
        read(&one, "sign", json!({ "Signature": base64(&signature(2, &other)) })),
    ];
    let before = world.state.tka_authority().unwrap();
    for tka_request in &mut tka_requests {
        assert!(tka_request.needs_verification());
        tka_request.verify(&before).unwrap();
    }
    let answers = |world: &mut World, tka_request: &TkaRequest| {
        let answer = world.state.handle_tka_request(one.id, tka_request, world.now);
        world.commit();
        answer.map(drop)
    };
    assert_eq!(answers(&mut world, &tka_requests[0]), Ok(()));
    let after = world.state.tka_authority().unwrap();
    for tka_request in &mut tka_requests[1..] {
        assert_eq!(answers(&mut world, tka_request), Err(TkaRefusal::Stale));
        tka_request.verify(&after).unwrap();
    }
    assert_eq!(answers(&mut world, &tka_requests[1]), Ok(()));
    assert!(world.state.tka_authority().unwrap().trusts(&signer(3).id()));
    let mut forged = read(&one, "sign", json!({ "Signature": base64(&signature(9, &other)) }));
    assert!(matches!(forged.verify(&after), Err(TkaRefusal::Refused(_))));
}

#[test]
fn a_server_that_reads_updates_one_by_one_has_the_same_head() {
    let (mut world, one, _) = locked();
    let stored = world.since(0);
    let now = world.now;
    let mut other = State::load(world.state.settings().clone(), &stored, (1, 0), now).unwrap();
    for key in 3..6 {
        let (known, version) = (fresh_authority(&mut world, &one), world.version);
        let made = known.edit_keys(&signer(1), &[NewKey::new(signer(key).id(), 1)], &[]).unwrap();
        let send = send(&known.head().to_string(), &made, false);
        request(&mut world, &one, "sync/send", send).unwrap();
        other.apply(&world.since(version), now).unwrap();
        let heads = [&world.state, &other].map(|state| state.tka_authority().unwrap().head());
        assert_eq!(heads[0], heads[1]);
    }
}

#[test]
fn only_the_secret_turns_it_off_and_nodes_receive_the_secret() {
    let (mut world, mut one, other) = locked();
    let disable = |secret: &[u8]| json!({ "Head": "", "DisablementSecret": base64(secret) });
    let wrong = request(&mut world, &other, "disable", disable(b"other"));
    assert_eq!(wrong, Err(TkaRefusal::WrongSecret));
    request(&mut world, &other, "disable", disable(SECRET)).unwrap();
    world.poll(&mut one);
    assert!(one.frames.last().unwrap().contains(&"TKAInfo".to_owned()));
    world.restart();
    let answer = request(&mut world, &one, "bootstrap", json!({ "Head": "" })).unwrap();
    assert_eq!(answer, json!({ "DisablementSecret": base64(SECRET) }));
    assert_eq!(request(&mut world, &one, "disable", disable(SECRET)), Err(TkaRefusal::IsOff));
    let dead = world.store.values().filter(|stored| stored.kind.name() == "lockupdate");
    assert!(dead.into_iter().all(|stored| stored.body.is_none()));
}

#[test]
fn a_secret_is_not_hashed_when_read_and_is_useless_without_its_hash() {
    let (mut world, one, _) = locked();
    let body = json!({ "NodeKey": one.key, "DisablementSecret": base64(SECRET) });
    let (_, tka_request) =
        TkaRequest::read("disable", body.to_string().as_bytes()).unwrap().unwrap();
    assert!(tka_request.needs_hash() && world.state.is_tka_on());
    let answer = world.state.handle_tka_request(one.id, &tka_request, world.now);
    assert_eq!(answer, Err(TkaRefusal::WrongSecret));
    let mut hashed = tka_request.clone();
    hashed.hash();
    world.state.handle_tka_request(one.id, &hashed, world.now).unwrap();
    assert!(!hashed.needs_hash() && !world.state.is_tka_on());
    assert_eq!(
        world.state.handle_tka_request(one.id, &tka_request, world.now),
        Err(TkaRefusal::IsOff)
    );
}

#[test]
fn a_node_signs_its_next_key_with_the_signature_of_the_previous_one() {
    let (mut world, mut one, mut other) = locked();
    let key = world.reusable();
    let (previous, own) = (other.key, signer(102));
    other.key = NodePublic([202; 32]);
    let fields = json!({ "OldNodeKey": previous, "Auth": { "AuthKey": key } });
    let answer = world.send_register(&other, fields.clone());
    let before = answer["NodeKeySignature"].as_str().expect("a signature is requested").to_owned();
    assert_eq!(answer["MachineAuthorized"], false);
    let renewed = own.renew_signature(&other.key, &Base64::decode_vec(&before).unwrap()).unwrap();
    let mut fields = fields;
    fields["NodeKeySignature"] = json!(base64(&renewed));
    let answer = world.send_register(&other, fields);
    assert_eq!(answer["MachineAuthorized"], true, "{answer}");
    world.poll(&mut one);
    assert_eq!(one.peers[&other.id.0]["KeySignature"], base64(&renewed));
    // A key without a signature does not get that of the previous key.
    let mut third = Machine::new(2);
    (third.key, third.id) = (NodePublic([203; 32]), other.id);
    let answer = world.send_register(&third, json!({ "Auth": { "AuthKey": key } }));
    assert_eq!(answer["MachineAuthorized"], true, "{answer}");
    world.poll(&mut one);
    assert_eq!(one.peers[&other.id.0].get("KeySignature"), None);
}

#[test]
fn changes_that_were_not_stored_are_undone_and_stored_ones_are_applied_elsewhere() {
    let (mut world, mut one, other) = locked();
    let objects = |world: &World| world.store.values().cloned().collect::<Vec<Stored>>();
    let settings = world.state.settings().clone();
    let begun = (world.version, 7);
    let mut server = State::load(settings, &objects(&world), begun, world.now).unwrap();
    let describe = |state: &State| {
        let first = state.answer_tka_query(&TkaRequest::Bootstrap);
        (state.tka_status().verified(), first, state.audit_head(), state.audit().count())
    };
    let known = fresh_authority(&mut world, &one);
    let made = known.edit_keys(&signer(2), &[NewKey::new(signer(3).id(), 1)], &[]).unwrap();
    let send = send(&known.head().to_string(), &made, false);
    let disable = json!({ "Head": "", "DisablementSecret": base64(SECRET) });
    let before = describe(&world.state);
    request_without_storing(&mut world, &one, "sync/send", send.clone()).unwrap();
    let signed = json!({ "Signature": base64(&signature(2, &other)) });
    request_without_storing(&mut world, &one, "sign", signed).unwrap();
    request_without_storing(&mut world, &one, "disable", disable.clone()).unwrap();
    world.state.allow_tka_init(other.id, world.now).unwrap();
    assert_ne!(describe(&world.state), before);
    world.state.undo(world.now);
    assert_eq!(describe(&world.state), before);
    world.commit();
    world.poll(&mut one);
    assert_eq!(one.peers[&other.id.0]["KeySignature"], base64(&signature(1, &other)));
    assert!(world.store.len() == objects(&world).len() && describe(&server) == before);
    for (path, body) in [("sync/send", send), ("disable", disable)] {
        request(&mut world, &one, path, body).unwrap();
        server.apply(&objects(&world), world.now).unwrap();
        server.publish(world.version, world.now);
        assert_eq!(describe(&server), describe(&world.state), "{path}");
    }
    assert_eq!(server.tka_status().verified()["enabled"], false);
    // A database that lost the disablement has tailnet lock on again.
    let (locked_world, ..) = locked();
    server.reconcile(objects(&locked_world), 0, world.now).unwrap();
    assert_eq!(describe(&server), describe(&locked_world.state));
}

#[test]
fn a_store_with_invalid_updates_is_not_loaded() {
    let (world, ..) = locked();
    let mut objects: Vec<_> = world.store.values().cloned().collect();
    let update = objects.iter_mut().find(|stored| stored.kind.name() == "lockupdate").unwrap();
    update.body = Some(r#"{"id":1,"text":"oA=="}"#.into());
    let loaded = coordinator::State::load(Default::default(), &objects, (1, 0), world.now);
    assert!(loaded.is_err());
}

proptest::proptest! {
    #[test]
    fn random_requests_are_answered_or_refused(
        at in 0_usize..2000, by in 1_u8..255, cut in 0_usize..2000, path in 0_usize..8,
    ) {
        const PATHS: [&str; 8] = [
            "init/begin", "init/finish", "bootstrap", "sync/offer", "sync/send", "sign",
            "affected-sigs", "nothing",
        ];
        let (mut world, one, _) = locked();
        let text = base64(&signature(1, &one));
        let body = json!({
            "NodeKey": one.key, "GenesisAUM": base64(&checkpoint()), "Signature": text,
            "Signatures": { "1": text }, "Head": "A".repeat(52), "Ancestors": ["A".repeat(52)],
            "MissingAUMs": [base64(&checkpoint()), text], "KeyID": base64(&signer(1).id()),
        });
        let mut body = body.to_string().into_bytes();
        let at = at % body.len();
        body[at] ^= by;
        body.truncate(body.len().saturating_sub(cut.saturating_sub(1900)));
        if let Some(Ok((_, tka_request))) = TkaRequest::read(PATHS[path], &body) {
            let _ = world.state.handle_tka_request(one.id, &tka_request, world.now);
            world.commit();
            world.restart();
        }
    }
}

#[test]
fn a_registration_with_a_signature_of_an_untrusted_key_leaves_the_node_unsigned() {
    let (mut world, ..) = locked();
    let key = world.reusable();
    for (number, signer, is_signed) in [(3, 9, false), (4, 1, true)] {
        let machine = Machine::new(number);
        let own = base64(&signature(signer, &machine));
        world.send_register(
            &machine,
            json!({ "Auth": { "AuthKey": key }, "NodeKeySignature": own }),
        );
        let id = world.state.find_machine_node(&machine.machine, &machine.key).unwrap();
        assert_eq!(!world.state.node(id).unwrap().node.signature.is_empty(), is_signed);
    }
}

#[test]
fn the_signature_of_a_node_of_another_machine_is_not_disclosed() {
    let (mut world, _, other) = locked();
    let key = world.reusable();
    let thief = Machine::new(7);
    let answer =
        world.send_register(&thief, json!({ "OldNodeKey": other.key, "Auth": { "AuthKey": key } }));
    assert_eq!(answer["NodeKeySignature"].as_str().unwrap_or_default(), "", "{answer}");
}
