use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tokio::time::Instant;

use super::{coordinator::framed, *};

#[tokio::test(start_paused = true)]
async fn registered_key_follows_the_map_without_registering() {
    let (mut member, _coordinator, stream) = joined().await;
    for map in [json!({ "PeersChanged": [] }), json!({ "KeepAlive": true })] {
        stream.send(&map).await;
        assert_eq!(member.map().await, read(&map));
    }
}

#[tokio::test(start_paused = true)]
async fn coordinator_gets_an_update_at_start_and_at_each_change() {
    let mut coordinator = Coordinator::new(coordinator::Behaviour::Good);
    let member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    let (mut streamed, mut update) = (None, None);
    for _ in 0..2 {
        let request = coordinator.next_request().await;
        let kind = if request.is_stream() { &mut streamed } else { &mut update };
        *kind = Some(request);
    }
    let (streamed, update) = (streamed.unwrap(), update.unwrap());
    assert_eq!(
        (&streamed.body["Compress"], &streamed.body["KeepAlive"]),
        (&json!("zstd"), &json!(true))
    );
    let _stream = streamed.stream();
    assert_eq!(update.body["OmitPeers"], true);
    assert_eq!(update.body["Endpoints"], json!(["192.0.2.1:1"]));
    // Changes during a request are sent afterwards, merged into the latest state.
    for port in 2..=5 {
        member.command(Command::Update(announced(port))).await;
    }
    update.status(200, "");
    let update = coordinator.next_update().await;
    assert_eq!(update.body["Endpoints"], json!(["192.0.2.1:5"]));
    update.status(500, "the database is locked");
    let update = coordinator.next_update().await;
    assert_eq!(update.body["Endpoints"], json!(["192.0.2.1:5"]));
    update.status(200, "");
    assert!(coordinator.is_idle_for(Duration::from_secs(100)).await);
}

