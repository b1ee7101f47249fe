use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use mesh::tka_follower::{Follower, LocalAuthority, SyncError, SyncInput, SyncRequest};
use serde_json::{Value, json};

use super::*;

/// A node, and the state in its map.
struct Node {
    follower: Follower,
    tka: Option<TkaInfo>,
    now: Duration,
}

impl Node {
    fn new(known: LocalAuthority, head: &str) -> Self {
        let mut follower = Follower::new(known);
        follower.handle_connected();
        let tka = TkaInfo { head: head.into(), disabled: false };
        Self { follower, tka: Some(tka), now: Duration::from_secs(100) }
    }

    fn input(&self) -> SyncInput<'_> {
        let requester = Requester { version: 119, node_key: NodePublic([1; 32]) };
        SyncInput { tka: self.tka.as_ref(), requester, now: self.now }
    }

    fn next_request(&mut self) -> Option<SyncRequest> {
        let (tka, now) = (self.tka.clone(), self.now);
        let requester = self.input().requester;
        self.follower.poll_request(SyncInput { tka: tka.as_ref(), requester, now })
    }

    fn answer(&mut self, request: &SyncRequest, answer: &Value) -> (bool, Option<SyncRequest>) {
        let (tka, now) = (self.tka.clone(), self.now);
        let input = SyncInput { tka: tka.as_ref(), requester: self.input().requester, now };
        let answer = answer.to_string();
        self.follower.handle_answer(request.number, Ok(answer.as_bytes()), input, 0)
    }

    fn head(&self) -> Option<String> {
        self.follower.local_authority().authority().map(|authority| authority.head().to_string())
    }
}

fn base64(text: &str) -> String {
    Base64::encode_string(&hex(text))
}

fn updates(chain: &Chain) -> Vec<String> {
    let steps = chain.steps.iter().filter(|step| step.accepted);
    steps.flat_map(|step| &step.updates).map(|text| base64(text)).collect()
}

#[test]
fn chain_is_fetched_from_checkpoint_to_head() {
    for chain in chains() {
        let head = &chain.steps.last().unwrap().head;
        let mut node = Node::new(LocalAuthority::Unknown, head);
        let asked = node.next_request().unwrap();
        assert_eq!(asked.path, "/machine/tka/bootstrap");
        assert_eq!(node.next_request(), None, "one at a time");
        let first = json!({ "GenesisAUM": base64(&chain.checkpoint) });
        let (changed, offer) = node.answer(&asked, &first);
        let offer = offer.unwrap();
        assert_eq!((changed, offer.path), (true, "/machine/tka/sync/offer"));
        let missing = json!({ "Head": head, "MissingAUMs": updates(&chain) });
        let (changed, send) = node.answer(&offer, &missing);
        let send = send.unwrap();
        assert_eq!((changed, send.path), (true, "/machine/tka/sync/send"));
        assert_eq!(node.answer(&send, &json!({ "Head": head })), (false, None));
        assert_eq!((node.head().as_ref(), node.follower.failure()), (Some(head), None));
    }
}

#[test]
fn lagging_map_is_not_a_failure() {
    let chain = &chains()[0];
    let head = &chain.steps.last().unwrap().head;
    let mut node = Node::new(LocalAuthority::Trusted(Box::new(begin(chain))), &chain.steps[0].head);
    let offer = node.next_request().unwrap();
    let missing = json!({ "Head": head, "MissingAUMs": updates(chain) });
    let (_, send) = node.answer(&offer, &missing);
    assert_eq!(node.answer(&send.unwrap(), &json!({ "Head": head })), (false, None));
    assert_eq!((node.next_request(), node.follower.failure()), (None, None));
}

#[test]
fn rejected_answer_changes_nothing_and_is_requested_again_later() {
    let chain = &chains()[0];
    let head = &chain.steps.last().unwrap().head;
    let first = begin(chain).head().to_string();
    let forged = base64(&chains()[2].steps[0].updates[0]);
    let answers = [
        (json!(null), SyncError::BadAnswer),
        (json!({ "MissingAUMs": "x" }), SyncError::BadAnswer),
        (json!({ "MissingAUMs": ["?"] }), SyncError::BadAnswer),
        (json!({ "MissingAUMs": ["AA=="] }), SyncError::Refused(DecodeError::Field.into())),
        (json!({ "MissingAUMs": [forged] }), SyncError::Refused(VerifyError::NoParent)),
    ];
    let mut node = Node::new(LocalAuthority::Trusted(Box::new(begin(chain))), head);
    for (answer, failure) in answers {
        let offer = node.next_request().unwrap();
        assert_eq!(node.answer(&offer, &answer), (false, None), "{answer}");
        assert_eq!(node.follower.failure(), Some(&failure), "{answer}");
        assert_eq!(node.head().as_ref(), Some(&first));
        assert_eq!(node.next_request(), None);
        // A late answer is ignored.
        let missing = json!({ "Head": head, "MissingAUMs": updates(chain) });
        assert_eq!(node.answer(&offer, &missing), (false, None));
        let due = node.follower.poll_timeout().unwrap();
        assert!(due > node.now && due < node.now + Duration::from_secs(60));
        node.now = due;
    }
    let offer = node.next_request().unwrap();
    let missing = json!({ "Head": head, "MissingAUMs": updates(chain) });
    let (_, send) = node.answer(&offer, &missing);
    node.answer(&send.unwrap(), &json!({ "Head": head }));
    assert_eq!((node.follower.failure(), node.head().as_ref()), (None, Some(head)));
}

#[test]
fn only_a_valid_secret_turns_tailnet_lock_off() {
    let chain = &chains()[0];
    let mut node = Node::new(LocalAuthority::Trusted(Box::new(begin(chain))), "");
    for secret in chain.secrets.iter().rev().filter(|secret| !secret.accepted) {
        let asked = node.next_request().unwrap();
        let answer = json!({ "DisablementSecret": base64(&secret.secret) });
        assert_eq!(node.answer(&asked, &answer), (false, None));
        assert_eq!(node.follower.failure(), Some(&SyncError::NoSecret));
        node.now = node.follower.poll_timeout().unwrap();
    }
    let asked = node.next_request().unwrap();
    let valid = chain.secrets.iter().find(|secret| secret.accepted).unwrap();
    let answer = json!({ "DisablementSecret": base64(&valid.secret) });
    assert_eq!(node.answer(&asked, &answer), (true, None));
    assert!(matches!(node.follower.local_authority(), LocalAuthority::Unknown));
    assert_eq!(node.follower.failure(), None);
}

#[test]
fn no_request_without_connection_or_with_damaged_state() {
    let chain = &chains()[0];
    let mut node = Node::new(LocalAuthority::Unknown, &chain.steps[0].head);
    let asked = node.next_request().unwrap();
    node.follower.handle_disconnected();
    let first = json!({ "GenesisAUM": base64(&chain.checkpoint) });
    assert_eq!(node.answer(&asked, &first), (false, None));
    assert_eq!(node.next_request(), None);
    node.follower.handle_connected();
    assert!(node.next_request().unwrap().number != asked.number);
    assert_eq!(Node::new(LocalAuthority::Damaged, &chain.steps[0].head).next_request(), None);
}
