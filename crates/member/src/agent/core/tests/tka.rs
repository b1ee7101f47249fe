//! Tailnet lock with a chain from Tailscale's own package (`tests/tka-vectors`).

use std::os::unix::fs::PermissionsExt as _;

use base64ct::{Base64, Encoding as _};
use mesh::tka_follower::SyncRequest;
use tailnet::tka::Authority;
use zeroize::Zeroizing;

use super::*;
use crate::agent::control::{
    Command, Event,
    error::ControlError,
    tests::{
        connect,
        coordinator::{Behaviour, Coordinator},
    },
};

const SIGNED: u8 = 50;
const INSERTED: u8 = 51;

/// A coordinator's chain of tailnet lock.
struct Chain(Value);

impl Chain {
    fn new(name: &str) -> Self {
        let file =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tailnet/tests/tka/vectors.json"));
        let chains: Vec<Value> = serde_json::from_str(file).unwrap();
        Self(chains.into_iter().find(|chain| chain["Name"] == name).unwrap())
    }

    fn checkpoint(&self) -> Value {
        json!({ "GenesisAUM": base64(&self.0["Checkpoint"]) })
    }

    /// The groups of updates that Tailscale accepts, or rejects.
    fn updates_of(&self, accepted: bool) -> Vec<Vec<Value>> {
        let steps = self.0["Steps"].as_array().unwrap().iter();
        let steps = steps.filter(|step| step["Accepted"] == accepted);
        steps.map(|step| step["Updates"].as_array().unwrap().clone()).collect()
    }

    /// All updates up to the head.
    fn updates(&self) -> Vec<Value> {
        self.updates_of(true).concat()
    }

    fn head(&self) -> String {
        self.0["Steps"].as_array().unwrap().last().unwrap()["Head"].as_str().unwrap().into()
    }

    fn signature(&self, name: &str) -> Value {
        let mut all = self.0["Signatures"].as_array().unwrap().iter();
        base64(&all.find(|signature| signature["Name"] == name).unwrap()["Text"])
    }

    /// The map of a network with a signed node, and one that the coordinator inserted.
    fn map(&self, lock: Value) -> Value {
        let mut map = map_of(&[SIGNED, INSERTED]);
        map["Peers"][0]["KeySignature"] = self.signature("direct");
        map["Peers"][1]["KeySignature"] = self.signature("by a key that nobody trusts");
        map["TKAInfo"] = lock;
        map
    }

    fn on(&self) -> Value {
        self.map(json!({ "Head": self.head() }))
    }
}

fn bytes(hex: &Value) -> Vec<u8> {
    base16ct::lower::decode_vec(hex.as_str().unwrap()).unwrap()
}

fn base64(hex: &Value) -> Value {
    Base64::encode_string(&bytes(hex)).into()
}

fn missing(updates: &[Value], head: &str) -> Value {
    json!({ "Head": head, "MissingAUMs": updates.iter().map(base64).collect::<Vec<_>>() })
}

impl Rig {
    /// The last request to the coordinator, if there is one.
    async fn tka_request(&self) -> Option<(u32, &'static str, Value)> {
        let commands = self.session_commands().await;
        let request = commands.into_iter().rev().find_map(|command| match command {
            Command::TkaRequest(SyncRequest { number, path, body }) => Some((number, path, body)),
            _ => None,
        });
        request.map(|(number, path, body)| (number, path, serde_json::from_slice(&body).unwrap()))
    }

    /// Answers the pending request with this path.
    async fn answer(&mut self, path: &str, answer: &Value) -> Value {
        let (number, request, body) = self.tka_request().await.expect("a request was sent");
        assert_eq!(request, path);
        let answer = Ok(answer.to_string().into_bytes().into());
        self.control_event(Event::TkaResponse { number, answer }).await;
        body
    }

    /// An agent with the keys and the map of this chain.
    async fn locked(name: &str, chain: &Chain) -> Self {
        let mut rig = Self::joined(name).await;
        rig.stream(chain.on()).await;
        rig.answer("/machine/tka/bootstrap", &chain.checkpoint()).await;
        let updates = missing(&chain.updates(), &chain.head());
        rig.answer("/machine/tka/sync/offer", &updates).await;
        let sent = rig.answer("/machine/tka/sync/send", &json!({ "Head": chain.head() })).await;
        assert_eq!((&sent["Head"], &sent["NodeKey"]), (&json!(chain.head()), &json!(KEY)));
        rig
    }