#[tokio::test(start_paused = true)]
async fn ended_stream_is_followed_again_over_a_new_connection() {
    let (mut member, mut coordinator, stream) = joined().await;
    coordinator.targets();
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(stream);
    assert!(member.disconnected().await.contains("closed the stream"));
    let begun = Instant::now();
    member.connected(&mut coordinator).await;
    // Other clients may have lost their streams as well.
    assert!(begun.elapsed() <= Duration::from_secs(2));
    assert_eq!(coordinator.targets().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stream_that_always_ends_at_once_is_retried_with_backoff() {
    let (mut member, mut coordinator, stream) = joined().await;
    drop(stream);
    let mut waited = Duration::ZERO;
    for _ in 0..20 {
        let Event::Disconnected { retry_in, .. } = member.event().await else { panic!() };
        waited += retry_in;
        drop(member.connected(&mut coordinator).await);
    }
    assert!(waited > Duration::from_secs(10), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn reconnect_command_connects_at_once() {
    let (mut member, mut coordinator, _stream) = joined().await;
    let begun = Instant::now();
    member.command(Command::Reconnect).await;
    member.connected(&mut coordinator).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn stream_without_keepalive_times_out() {
    let (mut member, _coordinator, _stream) = joined().await;
    let begun = Instant::now();
    assert!(member.disconnected().await.contains("for 120 s"));
    assert_eq!(begun.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn dead_connection_is_detected_by_a_ping() {
    let (mut member, mut coordinator, _stream) = joined().await;
    let begun = Instant::now();
    coordinator.cut();
    let why = member.disconnected().await;
    assert!(why.contains("timed out"), "{why} after {:?}", begun.elapsed());
    assert_eq!(begun.elapsed().as_secs(), 90);
    member.connected(&mut coordinator).await;
}

#[tokio::test(start_paused = true)]
async fn incomplete_frame_does_not_count_as_keepalive() {
    let (mut member, _coordinator, stream) = joined().await;
    let begun = Instant::now();
    let dripping = tokio::spawn(async move {
        for byte in framed(&[b'{'; 100]) {
            stream.raw(&[byte]).await;
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
    });
    assert!(member.disconnected().await.contains("for 120 s"));
    assert_eq!(begun.elapsed().as_secs(), 120);
    dripping.abort();
}

#[tokio::test(start_paused = true)]
async fn unreadable_map_is_reported_and_a_new_stream_starts() {
    let (mut member, mut coordinator, mut stream) = joined().await;
    let packed = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    for (bad, why) in [
        (b"garbage".to_vec(), "not zstd"),
        (b"\x28\xb5\x2f\xfd\xff".to_vec(), "not zstd"),
        (packed("{\"Node\":"), "EOF"),
        // Its head is readable.
        (packed("{\"Domain\": \"a\", \"Domain\": \"b\"}"), "duplicate field"),
    ] {
        stream.raw(&framed(&bad)).await;
        let update = member.disconnected().await;
        assert!(update.contains(why), "{update}");
        stream = member.connected(&mut coordinator).await;
    }
}

#[tokio::test(start_paused = true)]
async fn first_map_without_this_node_is_rejected() {
    let mut coordinator = Coordinator::new(coordinator::Behaviour::Good);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    let stream = coordinator.next_map_stream().await.stream();
    stream.send(&json!({ "Peers": [] })).await;
    assert!(member.disconnected().await.contains("does not name this node"));
}

#[tokio::test(start_paused = true)]
async fn huge_frame_length_ends_the_stream() {
    let (mut member, mut coordinator, stream) = joined().await;
    stream.raw(&[0xff; 4]).await;
    assert!(member.disconnected().await.contains("a frame of 4294967295 bytes"));
    member.connected(&mut coordinator).await;
}

#[tokio::test(start_paused = true)]
async fn ping_without_type_is_answered_once_and_others_are_forwarded() {
    let (mut member, mut coordinator, stream) = joined().await;
    let ping = |url: &str, types: &str| {
        let ping = json!({ "URL": url, "URLIsNoise": true, "Types": types });
        json!({ "KeepAlive": true, "PingRequest": ping })
    };
    let url = "https://control.example/machine/ping-response?id=1";
    for _ in 0..2 {
        stream.send(&ping(url, "")).await;
        let Event::Map { head, .. } = member.event().await else { panic!() };
        assert_eq!(head.ping_request, None);
    }
    let request = loop {
        let request = coordinator.next_request().await;
        if request.path != "/machine/map" {
            break request;
        }
        request.status(200, "");
    };
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("HEAD", "/machine/ping-response?id=1")
    );
    request.status(200, "");
    stream.send(&ping("https://control.example/machine/c2n", "c2n")).await;
    let Event::Map { head, .. } = member.event().await else { panic!() };
    let ping = head.ping_request.unwrap();
    assert_eq!(ping.types, "c2n");
    let body = br#"{"a":1}"#.to_vec();
    member.command(Command::Answer { url: ping.url, over_noise: true, body }).await;
    let request = coordinator.next_request().await;
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/machine/c2n"));
    assert_eq!(request.body, json!({ "a": 1 }));
}

#[tokio::test(start_paused = true)]
async fn ping_answers_go_only_to_the_coordinators_host() {
    let (mut member, coordinator, stream) = joined().await;
    coordinator.targets();
    for (url, expected) in [
        ("http://10.0.0.1/admin", vec![]),
        ("http://control.example:8080/ping", vec![("control.example".to_owned(), 8080, false)]),
    ] {
        let ping = json!({ "KeepAlive": true, "PingRequest": { "URL": url } });
        stream.send(&ping).await;
        member.map().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let targets = coordinator.targets().into_iter();
        let targets: Vec<_> = targets.map(|to| (to.host, to.port, to.tls)).collect();
        assert_eq!(targets, expected, "{url}");
    }
}

#[tokio::test(start_paused = true)]
async fn next_connection_follows_the_dial_plan() {
    let (mut member, mut coordinator, stream) = joined().await;
    let plan = json!({ "Candidates": [{ "IP": "192.0.2.9", "DialTimeoutSec": 2.0 }] });
    stream.send(&json!({ "KeepAlive": true, "ControlDialPlan": plan })).await;
    member.map().await;
    coordinator.targets();
    member.command(Command::Reconnect).await;
    member.connected(&mut coordinator).await;
    let targets = coordinator.targets();
    assert_eq!(targets[0].address, Some([192, 0, 2, 9].into()));
    assert_eq!((targets[0].host.as_str(), targets[0].tls), ("control.example", true));
}

#[tokio::test(start_paused = true)]
async fn unhandled_maps_stay_unread_beyond_the_longest_frame() {
    let (mut member, _coordinator, stream) = joined().await;
    for _ in 0..2 {
        stream.raw(&framed(&more_than_half_of_the_longest())).await;
    }
    let first = member.event().await;
    assert!(matches!(first, Event::Map { .. }), "{first:?}");
    let second = tokio::time::timeout(Duration::from_secs(60), member.events.recv()).await;
    assert!(second.is_err(), "it is read before the first was handled");
    drop(first);
    member.map().await;
}

/// A map of 40 MiB in zstd (RFC 8878): repeated letters between two uncompressed blocks.
fn more_than_half_of_the_longest() -> Vec<u8> {
    const BLOCK: u32 = 128 << 10;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 16 << 3];
    let mut block = |kind: u32, len: u32, contents: &[u8]| {
        frame.extend_from_slice(&(kind | len << 3).to_le_bytes()[..3]);
        frame.extend_from_slice(contents);
    };
    let (begin, end) = (br#"{"Unknown":""#, br#""}"#);
    block(0, begin.len() as u32, begin);
    for _ in 0..320 {
        block(1 << 1, BLOCK, b"a");
    }
    block(1, end.len() as u32, end);
    frame
}
