use super::{coordinator::Behaviour, *};

async fn begun() -> (Member, Coordinator) {
    let coordinator = Coordinator::new(Behaviour::Good);
    let member = Member::new(coordinator.network()).await;
    (member, coordinator)
}

#[tokio::test(start_paused = true)]
async fn auth_key_registers_a_node_that_follows_the_map() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(with_auth_key())).await;
    let request = coordinator.next_registration().await;
    assert_eq!(request.body["Auth"], json!({ "AuthKey": "secret" }));
    assert_eq!(request.body["NodeKey"], KEY.to_string());
    assert_eq!(request.body["Hostinfo"], json!({ "Hostname": "a" }));
    request.json(&registered());
    let Event::Registered(registered) = member.event().await else { panic!() };
    assert_eq!((registered.node_key, registered.is_authorized), (KEY, true));
    assert_eq!(registered.user.display_name, "Ann");
    assert_eq!(registered.login.login_name, "ann@example");
    member.connected(&mut coordinator).await;
    assert_eq!(coordinator.targets().len(), 1, "one connection is enough");
}

#[tokio::test(start_paused = true)]
async fn no_connection_before_the_first_update_command() {
    let coordinator = Coordinator::new(Behaviour::Good);
    let (commands, command_receiver) = mpsc::channel(8);
    let (event_sender, _events) = mpsc::channel(8);
    let settings = settings(coordinator::key(), coordinator.network());
    tokio::spawn(Session::new(settings, event_sender).run(command_receiver));
    commands.send(Command::Login(with_auth_key())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(coordinator.targets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn login_by_page_retains_its_key_and_never_times_out() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(Login::new(KEY))).await;
    let first = "https://control.example/register/1";
    coordinator.next_registration().await.json(&json!({ "AuthURL": first }));
    assert!(matches!(member.event().await, Event::AuthUrl(url) if url == first));
    let request = coordinator.next_registration().await;
    assert_eq!(request.body["Followup"], first);
    tokio::time::sleep(Duration::from_secs(1800)).await;
    // The coordinator has dropped the first URL.
    let second = "https://control.example/register/2";
    request.json(&json!({ "AuthURL": second }));
    assert!(matches!(member.event().await, Event::AuthUrl(url) if url == second));
    let request = coordinator.next_registration().await;
    assert_eq!(request.body["Followup"], second);
    assert_eq!(request.body["NodeKey"], KEY.to_string());
    request.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
}

#[tokio::test(start_paused = true)]
async fn immediate_followup_answers_cause_one_request_per_second() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(Login::new(KEY))).await;
    let url = json!({ "AuthURL": "https://control.example/register/1" });
    coordinator.next_registration().await.json(&url);
    assert!(matches!(member.event().await, Event::AuthUrl(_)));
    let begun = tokio::time::Instant::now();
    for _ in 0..30 {
        coordinator.next_registration().await.json(&url);
    }
    assert!(begun.elapsed() >= Duration::from_secs(29), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn login_continues_over_a_new_connection_with_the_same_key() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(Login::new(KEY))).await;
    let url = "https://control.example/register/1";
    coordinator.next_registration().await.json(&json!({ "AuthURL": url }));
    assert!(matches!(member.event().await, Event::AuthUrl(_)));
    let _never = coordinator.next_registration().await;
    member.command(Command::Reconnect).await;
    let request = coordinator.next_registration().await;
    assert_eq!(
        (request.body["Followup"].as_str(), &request.body["NodeKey"]),
        (Some(url), &json!(KEY))
    );
    // If the coordinator has dropped the URL, the login starts again.
    request.status(404, "registration not found");
    assert!(member.disconnected().await.contains("registration not found"));
    assert_eq!(coordinator.next_registration().await.body["Followup"], "");
}

#[tokio::test(start_paused = true)]
async fn expired_key_waits_for_a_new_login() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(Login::new(KEY))).await;
    coordinator.next_registration().await.json(&json!({ "NodeKeyExpired": true }));
    assert!(matches!(member.event().await, Event::NeedsNewNodeKey { signature: None }));
    assert!(coordinator.is_idle_for(Duration::from_secs(600)).await);
    let key = NodePublic([3; 32]);
    member.command(Command::Login(Login { old_node_key: Some(KEY), ..Login::new(key) })).await;
    let request = coordinator.next_registration().await;
    assert_eq!((&request.body["NodeKey"], &request.body["OldNodeKey"]), (&json!(key), &json!(KEY)));
}

