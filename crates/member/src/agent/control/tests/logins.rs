use super::{coordinator::Manner, *};

async fn begun() -> (Member, Coordinator) {
    let coordinator = Coordinator::new(Manner::Good);
    let member = Member::new(coordinator.network()).await;
    (member, coordinator)
}

#[tokio::test(start_paused = true)]
async fn an_auth_key_makes_a_node_that_follows_the_map() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(with_auth_key())).await;
    let asked = coordinator.registers().await;
    assert_eq!(asked.body["Auth"], json!({ "AuthKey": "secret" }));
    assert_eq!(asked.body["NodeKey"], KEY.to_string());
    assert_eq!(asked.body["Hostinfo"], json!({ "Hostname": "a" }));
    asked.json(&registered());
    let Event::Registered(registered) = member.event().await else { panic!() };
    assert_eq!((registered.node_key, registered.is_authorized), (KEY, true));
    assert_eq!(registered.user.display_name, "Ann");
    assert_eq!(registered.login.login_name, "ann@example");
    member.connected(&mut coordinator).await;
    assert_eq!(coordinator.targets().len(), 1, "one connection is enough");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_it_is_known_what_the_node_is() {
    let coordinator = Coordinator::new(Manner::Good);
    let (commands, to_do) = mpsc::channel(8);
    let (happens, _events) = mpsc::channel(8);
    let settings = settings(coordinator::key(), coordinator.network());
    tokio::spawn(Session::new(settings, happens).run(to_do));
    commands.send(Command::Login(with_auth_key())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(coordinator.targets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_login_by_a_page_keeps_its_key_and_waits_as_long_as_it_takes() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(Login::new(KEY))).await;
    let first = "https://control.example/register/1";
    coordinator.registers().await.json(&json!({ "AuthURL": first }));
    assert!(matches!(member.event().await, Event::AuthUrl(url) if url == first));
    let asked = coordinator.registers().await;
    assert_eq!(asked.body["Followup"], first);
    tokio::time::sleep(Duration::from_secs(1800)).await;
    // The coordinator forgot the first URL.
    let second = "https://control.example/register/2";
    asked.json(&json!({ "AuthURL": second }));
    assert!(matches!(member.event().await, Event::AuthUrl(url) if url == second));
    let asked = coordinator.registers().await;
    assert_eq!(asked.body["Followup"], second);
    assert_eq!(asked.body["NodeKey"], KEY.to_string());
    asked.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_answers_a_login_at_once_each_time_is_asked_once_a_second() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(Login::new(KEY))).await;
    let url = json!({ "AuthURL": "https://control.example/register/1" });
    coordinator.registers().await.json(&url);
    assert!(matches!(member.event().await, Event::AuthUrl(_)));
    let begun = tokio::time::Instant::now();
    for _ in 0..30 {
        coordinator.registers().await.json(&url);
    }
    assert!(begun.elapsed() >= Duration::from_secs(29), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_login_goes_on_over_another_connection_with_the_same_key() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(Login::new(KEY))).await;
    let url = "https://control.example/register/1";
    coordinator.registers().await.json(&json!({ "AuthURL": url }));
    assert!(matches!(member.event().await, Event::AuthUrl(_)));
    let _never = coordinator.registers().await;
    member.tell(Command::Reconnect).await;
    let asked = coordinator.registers().await;
    assert_eq!((asked.body["Followup"].as_str(), &asked.body["NodeKey"]), (Some(url), &json!(KEY)));
    // What it cannot wait for begins anew.
    asked.status(404, "registration not found");
    assert!(member.disconnected().await.contains("registration not found"));
    assert_eq!(coordinator.registers().await.body["Followup"], "");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_expired_waits_for_another_one() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(Login::new(KEY))).await;
    coordinator.registers().await.json(&json!({ "NodeKeyExpired": true }));
    assert!(matches!(member.event().await, Event::NeedsNewNodeKey { signature: None }));
    assert!(coordinator.is_left_alone(Duration::from_secs(600)).await);
    let key = NodePublic([3; 32]);
    member.tell(Command::Login(Login { old_node_key: Some(KEY), ..Login::new(key) })).await;
    let asked = coordinator.registers().await;
    assert_eq!((&asked.body["NodeKey"], &asked.body["OldNodeKey"]), (&json!(key), &json!(KEY)));
}