    /// Handles events of the coordinator until the script ends.
    async fn during<T>(&mut self, script: impl Future<Output = T>) -> T {
        let mut script = std::pin::pin!(script);
        loop {
            let (number, event) = tokio::select! {
                done = &mut script => return done,
                Some(event) = self.from_control.recv() => event,
            };
            self.handle(Input::Control(number, event)).await;
        }
    }

    async fn tka_status(&mut self) -> Value {
        self.request(|reply| Request::TkaStatus { reply }).await.unwrap().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn no_peer_is_trusted_before_the_chain_and_then_only_signed_peers() {
    let chain = Chain::new("straight");
    let mut rig = Rig::joined("lock-chain").await;
    rig.stream(chain.on()).await;
    assert_eq!(peers(&rig.plane_messages()), []);
    let request = rig.answer("/machine/tka/bootstrap", &chain.checkpoint()).await;
    assert_eq!((&request["Head"], &request["NodeKey"]), (&json!(""), &json!(KEY)));
    let updates = missing(&chain.updates(), &chain.head());
    let offer = rig.answer("/machine/tka/sync/offer", &updates).await;
    assert_ne!(offer["Head"], chain.head());
    let sent = rig.answer("/machine/tka/sync/send", &json!({ "Head": chain.head() })).await;
    assert_eq!((&sent["Head"], &sent["MissingAUMs"]), (&json!(chain.head()), &json!([])));
    assert_eq!(peers(&rig.plane_messages()), [key(SIGNED)]);
    assert!(rig.tka_request().await.is_none());

    let health = rig.health("tailnet lock").await.join("\n");
    assert!(health.contains("rejects n51.net.example"), "{health}");
    let own = rig.tka_status().await["PublicKey"].as_str().unwrap().replace("nlpub", "tlpub");
    let sign = format!("tailscale lock sign {KEY} {own}");
    assert!(health.contains(&sign), "{health}");
    let file = rig.folder.0.join("lock.json");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn node_joins_a_locked_network_and_gets_only_signed_peers() {
    let chain = Chain::new("straight");
    let wrapped = &chain.0["Wrapped"][0];
    let mut coordinator = Coordinator::new(Behaviour::Good);
    let mut rig = Rig::new("lock-wire");
    *rig.access.connect.borrow_mut() = Box::new(connect(coordinator.network()));
    let prefs = rig.agent.node.prefs().clone();
    let prefs = Prefs { control_url: URL.into(), want_running: true, ..prefs };
    rig.agent.node.set_prefs(prefs, &mut Problems::default()).unwrap();
    rig.plane(hello(NodePublic::default())).await;
    let text = Zeroizing::new(wrapped["Text"].as_str().unwrap().to_owned());
    rig.agent.coordinate(|coordinator, context| coordinator.begin_login(Some(text), context));
    rig.plane(ToAgent::Candidate(key(90))).await;

    let script = async {
        let request = coordinator.next_registration().await;
        assert_eq!(request.body["Auth"]["AuthKey"], wrapped["AuthKey"]);
        assert_eq!(request.body["NodeKeySignature"], base64(&wrapped["Signed"]));
        assert!(request.body["NLKey"].as_str().unwrap().starts_with("nlpub:"));
        request.json(&json!({ "MachineAuthorized": true }));
        let stream = coordinator.next_map_stream().await.stream();
        let mut map = chain.on();
        map["Node"]["Key"] = json!(key(90));
        map["Node"]["KeySignature"] = base64(&wrapped["Signed"]);
        stream.send(&map).await;
        let updates = missing(&chain.updates(), &chain.head());
        let mut answers = [
            ("/machine/tka/bootstrap", chain.checkpoint()),
            ("/machine/tka/sync/offer", updates),
            ("/machine/tka/sync/send", json!({ "Head": chain.head() })),
        ]
        .into_iter()
        .peekable();
        let mut has_head = false;
        // Updates and requests about tailnet lock come in any order.
        while !has_head || answers.peek().is_some() {
            let request = coordinator.next_request().await;
            if request.path == "/machine/map" {
                has_head |= request.body["TKAHead"] == chain.head();
                request.status(200, "");
                continue;
            }
            let (path, answer) = answers.next().unwrap();
            assert_eq!((&*request.path, &request.body["NodeKey"]), (path, &json!(key(90))));
            request.json(&answer);
        }
        stream
    };
    let _stream = rig.during(script).await;
    assert_eq!(peers(&rig.plane_messages()), [key(SIGNED)]);
    let status = rig.tka_status().await;
    assert_eq!((&status["Enabled"], &status["NodeKeySigned"]), (&json!(true), &json!(true)));
    let health = rig.health("tailnet lock").await;
    assert!(health.len() == 1 && !health[0].contains("tailscale lock sign"), "{health:?}");
}

#[tokio::test(start_paused = true)]
async fn map_change_admits_only_peers_with_signed_keys() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-changes", &chain).await;
    let known = |rig: &Rig| -> Vec<NodePublic> {
        rig.agent.applied.settings().peers.iter().map(|peer| peer.key).collect()
    };
    let (mut signed, mut other) = (node(52), node(53));
    signed["KeySignature"] = chain.signature("by a credential");
    // The signature of another node.
    other["KeySignature"] = chain.signature("direct");
    rig.map(json!({ "PeersChanged": [signed, other, node(54)] })).await;
    assert_eq!(known(&rig), [key(SIGNED), key(52)]);
    let mut exempted = node(55);
    exempted["UnsignedPeerAPIOnly"] = json!(true);
    rig.map(json!({ "PeersChanged": [exempted] })).await;
    assert_eq!(known(&rig), [key(SIGNED), key(52)]);
    rig.map(json!({ "PeersChangedPatch": [{ "NodeID": 52, "Key": key(60) }] })).await;
    assert_eq!(known(&rig), [key(SIGNED)]);
}

#[tokio::test(start_paused = true)]
async fn coordinator_gets_the_stored_tka_head() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-head", &chain).await.restarted().await;
    rig.stream(chain.on()).await;
    let messages = rig.session_commands().await.into_iter().find_map(|command| match command {
        Command::Update(announced) => Some(announced.tka_head),
        _ => None,
    });
    assert_eq!(messages, Some(chain.head()));
    assert!(rig.tka_request().await.is_none(), "both heads are the same");
}

#[tokio::test(start_paused = true)]
async fn coordinator_without_tka_head_admits_no_unsigned_peer() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-silent", &chain).await.restarted().await;
    for values in [Value::Null, json!({ "Disabled": true }), json!({ "Head": "" })] {
        rig.plane_messages();
        rig.stream(chain.map(values.clone())).await;
        let other = base64(&json!("6f74686572"));
        for answer in [json!({}), json!({ "DisablementSecret": other }), chain.checkpoint()] {
            let request = rig.answer("/machine/tka/bootstrap", &answer).await;
            assert_eq!(request["Head"], chain.head());
            let health = rig.health("only a valid disablement secret").await;
            assert_eq!(health.len(), 1, "{values} {answer}");
            assert!(rig.tka_request().await.is_none(), "not at once");
            rig.pass(Duration::from_secs(300)).await;
        }
        let known: Vec<_> =
            rig.agent.applied.settings().peers.iter().map(|peer| peer.key).collect();
        assert_eq!(known, [key(SIGNED)], "{values}");
        assert_eq!(rig.tka_status().await["Enabled"], true);
    }
}

