//! The user's commands: requests to the coordinator, and the processing of its answers.

use std::sync::LazyLock;

use base64ct::{Base64, Encoding as _};
use mesh::tka_command::{CommandContext, CommandStep, PendingCommand, TkaCommand, TkaCommandError};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};
use tailnet::tka::{KeyId, NewKey, claim, disablement_hash, first_checkpoint, sign};

use super::*;

const RANDOM: [u8; 32] = [5; 32];
const SECRET: &[u8] = b"secret";
const REQUESTER: Requester = Requester { version: 119, node_key: NodePublic([1; 32]) };

/// A node with its own key and its authority.
struct Node {
    own: TkaKey,
    known: Option<Authority>,
    requester: Requester,
}

impl Node {
    /// Creates a node of a network that trusts the keys 1 and 2.
    fn locked(number: u8) -> Self {
        let first =
            first_checkpoint(&trusted(), &disablement_hashes(), (1, 2), &signer(1)).unwrap();
        let known = Some(Authority::bootstrap(&first).unwrap());
        Self { own: signer(number), known, requester: REQUESTER }
    }

    fn unlocked(number: u8) -> Self {
        Self { known: None, ..Self::locked(number) }
    }

    fn authority(&self) -> &Authority {
        self.known.as_ref().unwrap()
    }

    fn head(&self) -> String {
        self.authority().head().to_string()
    }

    fn by(&self) -> CommandContext<'_> {
        CommandContext { own: &self.own, known: self.known.as_ref(), requester: self.requester }
    }

    fn begin(&self, order: TkaCommand) -> Result<CommandStep, TkaCommandError> {
        order.begin(self.by(), &RANDOM)
    }

    fn request(&self, order: TkaCommand) -> (&'static str, Value, PendingCommand) {
        question(self.begin(order).unwrap())
    }

    fn refuses(&self, order: TkaCommand) -> TkaCommandError {
        self.begin(order).unwrap_err()
    }

    fn answered(
        &self,
        doing: PendingCommand,
        answer: &Value,
    ) -> Result<CommandStep, TkaCommandError> {
        doing.handle_answer(self.by(), answer.to_string().as_bytes())
    }
}

fn question(next: CommandStep) -> (&'static str, Value, PendingCommand) {
    let CommandStep::Request(path, body, doing) = next else { panic!("a question, not {next:?}") };
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["Version"], 119);
    assert_eq!(body["NodeKey"], json!(REQUESTER.node_key));
    (path, body, doing)
}

fn done(next: CommandStep) -> Value {
    let CommandStep::Done(answer) = next else { panic!("an end, not {next:?}") };
    answer
}

fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

fn id(number: u8) -> KeyId {
    signer(number).id()
}

fn new_key(number: u8) -> NewKey {
    NewKey::new(id(number), 1)
}

fn trusted() -> Vec<NewKey> {
    [1, 2].map(new_key).to_vec()
}

fn disablement_hashes() -> Vec<[u8; 32]> {
    // Slow by design.
    static HASH: LazyLock<[u8; 32]> = LazyLock::new(|| disablement_hash(SECRET).unwrap());
    vec![*HASH]
}

fn key(number: u8) -> NodePublic {
    NodePublic([number; 32])
}

fn init() -> TkaCommand {
    TkaCommand::Init { keys: trusted(), disablement_hashes: disablement_hashes() }
}

fn add(number: u8) -> TkaCommand {
    TkaCommand::Modify { add: vec![new_key(number)], remove: Vec::new() }
}

fn sign_it(number: u8) -> TkaCommand {
    TkaCommand::Sign { node: key(number), wrapping: id(number).to_vec() }
}

fn base64(bytes: &[u8]) -> Value {
    json!(Base64::encode_string(bytes))
}

fn bytes(base64: &Value) -> Vec<u8> {
    Base64::decode_vec(base64.as_str().unwrap()).unwrap()
}

#[test]
fn init_sends_a_checkpoint_and_then_the_signatures_of_all_nodes() {
    let node = Node::unlocked(1);
    let (path, asked, doing) = node.request(init());
    assert_eq!(path, "/machine/tka/init/begin");
    let begun = Authority::bootstrap(&bytes(&asked["GenesisAUM"])).unwrap();
    assert!(begun.trusts(&id(1)) && begun.trusts(&id(2)) && !begun.trusts(&id(3)));
    assert!(begun.is_disabled_by(SECRET));
    let answer = json!({ "NeedSignatures": [
        { "NodeID": 7, "NodePublic": key(7), "RotationPubkey": base64(&id(7)) },
        { "NodeID": 8, "NodePublic": key(8), "RotationPubkey": null },
    ] });
    let (path, asked, doing) = question(node.answered(doing, &answer).unwrap());
    assert_eq!(path, "/machine/tka/init/finish");
    let signatures = asked["Signatures"].as_object().unwrap();
    assert_eq!(signatures.keys().collect::<Vec<_>>(), ["7", "8"]);
    for (number, wrapping) in [(7, id(7).to_vec()), (8, Vec::new())] {
        let signature = bytes(&signatures[&number.to_string()]);
        assert_eq!(begun.check(&key(number), &signature), Ok(()));
        assert_eq!(claim(&signature).unwrap().wrapping, wrapping);
    }
    assert_eq!(done(node.answered(doing, &json!({})).unwrap()), Value::Null);
}

