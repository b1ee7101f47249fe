use super::{
    coordinator::{Asked, Manner},
    *,
};

/// The first map of a stream that can be resumed.
fn named(handle: &str, seq: i64) -> Value {
    json!({ "MapSessionHandle": handle, "Seq": seq, "Node": { "ID": 1 } })
}

/// What a stream was asked to go on from.
fn position(asked: &Asked) -> (Option<&str>, Option<i64>) {
    (asked.body["MapSessionHandle"].as_str(), asked.body["MapSessionSeq"].as_i64())
}

async fn resumed(member: &mut Member) -> bool {
    loop {
        match member.event().await {
            Event::Connected { resumed } => return resumed,
            Event::Disconnected { .. } => {}
            event => panic!("{event:?}"),
        }
    }
}

/// A member that took two maps of a stream named `a`, which then ended.
async fn interrupted() -> (Member, Coordinator) {
    let mut coordinator = Coordinator::new(Manner::Good);
    let mut member = Member::new(coordinator.network()).await;
    member.tell(Command::Resume(Login::new(KEY))).await;
    let asked = coordinator.streams().await;
    assert_eq!(position(&asked), (None, None));
    let stream = asked.stream();
    stream.send(&named("a", 7)).await;
    assert!(!resumed(&mut member).await);
    for map in [named("a", 7), json!({ "Seq": 9 }), json!({ "KeepAlive": true })] {
        if map["Seq"] != 7 {
            stream.send(&map).await;
        }
        assert_eq!(member.map().await, read(&map));
    }
    (member, coordinator)
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_from_the_last_map_that_was_taken() {
    let (mut member, mut coordinator) = interrupted().await;
    let asked = coordinator.streams().await;
    assert_eq!(position(&asked), (Some("a"), Some(9)));
    let stream = asked.stream();
    // It has what changed: this node has not.
    stream.send(&json!({ "MapSessionHandle": "a", "Seq": 12, "PeersRemoved": [5] })).await;
    assert!(resumed(&mut member).await);
    assert_eq!(member.map().await, read(&json!({ "PeersRemoved": [5] })));
    drop(stream);
    assert_eq!(position(&coordinator.streams().await), (Some("a"), Some(12)));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_cannot_go_on_begins_anew() {
    let (mut member, mut coordinator) = interrupted().await;
    // One that failed to answer may know all the same.
    coordinator.streams().await.status(500, "the database is locked");
    let asked = coordinator.streams().await;
    assert_eq!(position(&asked), (Some("a"), Some(9)));
    let stream = asked.stream();
    stream.send(&named("b", 1)).await;
    assert!(!resumed(&mut member).await);
    member.map().await;
    drop(stream);
    let asked = coordinator.streams().await;
    assert_eq!(position(&asked), (Some("b"), Some(1)));
    // One that names no stream cannot be asked for more.
    let stream = asked.stream();
    stream.send(&first_map()).await;
    assert!(!resumed(&mut member).await);
    member.map().await;
    drop(stream);
    assert_eq!(position(&coordinator.streams().await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_named_anew_goes_on_by_that_name() {
    let (mut member, mut coordinator) = interrupted().await;
    let stream = coordinator.streams().await.stream();
    stream.send(&json!({ "MapSessionHandle": "a", "Seq": 10 })).await;
    assert!(resumed(&mut member).await);
    member.map().await;
    stream.send(&json!({ "MapSessionHandle": "b", "Seq": 3, "PeersRemoved": [5] })).await;
    assert_eq!(member.map().await, read(&json!({ "PeersRemoved": [5] })));
    drop(stream);
    assert_eq!(position(&coordinator.streams().await), (Some("b"), Some(3)));
}

#[tokio::test(start_paused = true)]
async fn half_a_map_is_no_beginning() {
    let (mut member, mut coordinator) = interrupted().await;
    let stream = coordinator.streams().await.stream();
    stream.send(&json!({ "MapSessionHandle": "b", "Seq": 1, "PeersRemoved": [5] })).await;
    assert!(member.disconnected().await.contains("closed the stream"));
    assert!(member.disconnected().await.contains("does not name this node"));
}

#[tokio::test(start_paused = true)]
async fn another_login_begins_anew() {
    let (member, mut coordinator) = interrupted().await;
    member.tell(Command::Resume(Login::new(NodePublic([9; 32])))).await;
    loop {
        let asked = coordinator.streams().await;
        if asked.body["NodeKey"] == json!(NodePublic([9; 32])) {
            assert_eq!(position(&asked), (None, None));
            break;
        }
    }
}