#[tokio::test(start_paused = true)]
async fn refused_auth_key_is_reported_verbatim_and_retried_rarely() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(with_auth_key())).await;
    let mut waited = Duration::ZERO;
    for _ in 0..20 {
        coordinator.next_registration().await.json(&json!({ "Error": "authkey\nexpired" }));
        let Event::Refused { why, retry_in } = member.event().await else { panic!() };
        assert_eq!(why, "authkey expired");
        waited += retry_in;
    }
    assert!(waited > Duration::from_secs(1200), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn busy_coordinator_is_retried_after_the_default_delay() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(with_auth_key())).await;
    coordinator.next_registration().await.status(429, "slow down");
    let Event::Disconnected { why, retry_in } = member.event().await else { panic!() };
    let range = Duration::from_secs(8)..=Duration::from_secs(12);
    assert!(range.contains(&retry_in), "{why}: {retry_in:?}");
}

#[tokio::test(start_paused = true)]
async fn outdated_client_gets_a_clear_error() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(with_auth_key())).await;
    coordinator.next_registration().await.status(400, "unsupported client version: v1.80 (119)");
    assert!(member.disconnected().await.contains("requires a newer version of this program"));
}

#[tokio::test(start_paused = true)]
async fn deleted_node_registers_again_without_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Login(with_auth_key())).await;
    coordinator.next_registration().await.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
    coordinator.next_map_stream().await.status(404, "node not found");
    let request = loop {
        let request = coordinator.next_request().await;
        if request.path == "/machine/register" {
            break request;
        }
        request.status(404, "node not found");
    };
    assert_eq!((&request.body["Auth"], &request.body["NodeKey"]), (&Value::Null, &json!(KEY)));
}

#[tokio::test(start_paused = true)]
async fn logout_expires_the_key_and_no_request_follows() {
    let (mut member, mut coordinator, _stream) = joined().await;
    member.command(Command::Logout(KEY)).await;
    let request = coordinator.next_registration().await;
    assert_eq!(request.body["Expiry"], "1970-01-01T00:02:03Z");
    assert_eq!(request.body["NodeKey"], KEY.to_string());
    request.json(&json!({}));
    assert!(matches!(member.event().await, Event::LoggedOut));
    assert!(coordinator.is_idle_for(Duration::from_secs(600)).await);
    let Member { commands, running, .. } = member;
    drop(commands);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn session_ends_when_the_receiver_is_dropped() {
    let (member, _coordinator, _stream) = joined().await;
    let Member { commands, events, running } = member;
    drop(events);
    timeout(Duration::from_secs(200), running).await.unwrap().unwrap();
    drop(commands);
}

#[tokio::test(start_paused = true)]
async fn server_key_of_first_connection_is_reported_and_pinned() {
    let mut coordinator = Coordinator::new(Behaviour::Good);
    let mut member = Member::expecting(MachinePublic::default(), coordinator.network()).await;
    member.command(Command::Login(with_auth_key())).await;
    let Event::ServerKey(key) = member.event().await else { panic!() };
    assert_eq!(key, coordinator::key());
    coordinator.next_registration().await.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
    let stream = member.connected(&mut coordinator).await;
    // The update may come before the stream or after it.
    if let Ok(update) = timeout(Duration::from_secs(1), coordinator.next_request()).await {
        update.status(200, "");
    }
    coordinator.set_behaviour(Behaviour::Impostor);
    coordinator.cut();
    drop(stream);
    member.command(Command::Reconnect).await;
    let why = member.disconnected().await;
    assert!(
        why.contains("it may be an impostor") && why.contains("set IFACE --server-key mkey:"),
        "{why}"
    );
    assert!(coordinator.is_idle_for(Duration::from_secs(60)).await, "no request is sent");
    coordinator.set_behaviour(Behaviour::Good);
    member.command(Command::Reconnect).await;
    coordinator.next_map_stream().await;
}

#[tokio::test(start_paused = true)]
async fn auth_key_is_not_sent_to_a_coordinator_with_a_wrong_key() {
    let mut coordinator = Coordinator::new(Behaviour::Impostor);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Login(with_auth_key())).await;
    assert!(member.disconnected().await.contains("it may be an impostor"));
    assert!(coordinator.is_idle_for(Duration::from_secs(60)).await, "no request is sent");
}

#[tokio::test(start_paused = true)]
async fn node_deleted_before_resume_registers_with_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Resume(with_auth_key())).await;
    let request = loop {
        let request = coordinator.next_request().await;
        if request.path == "/machine/register" {
            break request;
        }
        request.status(404, "node not found");
    };
    assert_eq!(request.body["Auth"], json!({ "AuthKey": "secret" }));
    request.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
}

#[tokio::test(start_paused = true)]
async fn node_deleted_after_resume_registers_without_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.command(Command::Resume(with_auth_key())).await;
    drop(member.connected(&mut coordinator).await);
    member.disconnected().await;
    let request = loop {
        let request = coordinator.next_request().await;
        if request.path == "/machine/register" {
            break request;
        }
        request.status(404, "node not found");
    };
    assert_eq!(request.body["Auth"], Value::Null);
}
