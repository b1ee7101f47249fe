//! Operations of tailnet lock: administrators allow nodes to enable it, and nodes enable it, disable
//! it, and send updates based on an earlier state of some server.

use std::sync::LazyLock;

use base64ct::{Base64, Encoding as _};
use coordinator::{State, Time, TkaRequest, object::NodeId};
use serde_json::{Value, json};
use tailnet::{
    keys::NodePublic,
    tka::{self, Authority, NewKey, TkaKey},
};

use super::outcome_text;

const SECRET: &[u8] = b"secret";
/// Parsing it is slow, so it is parsed once.
static DISABLE: LazyLock<TkaRequest> =
    LazyLock::new(|| tka_request("disable", json!({ "DisablementSecret": base64(SECRET) })));
static CHECKPOINT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let keys = [1, 2].map(|number| NewKey::new(signer(number).id(), 1));
    let hash = tka::disablement_hash(SECRET).unwrap();
    tka::first_checkpoint(&keys, &[hash], (1, 2), &signer(1)).unwrap()
});

#[derive(Clone, Debug)]
pub(super) enum TkaAct {
    Allow(i64),
    /// Enables it by an allowed node, with signatures of all nodes.
    On(i64),
    /// Sends updates, with the head that they follow if a person made them.
    Send(i64, TkaRequest),
    Sign(i64),
    Off(i64),
}

impl TkaAct {
    /// A random operation, based on the state of some server. Others may change it before the
    /// operation runs.
    pub(super) fn any(roll: u64, node: i64, seen: &State) -> Self {
        match roll {
            0 => Self::Allow(node),
            1..=2 => Self::Off(node),
            3..=5 => Self::Sign(node),
            _ => match edit(seen, roll) {
                Some(send) => Self::Send(node, send),
                None => Self::On(node),
            },
        }
    }

    /// Runs the operation and describes its outcome.
    pub(super) fn run(&self, state: &mut State, now: Time) -> String {
        match self {
            Self::Allow(node) => outcome_text(state.allow_tka_init(NodeId(*node), now)),
            Self::On(node) => turn_on(state, NodeId(*node), now),
            Self::Send(node, send) => {
                outcome_text(state.handle_tka_request(NodeId(*node), send, now))
            }
            Self::Sign(node) => {
                let Some(key) = state.node(NodeId(*node)).map(|view| view.node.key) else {
                    return "no node".into();
                };
                let sign = tka_request("sign", json!({ "Signature": base64(&signature(2, &key)) }));
                outcome_text(state.handle_tka_request(NodeId(*node), &sign, now))
            }
            Self::Off(node) => outcome_text(state.handle_tka_request(NodeId(*node), &DISABLE, now)),
        }
    }
}

/// The whole state of tailnet lock.
pub(super) fn all(state: &State) -> String {
    let first = outcome_text(state.answer_tka_query(&TkaRequest::Bootstrap));
    format!("{} {first}", state.tka_status().verified())
}

fn turn_on(state: &mut State, node: NodeId, now: Time) -> String {
    let begin = tka_request("init/begin", json!({ "GenesisAUM": base64(&CHECKPOINT) }));
    if let Err(why) = state.allow_tka_init(node, now) {
        return why.to_string();
    }
    if let Err(why) = state.handle_tka_request(node, &begin, now) {
        return why.to_string();
    }
    let nodes = state.nodes().map(|view| view.node);
    let signatures: serde_json::Map<String, Value> =
        nodes.map(|node| (node.id.to_string(), base64(&signature(1, &node.key)))).collect();
    let finish = tka_request("init/finish", json!({ "Signatures": signatures }));
    outcome_text(state.handle_tka_request(node, &finish, now))
}

/// Adds or removes a trusted key, based on the state of a server.
fn edit(seen: &State, roll: u64) -> Option<TkaRequest> {
    let answer = |request: &TkaRequest| -> Option<Value> {
        serde_json::from_str(&seen.answer_tka_query(request).ok()?).ok()
    };
    let decoded = |text: &Value| Base64::decode_vec(text.as_str()?).ok();
    let first = decoded(&answer(&TkaRequest::Bootstrap)?["GenesisAUM"])?;
    let mut known = Authority::bootstrap(&first).unwrap();
    let offer = json!({ "Head": known.head().to_string() });
    let missing = answer(&tka_request("sync/offer", offer))?["MissingAUMs"].clone();
    let missing: Vec<Vec<u8>> = missing.as_array()?.iter().filter_map(decoded).collect();
    known.inform(&missing).unwrap();
    let other = signer(3 + u8::try_from(roll % 4).unwrap()).id();
    let made = match known.trusts(&other) {
        true => known.edit_keys(&signer(1), &[], &[other]),
        false => known.edit_keys(&signer(2), &[NewKey::new(other, 1)], &[]),
    };
    let updates: Vec<Value> = made.ok()?.iter().map(|text| base64(text)).collect();
    let head = known.head().to_string();
    let send =
        json!({ "Head": head, "MissingAUMs": updates, "Interactive": roll.is_multiple_of(2) });
    Some(tka_request("sync/send", send))
}

fn tka_request(path: &str, mut body: Value) -> TkaRequest {
    body["NodeKey"] = json!(NodePublic([1; 32]));
    TkaRequest::read(path, body.to_string().as_bytes()).unwrap().unwrap().1
}

fn signature(by: u8, key: &NodePublic) -> Vec<u8> {
    tka::sign(&signer(by), key, &[])
}

fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

fn base64(bytes: &[u8]) -> Value {
    json!(Base64::encode_string(bytes))
}