#[tokio::test(start_paused = true)]
async fn valid_disablement_secret_disables_tka_permanently() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-off", &chain).await;
    rig.map(json!({ "TKAInfo": { "Disabled": true } })).await;
    let secret = json!({ "DisablementSecret": base64(&json!("736563726574")) });
    rig.answer("/machine/tka/bootstrap", &secret).await;
    assert_eq!(peers(&rig.plane_messages()), [key(SIGNED), key(INSERTED)]);
    assert!(rig.health("tailnet lock").await.is_empty() && rig.tka_request().await.is_none());
    let mut rig = rig.restarted().await;
    assert_eq!(rig.tka_status().await["Enabled"], false);
}

#[tokio::test(start_paused = true)]
async fn invalid_tka_update_changes_nothing_and_is_reported() {
    let chain = Chain::new("wrong");
    let mut rig = Rig::joined("lock-wrong").await;
    let mut map = map_of(&[SIGNED]);
    map["TKAInfo"] = json!({ "Head": chain.head() });
    rig.stream(map).await;
    rig.answer("/machine/tka/bootstrap", &chain.checkpoint()).await;
    let first = Authority::bootstrap(&bytes(&chain.0["Checkpoint"])).unwrap();
    for updates in chain.updates_of(false) {
        let answer = missing(&updates, &chain.head());
        let offer = rig.answer("/machine/tka/sync/offer", &answer).await;
        assert_eq!(offer["Head"], first.head().to_string(), "{updates:?}");
        let health = rig.health("coordinator is rejected").await;
        assert_eq!(health.len(), 1, "{updates:?}");
        rig.pass(Duration::from_secs(300)).await;
    }
    let updates = missing(&chain.updates(), &chain.head());
    rig.answer("/machine/tka/sync/offer", &updates).await;
    rig.answer("/machine/tka/sync/send", &json!({ "Head": chain.head() })).await;
    assert!(rig.health("coordinator is rejected").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn coordinator_with_diverged_chain_is_reported_and_no_peer_is_lost() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-fork", &chain).await;
    let other = Chain::new("forked");
    rig.map(json!({ "TKAInfo": { "Head": other.head() } })).await;
    let offer = missing(&other.updates(), &other.head());
    rig.answer("/machine/tka/sync/offer", &offer).await;
    assert_eq!(rig.health("its parent is unknown").await.len(), 1);
    rig.pass(Duration::from_secs(300)).await;
    rig.answer("/machine/tka/sync/offer", &json!({ "Head": other.head() })).await;
    rig.answer("/machine/tka/sync/send", &json!({ "Head": other.head() })).await;
    assert_eq!(rig.health("has other updates than this node").await.len(), 1);
    assert_eq!(peers(&rig.plane_messages()), [key(SIGNED)]);
    assert_eq!(rig.agent.coordinator.tka().head(), chain.head());
}

#[tokio::test(start_paused = true)]
async fn unanswered_tka_requests_are_retried_with_backoff() {
    let chain = Chain::new("straight");
    let mut rig = Rig::joined("lock-retry").await;
    rig.stream(chain.on()).await;
    let mut request = 0;
    for _ in 0..3600 {
        if let Some((number, _, _)) = rig.tka_request().await {
            request += 1;
            let answer = Err(ControlError::Status("tailnet lock", 500, "no".into()));
            rig.control_event(Event::TkaResponse { number, answer }).await;
            // A late response is ignored.
            let answer = Ok(chain.checkpoint().to_string().into());
            rig.control_event(Event::TkaResponse { number, answer }).await;
        }
        rig.pass(Duration::from_secs(1)).await;
    }
    assert!((15..40).contains(&request), "{request}");
    assert_eq!(rig.health("its updates cannot be fetched").await.len(), 1);
    assert_eq!(peers(&rig.plane_messages()), []);
}

#[tokio::test(start_paused = true)]
async fn damaged_tka_file_admits_no_peer() {
    let chain = Chain::new("straight");
    for damage in ["", "[]", r#"{"version":1,"control_url":"","updates":["oA=="]}"#] {
        let rig = Rig::locked("lock-damaged", &chain).await;
        let damage = damage.replace(r#""control_url":"""#, &format!(r#""control_url":"{URL}""#));
        std::fs::write(rig.folder.0.join("lock.json"), &damage).unwrap();
        let mut rig = rig.restarted().await;
        assert_eq!(rig.health("no peer is trusted").await.len(), 1, "{damage}");
        rig.stream(chain.map(Value::Null)).await;
        assert_eq!(peers(&rig.plane_messages()), [], "{damage}");
    }
}

#[tokio::test(start_paused = true)]
async fn tka_keys_are_removed_when_the_coordinator_changes() {
    let chain = Chain::new("straight");
    let rig = Rig::locked("lock-previous", &chain).await;
    let mut rig = Rig::at(rig.folder.clone(), rig.agent.clock);
    rig.plane(hello(NodePublic::default())).await;
    assert_eq!(rig.tka_status().await["Enabled"], true);
    rig.set("ControlURL", "https://other.example").await;
    assert_eq!(rig.tka_status().await["Enabled"], false);
    let mut rig = rig.restarted().await;
    assert_eq!(rig.tka_status().await["Enabled"], false);
}

#[tokio::test(start_paused = true)]
async fn tka_file_of_a_previous_coordinator_is_ignored() {
    let chain = Chain::new("straight");
    let rig = Rig::locked("lock-previous-file", &chain).await;
    let file = rig.folder.0.join("lock.json");
    let saved = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, saved.replace(URL, "https://previous.example")).unwrap();
    let mut rig = rig.restarted().await;
    assert_eq!(rig.tka_status().await["Enabled"], false);
    rig.stream(chain.map(Value::Null)).await;
    assert_eq!(peers(&rig.plane_messages()), [key(SIGNED), key(INSERTED)]);
}

#[tokio::test(start_paused = true)]
async fn why_report_shows_the_tka_state_of_a_peer() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-why", &chain).await;
    for (peer, is_in) in [("n50", true), ("n51", false)] {
        let why = rig.request(|reply| Request::Why { target: peer.into(), reply }).await;
        let steps = why.unwrap().unwrap().steps;
        let step = steps.iter().find(|step| step.text.starts_with("tailnet lock: its key"));
        assert_eq!(step.unwrap().ok, is_in, "{steps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tka_status_has_keys_and_both_kinds_of_peers() {
    let chain = Chain::new("straight");
    let mut rig = Rig::locked("lock-status", &chain).await;
    let status = rig.tka_status().await;
    assert_eq!((&status["Enabled"], &status["NodeKeySigned"]), (&json!(true), &json!(false)));
    assert_eq!(status["Head"].as_array().unwrap().len(), 32);
    assert_eq!(status["TrustedKeys"].as_array().unwrap().len(), 3);
    assert_eq!(status["VisiblePeers"][0]["NodeKey"], json!(key(SIGNED)));
    assert_eq!(status["FilteredPeers"][0]["NodeKey"], json!(key(INSERTED)));
    let (own, seen) = (&status["NodeKeySignature"], &status["VisiblePeers"][0]);
    assert_eq!((own, &seen["NodeKeySignature"]["SigKind"]), (&Value::Null, &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn auth_key_with_credential_signs_the_node_key() {
    let chain = Chain::new("straight");
    let wrapped = &chain.0["Wrapped"][0];
    let mut rig = Rig::joined("lock-auth-key").await;
    let text = Zeroizing::new(wrapped["Text"].as_str().unwrap().to_owned());
    rig.agent.coordinate(|coordinator, context| coordinator.begin_login(Some(text), context));
    rig.plane(ToAgent::Candidate(key(90))).await;
    let login = rig.login().await;
    assert_eq!(login.auth_key.unwrap().as_str(), wrapped["AuthKey"].as_str().unwrap());
    assert_eq!(json!(login.signature), base64(&wrapped["Signed"]));
    assert_eq!(json!(login.tka_key), rig.tka_status().await["PublicKey"]);
}

#[tokio::test(start_paused = true)]
async fn expired_node_key_is_replaced_by_a_self_signed_one() {
    let chain = Chain::new("straight");
    let renewal = &chain.0["Renewed"][0];
    let rig = Rig::joined("lock-renewal").await;
    let text = renewal["Key"].as_str().unwrap();
    std::fs::write(rig.folder.0.join("lock.key"), text).unwrap();
    let mut rig = rig.restarted().await;
    rig.plane_messages();
    let previous = base64(&renewal["First"]).as_str().map(str::to_owned);
    rig.control_event(Event::NeedsNewNodeKey { signature: previous }).await;
    assert!(rig.plane_messages().contains(&ToDataPlane::MakeCandidate));
    let candidate = NodePublic(bytes(&renewal["Nodes"][0]).try_into().unwrap());
    rig.plane(ToAgent::Candidate(candidate)).await;
    let login = rig.login().await;
    assert_eq!((login.node_key, login.old_node_key), (candidate, Some(KEY)));
    assert_eq!(json!(login.signature), base64(&renewal["Texts"][0]));
    assert_eq!(json!(login.tka_key), renewal["Public"]);
}

#[tokio::test(start_paused = true)]
async fn invalid_previous_signature_requires_a_login() {
    let mut rig = Rig::joined("lock-no-renewal").await;
    for previous in ["", "?", "oA=="] {
        rig.plane_messages();
        rig.control_event(Event::NeedsNewNodeKey { signature: Some(previous.into()) }).await;
        assert!(!rig.plane_messages().contains(&ToDataPlane::MakeCandidate), "{previous:?}");
        assert_eq!(rig.health("log in again").await.len(), 1, "{previous:?}");
    }
}

impl Rig {
    /// The login that was sent to the coordinator.
    async fn login(&self) -> mesh::registration::Login {
        let login = self.session_commands().await.into_iter().find_map(|command| match command {
            Command::Login(login) => Some(login),
            _ => None,
        });
        login.expect("a login command was sent")
    }
}
