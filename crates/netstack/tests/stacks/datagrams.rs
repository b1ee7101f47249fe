use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use crate::wire::{A, B, MTU, Wire, arrived, data, soon};

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_of_all_lengths_arrive_unmerged_with_their_sender() {
    let wire = Wire::new();
    for address in 0..2 {
        let near = wire.a.bind_udp(at(A[address], 0)).unwrap();
        let far = wire.b.bind_udp(at(["0.0.0.0", "::"][address], 53)).unwrap();
        let (whole, longest) =
            (usize::from(MTU) - 8 - [20, 40][address], [65_507, 65_527][address]);
        for len in [0, 1, 1000, whole, whole + 1, 3000, 4000, 9000, longest] {
            let bytes = data(len);
            near.send_to(&bytes, at(B[address], 53)).await.unwrap();
            let mut to = vec![0; 70_000];
            let (got, from) = soon(far.recv_from(&mut to)).await.unwrap();
            assert_eq!((&to[..got], from), (&bytes[..], near.local_addr().unwrap()));
            far.send_to(b"answer", from).await.unwrap();
            let (got, from) = soon(near.recv_from(&mut to)).await.unwrap();
            assert_eq!((&to[..got], from), (&b"answer"[..], at(B[address], 53)));
        }
        let long = near.send_to(&data(longest + 1), at(B[address], 53)).await;
        assert_eq!(long.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_udp_socket_receives_only_from_its_peer() {
    let wire = Wire::new();
    let near = wire.a.bind_udp(at(A[0], 0)).unwrap();
    let unconnected = near.send(b"?").await.unwrap_err();
    assert_eq!(unconnected.kind(), ErrorKind::NotConnected);
    assert_eq!(near.recv(&mut [0]).await.unwrap_err().kind(), ErrorKind::NotConnected);
    near.connect(at(B[0], 53)).unwrap();
    let to = near.local_addr().unwrap();
    let [stranger, friend] = [54, 53].map(|port| wire.b.bind_udp(at(B[0], port)).unwrap());
    stranger.send_to(b"stranger", to).await.unwrap();
    friend.send_to(b"friend", to).await.unwrap();
    let mut bytes = [0; 20];
    let len = soon(near.recv(&mut bytes)).await.unwrap();
    assert_eq!(&bytes[..len], b"friend");
    assert_eq!(wire.a.counters().datagrams, 1);
    near.send(b"thanks").await.unwrap();
    let (len, from) = soon(friend.recv_from(&mut bytes)).await.unwrap();
    assert_eq!((&bytes[..len], from), (&b"thanks"[..], to));
}

/// Senders wait. Unread datagrams are dropped by the receiver and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_datagrams_is_bounded_and_the_sender_waits() {
    let wire = Wire::new();
    let near = wire.a.bind_udp(at(A[0], 0)).unwrap();
    let _far = wire.b.bind_udp(at(B[0], 53)).unwrap();
    let bytes = data(1000);
    for _ in 0..5000 {
        soon(near.send_to(&bytes, at(B[0], 53))).await.unwrap();
    }
    let sent = || wire.from_a.packets.load(std::sync::atomic::Ordering::Relaxed);
    soon(async {
        while sent() < 5000 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(sent(), 5000, "none was lost on the way out");
    arrived(&wire.a, B[0]).await;
    let dropped = wire.b.counters().datagrams;
    assert!((4500..5000).contains(&dropped), "{dropped} of 5000 dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echoes_are_answered_and_closed_ports_are_reported() {
    let wire = Wire::new();
    for address in B {
        let took = soon(wire.a.ping(address.parse().unwrap())).await.unwrap();
        assert!(took < Duration::from_secs(5));
    }
    let mut unreachable = 0;
    let (report, reports) = std::sync::mpsc::channel();
    wire.filter(move |packet| {
        let (protocol, kind) = (packet[9], packet[20]);
        unreachable += i32::from(packet[0] == 0x45 && protocol == 1 && kind == 3);
        report.send(unreachable).unwrap();
        true
    });
    let near = wire.a.bind_udp(at(A[0], 0)).unwrap();
    near.send_to(b"?", at(B[0], 54)).await.unwrap();
    arrived(&wire.a, B[0]).await;
    arrived(&wire.b, A[0]).await;
    assert_eq!(reports.try_iter().last(), Some(1));
    assert_eq!(wire.b.counters().datagrams, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_packets_and_stray_fragments_are_dropped_and_counted() {
    let wire = Wire::new();
    let near = wire.a.bind_udp(at(A[0], 0)).unwrap();
    let far = wire.b.bind_udp(at(B[0], 53)).unwrap();
    let mut number = 0;
    wire.filter(move |packet| {
        number += 1;
        match number {
            1 => packet[6] = 0x20,
            2 => packet[19] = 9,
            _ => {}
        }
        // Corrects the header's checksum.
        packet[10..12].fill(0);
        let sum =
            packet[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = sum.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        true
    });
    for _ in 0..3 {
        near.send_to(b"?", at(B[0], 53)).await.unwrap();
    }
    // The third datagram follows the others.
    soon(far.recv_from(&mut [0])).await.unwrap();
    let counters = wire.b.counters();
    assert_eq!((counters.malformed, counters.not_ours, counters.datagrams), (1, 1, 0));
}