#[tokio::test(start_paused = true)]
async fn a_refused_auth_key_is_told_in_the_coordinators_words_and_rarely_tried() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(with_auth_key())).await;
    let mut waited = Duration::ZERO;
    for _ in 0..20 {
        coordinator.registers().await.json(&json!({ "Error": "authkey\nexpired" }));
        let Event::Refused { why, retry_in } = member.event().await else { panic!() };
        assert_eq!(why, "authkey expired");
        waited += retry_in;
    }
    assert!(waited > Duration::from_secs(1200), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_busy_is_asked_when_it_wants() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(with_auth_key())).await;
    coordinator.registers().await.status(429, "slow down");
    let Event::Disconnected { why, retry_in } = member.event().await else { panic!() };
    let range = Duration::from_secs(8)..=Duration::from_secs(12);
    assert!(range.contains(&retry_in), "{why}: {retry_in:?}");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_too_old_is_told_so() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(with_auth_key())).await;
    coordinator.registers().await.status(400, "unsupported client version: v1.80 (119)");
    assert!(member.disconnected().await.contains("wants a newer version of this program"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_coordinator_forgot_registers_again_without_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Login(with_auth_key())).await;
    coordinator.registers().await.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
    coordinator.streams().await.status(404, "node not found");
    let asked = loop {
        let asked = coordinator.asked().await;
        if asked.path == "/machine/register" {
            break asked;
        }
        asked.status(404, "node not found");
    };
    assert_eq!((&asked.body["Auth"], &asked.body["NodeKey"]), (&Value::Null, &json!(KEY)));
}

#[tokio::test(start_paused = true)]
async fn a_logout_gives_up_the_key_and_then_nothing_is_asked() {
    let (mut member, mut coordinator, _stream) = joined().await;
    member.tell(Command::Logout(KEY)).await;
    let asked = coordinator.registers().await;
    assert_eq!(asked.body["Expiry"], "1970-01-01T00:02:03Z");
    assert_eq!(asked.body["NodeKey"], KEY.to_string());
    asked.json(&json!({}));
    assert!(matches!(member.event().await, Event::LoggedOut));
    assert!(coordinator.is_left_alone(Duration::from_secs(600)).await);
    let Member { commands, running, .. } = member;
    drop(commands);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_nobody_listens() {
    let (member, _coordinator, _stream) = joined().await;
    let Member { commands, events, running } = member;
    drop(events);
    timeout(Duration::from_secs(200), running).await.unwrap().unwrap();
    drop(commands);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_the_first_connection_is_told_and_no_other_is_accepted_after_it() {
    let mut coordinator = Coordinator::new(Manner::Good);
    let mut member = Member::expecting(MachinePublic::default(), coordinator.network()).await;
    member.tell(Command::Login(with_auth_key())).await;
    let Event::ServerKey(key) = member.event().await else { panic!() };
    assert_eq!(key, coordinator::key());
    coordinator.registers().await.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
    let stream = member.connected(&mut coordinator).await;
    // What the node is may be told before the stream, or behind it.
    if let Ok(told) = timeout(Duration::from_secs(1), coordinator.asked()).await {
        told.status(200, "");
    }
    coordinator.behave(Manner::Impostor);
    coordinator.cut();
    drop(stream);
    member.tell(Command::Reconnect).await;
    let why = member.disconnected().await;
    assert!(
        why.contains("it may be an impostor") && why.contains("set IFACE --server-key mkey:"),
        "{why}"
    );
    assert!(coordinator.is_left_alone(Duration::from_secs(60)).await, "it is asked nothing");
    coordinator.behave(Manner::Good);
    member.tell(Command::Reconnect).await;
    coordinator.streams().await;
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_without_the_key_of_the_join_command_gets_no_auth_key() {
    let mut coordinator = Coordinator::new(Manner::Impostor);
    let mut member = Member::new(coordinator.network()).await;
    member.tell(Command::Login(with_auth_key())).await;
    assert!(member.disconnected().await.contains("it may be an impostor"));
    assert!(coordinator.is_left_alone(Duration::from_secs(60)).await, "it is asked nothing");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_deleted_before_it_resumed_registers_with_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Resume(with_auth_key())).await;
    let asked = loop {
        let asked = coordinator.asked().await;
        if asked.path == "/machine/register" {
            break asked;
        }
        asked.status(404, "node not found");
    };
    assert_eq!(asked.body["Auth"], json!({ "AuthKey": "secret" }));
    asked.json(&registered());
    assert!(matches!(member.event().await, Event::Registered(_)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_deleted_after_it_resumed_registers_without_the_auth_key() {
    let (mut member, mut coordinator) = begun().await;
    member.tell(Command::Resume(with_auth_key())).await;
    drop(member.connected(&mut coordinator).await);
    member.disconnected().await;
    let asked = loop {
        let asked = coordinator.asked().await;
        if asked.path == "/machine/register" {
            break asked;
        }
        asked.status(404, "node not found");
    };
    assert_eq!(asked.body["Auth"], Value::Null);
}