#[test]
fn only_node_keys_are_signed_for_a_coordinator() {
    let node = Node::unlocked(1);
    for wrong in [
        json!({ "NodeID": 7, "NodePublic": key(7), "RotationPubkey": base64(&[7; 31]) }),
        json!({ "NodeID": 7, "NodePublic": key(7), "RotationPubkey": base64(&[7; 4096]) }),
        json!({ "NodeID": 7, "NodePublic": "nodekey:07" }),
        json!({ "NodeID": "7", "NodePublic": key(7) }),
    ] {
        let (_, _, doing) = node.request(init());
        let answer = node.answered(doing, &json!({ "NeedSignatures": [wrong] }));
        assert_eq!(answer.unwrap_err(), TkaCommandError::BadAnswer, "{wrong}");
    }
}

#[test]
fn impossible_command_is_refused_before_any_request() {
    let [off, on, stranger] = [Node::unlocked(1), Node::locked(1), Node::locked(9)];
    let logged_out = Node {
        requester: Requester { node_key: NodePublic::default(), ..REQUESTER },
        ..Node::locked(1)
    };
    assert_eq!(logged_out.refuses(sign_it(7)), TkaCommandError::LoggedOut);
    assert_eq!(on.refuses(init()), TkaCommandError::IsOn);
    let all = [
        sign_it(7),
        add(3),
        TkaCommand::Disable(SECRET.to_vec().into()),
        TkaCommand::Affected(id(1)),
    ];
    let wrap = TkaCommand::Wrap { auth_key: String::from("tskey-auth-x").into(), by: signer(1) };
    for order in all.into_iter().chain([wrap, TkaCommand::Log(1)]) {
        assert_eq!(off.refuses(order), TkaCommandError::IsOff);
    }
    for order in [sign_it(7), add(3)] {
        assert_eq!(stranger.refuses(order), TkaCommandError::NotTrusted);
    }
    assert_eq!(
        on.refuses(TkaCommand::Disable(b"wrong".to_vec().into())),
        TkaCommandError::WrongSecret
    );
    for order in [
        add(1),
        TkaCommand::Modify { add: vec![NewKey::new(id(3), 0)], remove: Vec::new() },
        TkaCommand::Modify { add: Vec::new(), remove: vec![new_key(9)] },
        TkaCommand::Modify { add: Vec::new(), remove: trusted() },
        TkaCommand::Sign { node: key(7), wrapping: vec![7; 31] },
    ] {
        let refused = on.refuses(order);
        assert!(matches!(refused, TkaCommandError::Refused(_)), "{refused:?}");
    }
    // The signing key must be one of the trusted ones.
    let not_its_own =
        TkaCommand::Init { keys: vec![new_key(2)], disablement_hashes: disablement_hashes() };
    assert!(matches!(off.refuses(not_its_own), TkaCommandError::Refused(_)));
}

#[test]
fn sent_signature_is_accepted_by_every_node() {
    let node = Node::locked(2);
    let (path, asked, doing) = node.request(sign_it(7));
    assert_eq!(path, "/machine/tka/sign");
    let signature = bytes(&asked["Signature"]);
    assert_eq!(node.authority().check(&key(7), &signature), Ok(()));
    let claimed = claim(&signature).unwrap();
    assert_eq!((claimed.signer, claimed.wrapping), (id(2), id(7).to_vec()));
    assert_eq!(done(node.answered(doing, &json!({})).unwrap()), Value::Null);
}

#[test]
fn key_change_succeeds_only_if_the_coordinator_has_the_new_head() {
    let node = Node::locked(1);
    let change = TkaCommand::Modify { add: vec![new_key(3)], remove: vec![new_key(2)] };
    let (path, asked, doing) = node.request(change);
    assert_eq!(path, "/machine/tka/sync/send");
    assert_eq!((&asked["Interactive"], &asked["Head"]), (&json!(true), &json!(node.head())));
    let updates = asked["MissingAUMs"].as_array().unwrap();
    let mut changed = node.authority().clone();
    changed.inform(&updates.iter().map(bytes).collect::<Vec<_>>()).unwrap();
    assert!(changed.trusts(&id(3)) && !changed.trusts(&id(2)));
    let head = |head: String| json!({ "Head": head });
    let moved = node.answered(doing.clone(), &head(node.head()));
    assert_eq!(moved.unwrap_err(), TkaCommandError::Conflict);
    let changed = node.answered(doing, &head(changed.head().to_string()));
    assert_eq!(done(changed.unwrap()), Value::Null);
    let nothing = TkaCommand::Modify { add: Vec::new(), remove: Vec::new() };
    assert_eq!(done(node.begin(nothing).unwrap()), Value::Null);
}

