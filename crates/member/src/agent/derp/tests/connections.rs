use std::sync::Arc;

use bytes::BytesMut;
use tailnet::derp::kind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use super::*;
use crate::agent::derp::{queue::Chunk, serve, state::Shared};

#[tokio::test]
async fn two_nodes_exchange_datagrams() {
    let relay = Relay::new().await;
    let (mut a, mut b) = (Node::new(1, &relay), Node::new(2, &relay));
    for member in [&a, &b] {
        member.command(map([(7, vec![node(relay.at)])])).await;
        member.command(Command::Home(Some(7))).await;
    }
    let (at_a, at_b, region_a, region_b) =
        tokio::join!(relay.client(), relay.client(), a.connected(), b.connected());
    assert_eq!((region_a, region_b), (7, 7));
    tokio::spawn(relay::relay_between(at_a, at_b));
    let bytes: Bytes = (0..5500u16).map(|number| number as u8).collect();
    a.send(7, b.key(), bytes.clone(), 1000).await;
    let mut received = Vec::new();
    while received.len() < 6 {
        received.extend(b.received().await);
    }
    let expected: Vec<_> = bytes.chunks(1000).map(|one| (a.key(), one.to_vec())).collect();
    let received: Vec<_> = received.into_iter().map(|(from, one)| (from, one.to_vec())).collect();
    assert_eq!(received, expected);
    b.send(7, a.key(), &b"back"[..], 4).await;
    assert_eq!(a.received().await, [(b.key(), Bytes::from_static(b"back"))]);
}

#[tokio::test]
async fn frames_of_one_read_are_one_event() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    let mut many = bytes::BytesMut::new();
    for number in 0..10 {
        tailnet::derp::write_frame(
            &mut many,
            kind::RECV_PACKET,
            &[&[5; 32][..], &[number]].concat(),
        );
    }
    client.send(&many).await;
    assert_eq!(member.received().await.len(), 10);
}

#[tokio::test]
async fn home_is_announced_to_the_relay_after_each_connect() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    for _ in 0..3 {
        let (mut client, _) = tokio::join!(relay.client(), member.connected());
        assert_eq!(client.next().await, Some((kind::NOTE_PREFERRED, Bytes::from_static(&[1]))));
        drop(client);
        member.disconnected().await;
    }
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    client.next().await;
    member.command(Command::Home(None)).await;
    assert_eq!(client.next().await, Some((kind::NOTE_PREFERRED, Bytes::from_static(&[0]))));
}

#[tokio::test]
async fn region_is_connected_when_a_datagram_is_queued() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)]), (2, vec![])])).await;
    let to = NodePublic([3; 32]);
    member.send(5, to, &b"no such region"[..], 14).await;
    member.send(1, to, &b"first"[..], 5).await;
    let (mut client, region) = tokio::join!(relay.client(), member.connected());
    assert_eq!(region, 1);
    assert_eq!(client.next_packet().await, (to, Bytes::from_static(b"first")));
}

#[tokio::test]
async fn relay_messages_become_events() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    client.next().await;
    client.frame(kind::PING, b"12345678").await;
    assert_eq!(client.next().await, Some((kind::PONG, Bytes::from_static(b"12345678"))));
    client.frame(kind::HEALTH, b"twice").await;
    assert!(matches!(member.event().await, Event::Health { text, .. } if text == "twice"));
    client.frame(kind::PEER_GONE, &[&[4; 32][..], &[1]].concat()).await;
    let event = member.event().await;
    let Event::PeerGone { region: 1, peer, reason: 1 } = event else { panic!("{event:?}") };
    assert_eq!(peer, NodePublic([4; 32]));
}

