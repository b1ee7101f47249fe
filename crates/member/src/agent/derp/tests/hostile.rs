use tailnet::derp::kind;

use super::*;

/// The error for a relay with this behaviour after the upgrade request.
async fn disconnect_reason(behave: impl AsyncFnOnce(&mut relay::Client)) -> String {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let behaves = async {
        let mut client = relay.upgrade_request().await;
        behave(&mut client).await;
        client
    };
    let reason = async {
        loop {
            match member.event().await {
                Event::Disconnected { why, .. } => return why,
                Event::Connected { .. } | Event::Received { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    };
    let (_client, why) = tokio::join!(behaves, reason);
    why
}

#[tokio::test]
async fn wrong_greetings_are_rejected() {
    let why =
        disconnect_reason(async |client| client.send(b"HTTP/1.1 403 Go away\r\n\r\n").await).await;
    assert!(why.contains("403 Go away"), "{why}");
    let why = disconnect_reason(async |client| client.send(&[b'x'; 20_000]).await).await;
    assert!(why.contains("too long"), "{why}");
    let why = disconnect_reason(async |client| {
        client.send(b"HTTP/1.1 101 Yes\r\n\r\n").await;
        client.frame(kind::SERVER_KEY, &[7; 40]).await;
    });
    assert!(why.await.contains("greeting"));
    let why = disconnect_reason(async |client| {
        client.send(b"HTTP/1.1 101 Yes\r\n\r\n").await;
        client.frame(kind::PING, b"12345678").await;
    });
    assert!(why.await.contains("first frame is not its key"));
}

#[tokio::test]
async fn slow_greeting_times_out() {
    let why = disconnect_reason(async |client| {
        client.send(b"HTTP/1.1 101 Yes\r\n\r\n\x01\0\0").await;
        tokio::time::pause();
    });
    let why = why.await;
    assert!(why.contains("no answer in time"), "{why}");
}

#[tokio::test]
async fn oversized_frame_ends_the_connection() {
    let why = disconnect_reason(async |client| {
        client.upgrade().await;
        client.log_in().await;
        client.send(&[kind::RECV_PACKET, 0xff, 0xff, 0xff, 0xff]).await;
    });
    let why = why.await;
    assert!(why.contains("a frame of 4294967295 bytes"), "{why}");
}

#[tokio::test]
async fn connection_closed_within_a_frame_is_lost() {
    let why = disconnect_reason(async |client| {
        client.upgrade().await;
        client.log_in().await;
        client.send(&[kind::RECV_PACKET, 0, 0, 1, 0, 7, 7]).await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await;
    });
    assert!(!why.await.is_empty());
}

#[tokio::test]
async fn refused_login_is_reported_as_lost_connection() {
    let why = disconnect_reason(async |client| {
        client.upgrade().await;
        client.next().await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await;
    });
    assert!(why.await.contains("ended"));
}

#[tokio::test]
async fn login_without_a_node_key_fails() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let mut client = relay.upgrade_request().await;
    client.upgrade().await;
    let Some(Event::Login { reply, region: 1, .. }) = member.events.recv().await else { panic!() };
    reply.send(Bytes::new()).unwrap();
    assert!(member.disconnected().await.contains("no node key"));
}

#[tokio::test]
async fn flood_of_frames_is_handled_completely() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (mut client, _) = tokio::join!(relay.client(), member.connected());
    let flood = tokio::spawn(async move {
        let mut frames = bytes::BytesMut::new();
        for number in 0..50_000u32 {
            let kind = [0x77, kind::PEER_GONE, kind::PING, kind::RECV_PACKET][number as usize % 4];
            tailnet::derp::write_frame(&mut frames, kind, &[number as u8; 40]);
            if frames.len() > 60_000 {
                client.send(&frames).await;
                frames.clear();
            }
        }
        client.send(&frames).await;
        client
    });
    let (mut gone, mut received) = (0, 0);
    while (gone, received) != (12_500, 12_500) {
        match member.event().await {
            Event::PeerGone { .. } => gone += 1,
            Event::Received { datagrams, .. } => received += datagrams.len(),
            event => panic!("{event:?} after {gone} and {received}"),
        }
    }
    drop(flood.await);
}

#[tokio::test]
async fn relay_that_does_not_read_costs_a_bounded_queue() {
    let relay = Relay::new().await;
    let mut member = Node::new(1, &relay);
    member.command(map([(1, vec![node(relay.at)])])).await;
    member.command(Command::Home(Some(1))).await;
    let (_client, _) = tokio::join!(relay.client(), member.connected());
    for _ in 0..2000 {
        member.send(1, NodePublic([3; 32]), vec![4; 60_000], 1200).await;
    }
    tokio::time::pause();
    assert!(member.disconnected().await.contains("no answer"));
}

#[tokio::test]
async fn relay_at_a_local_address_is_rejected_for_a_remote_coordinator() {
    let relay = Relay::new().await;
    let by = |host: &str, ipv4: &str, ipv6: &str| DerpNode {
        host_name: host.into(),
        ipv4: ipv4.into(),
        ipv6: ipv6.into(),
        ..node(relay.at)
    };
    let named = [
        by("relay.example", "127.0.0.1", "none"),
        by("relay.example", "none", "::ffff:127.0.0.1"),
        by("relay.example", "0.0.0.0", "none"),
        by("127.0.0.1", "", "none"),
        by("localhost", "", "none"),
    ];
    for about in named {
        let mut member = Node::new(1, &relay);
        member.command(map_of("https://control.example", [(1, vec![about.clone()])])).await;
        let (reply, latency) = tokio::sync::oneshot::channel();
        member.command(Command::Measure { region: 1, reply }).await;
        assert_eq!(latency.await.unwrap(), None, "{about:?}");
        member.command(Command::Home(Some(1))).await;
        let why = tokio::select! {
            why = member.disconnected() => why,
            _ = relay.upgrade_request() => panic!("it connects: {about:?}"),
        };
        assert!(why.contains("an address of this machine"), "{why}");
        // A map of a coordinator on this machine permits the relay.
        if about.ipv4 == "127.0.0.1" {
            member.command(map([(1, vec![about])])).await;
            relay.upgrade_request().await;
        }
    }
}