#[test]
fn only_a_valid_disablement_secret_is_sent() {
    // The secret is sufficient, whether the key is trusted or not.
    for node in [Node::locked(1), Node::locked(9)] {
        let (path, asked, doing) = node.request(TkaCommand::Disable(SECRET.to_vec().into()));
        assert_eq!(path, "/machine/tka/disable");
        assert_eq!(bytes(&asked["DisablementSecret"]), SECRET);
        assert_eq!(asked["Head"], node.head());
        assert_eq!(done(node.answered(doing, &json!({})).unwrap()), Value::Null);
    }
}

#[test]
fn listed_signatures_must_be_by_the_requested_key() {
    let node = Node::locked(1);
    let asks = || node.request(TkaCommand::Affected(id(2)));
    let (path, asked, doing) = asks();
    assert_eq!((path, bytes(&asked["KeyID"])), ("/machine/tka/affected-sigs", id(2).to_vec()));
    let signature = |by: u8, number: u8| base64(&sign(&signer(by), &key(number), &id(number)));
    let good = json!([signature(2, 7), signature(2, 8)]);
    let shown = node.answered(doing, &json!({ "Signatures": good })).unwrap();
    assert_eq!(done(shown), good);
    for wrong in [signature(1, 9), signature(9, 9), json!("?"), base64(b"x"), json!("")] {
        let answer = json!({ "Signatures": [signature(2, 7), wrong] });
        let refused = node.answered(asks().2, &answer);
        assert_eq!(refused.unwrap_err(), TkaCommandError::BadSignature, "{wrong}");
    }
    assert_eq!(done(node.answered(asks().2, &json!({})).unwrap()), json!([]));
}

#[test]
fn wrapped_auth_key_signs_a_node_key_that_is_accepted() {
    let node = Node::locked(1);
    let wrap = TkaCommand::Wrap { auth_key: String::from("tskey-auth-x").into(), by: signer(2) };
    let text = done(node.begin(wrap).unwrap());
    let wrapped = WrappedAuthKey::read(text.as_str().unwrap()).unwrap();
    assert_eq!(wrapped.auth_key(), "tskey-auth-x");
    assert_eq!(node.authority().check(&key(7), &wrapped.sign(&key(7))), Ok(()));
}

#[test]
fn log_shows_the_newest_changes_first_up_to_the_limit() {
    let mut node = Node::locked(1);
    let (_, asked, _) = node.request(add(3));
    let updates: Vec<_> = asked["MissingAUMs"].as_array().unwrap().iter().map(bytes).collect();
    node.known.as_mut().unwrap().inform(&updates).unwrap();
    let log = |most| done(node.begin(TkaCommand::Log(most)).unwrap());
    let changes = |log: &Value| {
        let all = log.as_array().unwrap().iter();
        all.map(|entry| entry["Change"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(changes(&log(10)), ["add-key", "checkpoint"]);
    assert_eq!(changes(&log(1)), ["add-key"]);
    assert_eq!(log(1)[0]["Hash"], json!(node.authority().head().0));
    assert_eq!(bytes(&log(1)[0]["Raw"]), updates[0]);
}

proptest! {
    #[test]
    fn random_answers_do_not_extend_a_command(
        bytes in vec(any::<u8>(), 0..200),
        name in "NeedSignatures|Signatures|Head",
        inner in r#"null|7|"[A-Za-z0-9+/=]{0,60}"|\[\]|\[[0-9]\]|\["[A-Za-z0-9+/=]{0,60}"\]|\[\{"NodeID":-?[0-9]{1,20}\}\]"#,
    ) {
        let made = format!("{{\"{name}\":{inner}}}").into_bytes();
        for text in [bytes, made] {
            let (off, on) = (Node::unlocked(1), Node::locked(1));
            let (_, _, doing) = off.request(init());
            if let Ok(next) = doing.handle_answer(off.by(), &text) {
                prop_assert_eq!(&question(next).1["Signatures"], &json!({}));
            }
            let (_, _, doing) = on.request(TkaCommand::Affected(id(2)));
            if let Ok(next) = doing.handle_answer(on.by(), &text) {
                prop_assert_eq!(done(next), json!([]));
            }
            let (_, _, doing) = on.request(add(3));
            prop_assert!(doing.handle_answer(on.by(), &text).is_err());
        }
    }
}
