use std::{io::ErrorKind, time::Duration};

use tunnel::Peer;

use crate::tunnel_pair::{A, B, MTU, Pair, at, config, in_time, key, pattern, peer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_pass_both_ways_over_both_families() {
    let pair = Pair::start().await;
    let far = pair.b.bind_udp(at("::", 7)).unwrap();
    for family in 0..2 {
        let near = pair.a.bind_udp(at(A[family], 0)).unwrap();
        let whole = usize::from(MTU) - [28, 48][family];
        let longest = usize::from(u16::MAX) - [28, 8][family];
        // The longest ones are sent in fragments.
        for len in [0, 1, whole, whole + 1, 3_000, longest] {
            let bytes = pattern(len, 5);
            near.send_to(&bytes, at(B[family], 7)).await.unwrap();
            let mut to = vec![0; 1 << 16];
            let (got, from) = in_time(far.recv_from(&mut to)).await.unwrap();
            assert_eq!((&to[..got], from), (&bytes[..], near.local_addr().unwrap()));
            let answering = pair.b.bind_udp(at(B[family], 7)).unwrap();
            answering.send_to(&bytes, from).await.unwrap();
            near.connect(at(B[family], 7)).unwrap();
            let got = in_time(near.recv(&mut to)).await.unwrap();
            assert_eq!(&to[..got], &bytes[..]);
        }
        let long = near.send(&pattern(longest + 1, 5)).await.unwrap_err();
        assert_eq!(long.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echo_requests_are_answered_over_an_ipv6_endpoint() {
    let b = tunnel::Tunnel::start(&config(1, B).peer(peer(0, A))).await.unwrap();
    let to_b: Peer = peer(1, B).endpoint("::1", b.listen_port()).persistent_keepalive(1);
    let a = tunnel::Tunnel::start(&config(0, A).peer(to_b)).await.unwrap();
    for to in B {
        let took = in_time(a.ping(to.parse().unwrap())).await.unwrap();
        assert!(took < Duration::from_secs(5));
    }
    let known = &b.peers()[0];
    assert_eq!(known.public_key, key(0).public_key());
    assert_eq!(known.endpoint, Some(at("::1", a.listen_port())));
    assert!(a.peers()[0].last_handshake.is_some());
}