#[tokio::test]
async fn second_relay_of_a_region_is_used_if_the_first_is_dead() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    let dead = DerpNode { name: "ideal".into(), ..node(relay::closed_port().await) };
    let stun = DerpNode { stun_only: true, ..node(relay.at) };
    member.command(map([(1, vec![dead, stun, node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (client, _) = tokio::join!(relay.client(), member.connected());
    assert!(client.request.contains("\r\nIdeal-Node: ideal\r\n"), "{}", client.request);
    let host = format!("\r\nHost: relay.example:{}\r\n", relay.at.port());
    assert!(client.request.contains(&host), "{}", client.request);
}

#[tokio::test]
async fn empty_relay_map_closes_no_connection_and_a_changed_relay_reconnects() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    client.next().await;
    member.command(Command::Map(DerpMap::default(), Scope::default())).await;
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.send(1, NodePublic([3; 32]), &b"same"[..], 4).await;
    assert_eq!(client.next_packet().await.1, &b"same"[..]);
    member.command(map([(1, vec![DerpNode { name: "b".into(), ..node(relay.at) }])])).await;
    let (mut again, _) = tokio::join!(relay.client(), member.connected());
    assert_eq!(client.next().await, None);
    assert_eq!(again.next().await, Some((kind::NOTE_PREFERRED, Bytes::from_static(&[1]))));
}

#[tokio::test]
async fn new_key_logs_in_again() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (first, _) = tokio::join!(relay.client(), member.connected());
    let old = member.key();
    member.private = [2; 32];
    member.command(Command::KeyChanged).await;
    member.disconnected().await;
    let (second, _) = tokio::join!(relay.client(), member.connected());
    assert_eq!((first.key, second.key), (old, member.key()));
}

#[tokio::test]
async fn relay_is_reached_through_a_proxy() {
    let relay = Relay::new().await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let proxies = Proxies::new(|name| (name == "HTTPS_PROXY").then(|| url.clone()));
    let mut member = Node::by(1, &relay, proxies);
    // The proxy resolves the name, so the relay works without an address.
    let named = DerpNode { ipv4: String::new(), ..node(relay.at) };
    member.command(map([(1, vec![named])])).await;
    member.command(Command::Home(Some(1))).await;
    let at = relay.at;
    let carried = tokio::spawn(async move {
        let (mut inner, _) = proxy.accept().await.unwrap();
        let mut request = vec![0; 1000];
        let len = inner.read(&mut request).await.unwrap();
        request.truncate(len);
        inner.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut outer = TcpStream::connect(at).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut inner, &mut outer).await });
        String::from_utf8(request).unwrap()
    });
    let (_client, _) = tokio::join!(relay.client(), member.connected());
    let request = carried.await.unwrap();
    assert!(request.starts_with("CONNECT relay.example:"), "{request}");
}

#[tokio::test]
async fn region_is_measured_without_a_login() {
    let relay = Relay::new().await;
    let member = Node::new(1, &relay);
    let dead = node(relay::closed_port().await);
    member.command(map([(1, vec![node(relay.at)]), (2, vec![dead])])).await;
    let (reply, measured) = oneshot::channel();
    member.command(Command::Measure { region: 1, reply }).await;
    let mut client = relay.upgrade_request().await;
    assert!(client.request.starts_with("GET /derp/latency-check HTTP/1.1\r\n"));
    client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert!(measured.await.unwrap().is_some());
    let (reply, measured) = oneshot::channel();
    member.command(Command::Measure { region: 2, reply }).await;
    assert_eq!(measured.await.unwrap(), None);
}

#[tokio::test]
async fn network_change_tests_the_connection() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    client.next().await;
    member.command(Command::NetworkChanged).await;
    assert_eq!(client.next().await.unwrap().0, kind::PING);
    client.frame(kind::PONG, &[0; 8]).await;
    member.send(1, NodePublic([3; 32]), &b"on"[..], 2).await;
    assert_eq!(client.next_packet().await.1, &b"on"[..]);
    member.command(Command::NetworkChanged).await;
    client.next().await;
    tokio::time::pause();
    assert!(member.disconnected().await.contains("no answer"));
}

/// Watches a connection without traffic.
async fn watched(set: impl Fn(&Shared)) -> (anyhow::Result<serve::End>, u64) {
    let shared = Arc::new(Shared::new());
    set(&shared);
    let begun = Instant::now();
    let ended = serve::watch(&shared, None).await;
    (ended, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn idle_region_is_closed_after_60_s_and_silent_home_is_lost_after_120_s() {
    let (ended, after) = watched(|_| {}).await;
    assert_eq!((ended.unwrap(), after), (serve::End::Idle, 60));
    let (ended, after) = watched(|shared| shared.set_home(true)).await;
    assert!(ended.unwrap_err().to_string().contains("no data for"));
    assert_eq!(after, 120);
}

#[tokio::test(start_paused = true)]
async fn relay_that_ignores_datagrams_is_pinged_and_left_within_two_seconds() {
    let sent = |shared: &Shared| {
        shared.push(Chunk {
            at: Instant::now(),
            to: NodePublic([3; 32]),
            bytes: Bytes::from_static(b"on"),
            segment: 2,
            bundled: false,
        });
        assert!(shared.take(&mut BytesMut::new(), Instant::now()), "the watch must start");
        assert!(!shared.take(&mut BytesMut::new(), Instant::now()), "once");
    };
    let (ended, after) = watched(sent).await;
    assert!(ended.unwrap_err().to_string().contains("no answer"));
    assert_eq!(after, 2);
    let (ended, after) = watched(|shared| {
        sent(shared);
        shared.handle_frames(false, Instant::now());
    })
    .await;
    assert_eq!((ended.unwrap(), after), (serve::End::Idle, 60));
}
