use super::{
    coordinator::{Behaviour, MemberRequest},
    *,
};

/// The first map of a resumable stream.
fn named(handle: &str, seq: i64) -> Value {
    json!({ "MapSessionHandle": handle, "Seq": seq, "Node": { "ID": 1 } })
}

/// The position in the request of a stream.
fn position(request: &MemberRequest) -> (Option<&str>, Option<i64>) {
    (request.body["MapSessionHandle"].as_str(), request.body["MapSessionSeq"].as_i64())
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

/// A session that received two maps of a stream with the handle `a`, which then ended.
async fn interrupted() -> (Member, Coordinator) {
    let mut coordinator = Coordinator::new(Behaviour::Good);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    let request = coordinator.next_map_stream().await;
    assert_eq!(position(&request), (None, None));
    let stream = request.stream();
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
async fn stream_resumes_from_the_last_delivered_map() {
    let (mut member, mut coordinator) = interrupted().await;
    let request = coordinator.next_map_stream().await;
    assert_eq!(position(&request), (Some("a"), Some(9)));
    let stream = request.stream();
    // A resumed stream contains changes, and this node did not change.
    stream.send(&json!({ "MapSessionHandle": "a", "Seq": 12, "PeersRemoved": [5] })).await;
    assert!(resumed(&mut member).await);
    assert_eq!(member.map().await, read(&json!({ "PeersRemoved": [5] })));
    drop(stream);
    assert_eq!(position(&coordinator.next_map_stream().await), (Some("a"), Some(12)));
}

#[tokio::test(start_paused = true)]
async fn coordinator_that_cannot_resume_starts_a_new_stream() {
    let (mut member, mut coordinator) = interrupted().await;
    // A coordinator that failed once may still be able to resume.
    coordinator.next_map_stream().await.status(500, "the database is locked");
    let request = coordinator.next_map_stream().await;
    assert_eq!(position(&request), (Some("a"), Some(9)));
    let stream = request.stream();
    stream.send(&named("b", 1)).await;
    assert!(!resumed(&mut member).await);
    member.map().await;
    drop(stream);
    let request = coordinator.next_map_stream().await;
    assert_eq!(position(&request), (Some("b"), Some(1)));
    // A stream without a handle cannot be resumed.
    let stream = request.stream();
    stream.send(&first_map()).await;
    assert!(!resumed(&mut member).await);
    member.map().await;
    drop(stream);
    assert_eq!(position(&coordinator.next_map_stream().await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn renamed_stream_resumes_by_its_new_name() {
    let (mut member, mut coordinator) = interrupted().await;
    let stream = coordinator.next_map_stream().await.stream();
    stream.send(&json!({ "MapSessionHandle": "a", "Seq": 10 })).await;
    assert!(resumed(&mut member).await);
    member.map().await;
    stream.send(&json!({ "MapSessionHandle": "b", "Seq": 3, "PeersRemoved": [5] })).await;
    assert_eq!(member.map().await, read(&json!({ "PeersRemoved": [5] })));
    drop(stream);
    assert_eq!(position(&coordinator.next_map_stream().await), (Some("b"), Some(3)));
}

#[tokio::test(start_paused = true)]
async fn partial_map_cannot_start_a_stream() {
    let (mut member, mut coordinator) = interrupted().await;
    let stream = coordinator.next_map_stream().await.stream();
    stream.send(&json!({ "MapSessionHandle": "b", "Seq": 1, "PeersRemoved": [5] })).await;
    assert!(member.disconnected().await.contains("closed the stream"));
    assert!(member.disconnected().await.contains("does not name this node"));
}

#[tokio::test(start_paused = true)]
async fn different_login_starts_a_new_stream() {
    let (member, mut coordinator) = interrupted().await;
    member.command(Command::Resume(Login::new(NodePublic([9; 32])))).await;
    loop {
        let request = coordinator.next_map_stream().await;
        if request.body["NodeKey"] == json!(NodePublic([9; 32])) {
            assert_eq!(position(&request), (None, None));
            break;
        }
    }
}
