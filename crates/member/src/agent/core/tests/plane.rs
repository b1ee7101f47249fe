use ipc::{Activity, Path};
use mesh::local_json::{StartOptions, State as NodeState};

use super::*;

#[tokio::test]
async fn joined_agent_resumes_and_sends_the_peers_to_the_data_plane() {
    let mut rig = Rig::joined("resumes").await;
    let commands = rig.session_commands().await;
    let [control::Command::Update(_), control::Command::Resume(_)] = &commands[..] else {
        panic!("{commands:?}")
    };
    rig.stream(map_of(&[2, 3])).await;
    assert_eq!(peers(&rig.plane_messages()), [key(2), key(3)]);
    assert_eq!(rig.status().await.peer.len(), 2);
}

#[tokio::test]
async fn last_of_many_updates_reaches_the_coordinator() {
    let mut rig = Rig::joined("many-words").await;
    rig.stream(map_of(&[2])).await;
    for number in 0..200 {
        rig.set("Hostname", format!("host-{number}")).await;
    }
    let commands = rig.session_commands().await;
    let Some(control::Command::Update(last)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!(last.hostinfo["Hostname"], "host-199");
}

#[tokio::test]
async fn last_of_many_maps_reaches_the_relays() {
    let mut rig = Rig::joined("relays").await;
    for id in 1..500 {
        let region = json!({"RegionID": 1, "RegionCode": format!("code-{id}"), "Nodes": []});
        let map = json!({"Node": node(1), "DERPMap": {"Regions": {"1": region}}});
        rig.map(map).await;
    }
    let commands = rig.relay_commands().await;
    let last = commands.iter().rev().find_map(|command| match command {
        derp::Command::Map(map, _) => map.regions.clone(),
        _ => None,
    });
    assert_eq!(last.unwrap()[&1].as_ref().unwrap().region_code, "code-499");
}

#[tokio::test]
async fn first_map_is_saved_at_once_and_later_maps_after_a_delay() {
    let mut rig = Rig::joined("saved").await;
    rig.stream(map_of(&[2])).await;
    rig.map(map_of(&[2, 3])).await;
    let mut rig = rig.restarted().await;
    assert_eq!(peers(&rig.plane_messages()), [key(2)], "the first map is saved at once");
    rig.stream(map_of(&[2])).await;
    rig.map(map_of(&[2, 3])).await;
    rig.pass(crate::agent::saved::SAVE_DELAY).await;
    let mut rig = rig.restarted().await;
    assert_eq!(peers(&rig.plane_messages()), [key(2), key(3)]);
    assert_eq!(rig.health("coordinator").await, Vec::<String>::new());
}

#[tokio::test]
async fn saved_map_removes_no_peer_and_first_map_of_coordinator_does() {
    let complete = |messages: &[ToDataPlane]| -> Vec<bool> {
        let of = |message: &ToDataPlane| match message {
            ToDataPlane::Peers { complete, .. } => Some(*complete),
            _ => None,
        };
        messages.iter().filter_map(of).collect()
    };
    let mut rig = Rig::joined("saved-adds").await;
    rig.stream(map_of(&[2])).await;
    assert_eq!(complete(&rig.plane_messages()), [true]);
    let mut rig = rig.restarted().await;
    assert_eq!(
        complete(&rig.plane_messages()),
        [false],
        "the previous agent may have sent more peers"
    );
    rig.stream(map_of(&[2])).await;
    assert_eq!(complete(&rig.plane_messages()), [true]);
    rig.map(map_of(&[2, 3])).await;
    assert!(!complete(&rig.plane_messages()).contains(&true));
}

#[tokio::test]
async fn peers_of_the_previous_agent_remain_until_a_map_or_a_timeout() {
    let mut rig = Rig::joined("previous").await;
    rig.stream(map_of(&[2])).await;
    let restart = async |folder: Arc<TempFolder>, clock| {
        let mut rig = Rig::at(folder, clock);
        rig.plane(hello(KEY)).await;
        let (peer, received_from) = (key(9), Some(Path::Relay(1)));
        let active = Activity {
            peer,
            received: 1,
            sent: 1,
            last_handshake: None,
            received_from,
            path_mtu: None,
            post_quantum: None,
        };
        rig.plane(ToAgent::Activity(vec![active])).await;
        let messages = rig.plane_messages();
        assert!(
            !messages.iter().any(|message| matches!(message, ToDataPlane::Peers { .. })),
            "{messages:?}"
        );
        rig
    };
    let mut rig = restart(rig.folder.clone(), rig.agent.clock).await;
    rig.stream(map_of(&[3])).await;
    assert_eq!(peers(&rig.plane_messages()), [key(3)]);
    let mut rig = restart(rig.folder.clone(), rig.agent.clock).await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(peers(&rig.plane_messages()), [key(3)], "the coordinator does not answer");
}

#[tokio::test]
async fn relay_health_is_cleared_by_a_new_connection() {
    let mut rig = Rig::joined("relay-health").await;
    rig.stream(map_of(&[2])).await;
    let text = "ill".to_owned();
    rig.handle(Input::Relays(derp::Event::Health { region: 1, text })).await;
    assert!(rig.status().await.health.concat().contains("ill"));
    let latency = Duration::from_millis(1);
    rig.handle(Input::Relays(derp::Event::Connected { region: 1, latency })).await;
    assert!(!rig.status().await.health.concat().contains("ill"));
}

#[tokio::test]
async fn server_key_is_stored_and_only_the_user_can_change_it() {
    let key = |byte| MachinePublic([byte; 32]);
    let mut rig = Rig::joined("server-key").await;
    let expected = |rig: &Rig| rig.sessions.lock().unwrap().last().unwrap().server_key;
    let count = |rig: &Rig| rig.sessions.lock().unwrap().len();
    assert!(expected(&rig).is_zero());
    rig.control_event(control::Event::ServerKey(key(1))).await;
    rig.set("Hostname", "other").await;
    assert_eq!(count(&rig), 1, "the session continues");

    let mut rig = rig.restarted().await;
    assert_eq!(expected(&rig), key(1));
    rig.set("ServerKey", key(2).to_string()).await;
    assert_eq!((expected(&rig), count(&rig)), (key(2), 2), "another session");
    // Preferences from Tailscale's programs lack the server key.
    let prefs = Box::new(Prefs { server_key: key(0), ..rig.agent.node.prefs().clone() });
    let options = StartOptions { update_prefs: Some(prefs), ..StartOptions::default() };
    rig.request(|reply| Request::Start { options, reply }).await.unwrap().unwrap();
    assert_eq!(rig.agent.node.prefs().server_key, key(2));

    let edits = MaskedPrefs::default().with("ControlURL", "https://moved.example");
    assert!(
        rig.agent.node.prefs().edited(&edits).unwrap().server_key.is_zero(),
        "another coordinator"
    );
    let edits = edits.with("ServerKey", key(2).to_string());
    assert_eq!(rig.agent.node.prefs().edited(&edits).unwrap().server_key, key(2));
}

/// The auth key in the last resume command, if there was one.
async fn resumes_with(rig: &Rig) -> Option<Option<String>> {
    let commands = rig.session_commands().await;
    let resumed = commands.into_iter().rev().find_map(|command| match command {
        control::Command::Resume(login) => Some(login),
        _ => None,
    })?;
    Some(resumed.auth_key.map(|key| key.to_string()))
}

async fn start_with_key(rig: &mut Rig) {
    let options = serde_json::from_value(json!({"AuthKey": "secret"})).unwrap();
    rig.request(|reply| Request::Start { options, reply }).await.unwrap().unwrap();
}

#[tokio::test]
async fn auth_key_is_the_fallback_when_the_coordinator_rejects_the_node_key() {
    let secret = Some("secret".to_owned());
    let mut rig = Rig::joined("fallback-key").await;
    rig.stream(map_of(&[2])).await;
    rig.pass(Duration::from_secs(5)).await;
    rig.session_commands().await;
    start_with_key(&mut rig).await;
    assert_eq!(resumes_with(&rig).await, None, "the coordinator has admitted the node");

    let mut rig = rig.restarted().await;
    assert_eq!(resumes_with(&rig).await, Some(None));
    let status = rig.status().await;
    assert_eq!((status.backend_state, status.own.online), (NodeState::Running, false));
    start_with_key(&mut rig).await;
    assert_eq!(resumes_with(&rig).await, Some(secret.clone()));
    // The next session has it as well.
    rig.set("WantRunning", false).await;
    rig.set("WantRunning", true).await;
    assert_eq!(resumes_with(&rig).await, Some(secret.clone()));
    rig.plane_messages();
    rig.control_event(control::Event::NeedsNewNodeKey { signature: None }).await;
    assert!(
        rig.plane_messages().iter().any(|message| matches!(message, ToDataPlane::MakeCandidate))
    );
    rig.plane(ToAgent::Candidate(key(9))).await;
    let commands = rig.session_commands().await;
    let Some(control::Command::Login(login)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!((login.node_key, login.old_node_key), (key(9), Some(KEY)));
    assert_eq!(login.auth_key.as_ref().map(|key| key.to_string()), secret);
}

#[tokio::test]
async fn auth_key_is_discarded_after_the_first_map() {
    let mut rig = Rig::joined("forgotten-key").await;
    start_with_key(&mut rig).await;
    rig.stream(map_of(&[2])).await;
    let status = rig.status().await;
    assert!(status.own.online && status.coordinator_problem.is_empty());
    rig.plane_messages();
    rig.control_event(control::Event::NeedsNewNodeKey { signature: None }).await;
    assert!(
        !rig.plane_messages().iter().any(|message| matches!(message, ToDataPlane::MakeCandidate))
    );
    assert_eq!(rig.status().await.backend_state, NodeState::NeedsLogin);
}

#[tokio::test]
async fn map_with_expired_node_uses_the_auth_key() {
    let mut rig = Rig::joined("expired-fallback").await;
    start_with_key(&mut rig).await;
    rig.plane_messages();
    let mut map = map_of(&[2]);
    map["Node"]["KeyExpiry"] = json!("2020-01-01T00:00:00Z");
    rig.stream(map).await;
    assert!(
        rig.plane_messages().iter().any(|message| matches!(message, ToDataPlane::MakeCandidate))
    );
}
