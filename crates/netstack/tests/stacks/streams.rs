use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::wire::{A, B, Wire, arrived, config, data, soon};

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Transfers `len` bytes in both directions at once, over one connection.
async fn exchange(wire: &Wire, to: SocketAddr, len: usize) {
    let listener = wire.b.listen(to).unwrap();
    let bytes = Arc::new(data(len));
    let sent = bytes.clone();
    let far = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = vec![0; sent.len()];
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let (a, b) = tokio::join!(read.read_exact(&mut received), write.write_all(&sent));
        assert!(a.is_ok() && b.is_ok() && received == *sent);
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    });
    let mut stream = wire.a.connect(to).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), to);
    let mut received = vec![0; bytes.len()];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let (a, b) = tokio::join!(read.read_exact(&mut received), write.write_all(&bytes));
    assert!(a.is_ok() && b.is_ok() && received == *bytes);
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0, "the peer has sent FIN");
    far.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_exchanged_over_both_families_in_super_packets() {
    let wire = Wire::new();
    for to in [at(B[0], 80), at(B[1], 80)] {
        soon(exchange(&wire, to, 20_000_000)).await;
    }
    let packets = wire.from_a.packets.load(Ordering::Relaxed);
    let segments = wire.from_a.segments.load(Ordering::Relaxed);
    assert!(segments > 29_000 && packets < segments / 2, "{segments} segments, {packets} packets");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_work_without_offloads() {
    let wire = Wire::new();
    wire.a.set_offloads(false, false);
    wire.b.set_offloads(false, false);
    soon(exchange(&wire, at(B[0], 80), 5_000_000)).await;
    let packets = wire.from_a.packets.load(Ordering::Relaxed);
    assert_eq!(packets, wire.from_a.segments.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offloads_can_change_in_the_middle_of_a_stream() {
    let wire = Wire::new();
    let seen = || {
        let seen = &wire.from_a;
        (seen.packets.load(Ordering::Relaxed), seen.segments.load(Ordering::Relaxed))
    };
    let switching = async {
        let mut number = 0;
        loop {
            number += 1;
            wire.a.set_offloads(number % 2 == 0, number % 3 == 0);
            wire.b.set_offloads(number % 3 == 0, number % 2 == 0);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = soon(exchange(&wire, at(B[0], 80), 20_000_000)) => {}
        () = switching => {}
    }
    for (gso, super_packets) in [(false, false), (true, true)] {
        wire.a.set_offloads(gso, gso);
        assert_eq!(wire.a.offloads(), (gso, gso));
        let before = seen();
        soon(exchange(&wire, at(B[0], 81 + u16::from(gso)), 5_000_000)).await;
        let (packets, segments) = (seen().0 - before.0, seen().1 - before.1);
        assert_eq!(packets < segments, super_packets, "{packets} packets, {segments} segments");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_in_the_network_loses_no_byte() {
    let wire = Wire::new();
    let mut number = 0u32;
    wire.filter(move |_| {
        number += 1;
        number.wrapping_mul(0x9e37_79b1) >> 22 != 0
    });
    soon(exchange(&wire, at(B[1], 80), 3_000_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_at_once_all_arrive() {
    let wire = Arc::new(Wire::new());
    let streams = (0..100).map(|number| {
        let wire = wire.clone();
        tokio::spawn(async move { exchange(&wire, at(B[0], 1000 + number), 300_000).await })
    });
    for stream in streams.collect::<Vec<_>>() {
        soon(stream).await.unwrap();
    }
    assert_eq!((wire.a.memory_used(), wire.b.memory_used()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_listener_is_refused() {
    let wire = Wire::new();
    for to in [at(B[0], 81), at(B[1], 81)] {
        let refused = soon(wire.a.connect(to)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(wire.b.counters().stray, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unspecified_listener_accepts_both_families_and_reports_the_clients() {
    let wire = Wire::new();
    let listener = wire.b.listen("[::]:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    for address in 0..2 {
        let dial = wire.a.connect(at(B[address], port));
        let (near, far) = soon(async { tokio::join!(dial, listener.accept()) }).await;
        let (near, (far, from)) = (near.unwrap(), far.unwrap());
        assert_eq!(from, near.local_addr().unwrap());
        assert_eq!(from.ip(), A[address].parse::<std::net::IpAddr>().unwrap());
        assert_eq!(far.local_addr().unwrap(), at(B[address], port));
    }
    assert_eq!(wire.b.listen(at("::", port)).unwrap_err().kind(), ErrorKind::AddrInUse);
    let foreign = wire.b.listen(at(A[0], 5)).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_stream_ends_it_and_dropping_it_unread_resets_it() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    for unread in [false, true] {
        let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
        let (mut far, _) = soon(listener.accept()).await.unwrap();
        if unread {
            far.write_all(b"unread").await.unwrap();
            arrived(&wire.b, A[0]).await;
            drop(near);
            let reset = soon(far.read(&mut [0; 9])).await.unwrap_err();
            assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        } else {
            near.write_all(b"last words").await.unwrap();
            drop(near);
            let mut received = Vec::new();
            soon(far.read_to_end(&mut received)).await.unwrap();
            assert_eq!(received, b"last words");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_connection_attempt_frees_everything() {
    let wire = Wire::new();
    wire.filter(|_| false);
    let patience = Duration::from_millis(50);
    let given_up = tokio::time::timeout(patience, wire.a.connect(at(B[0], 80))).await;
    assert!(given_up.is_err());
    assert_eq!(wire.a.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pausing_reader_stops_the_writer_and_limits_memory() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    let bytes = data(1_000_000);
    let mut written = 0;
    let patience = Duration::from_millis(300);
    while tokio::time::timeout(patience, near.write_all(&bytes)).await.is_ok() {
        written += bytes.len();
        assert!(written < 30_000_000, "the writer never waits");
    }
    assert!(wire.a.memory_used() + wire.b.memory_used() < 2_000_000);
    let mut received = vec![0; 200_000];
    soon(far.read_exact(&mut received)).await.unwrap();
    assert_eq!(received, bytes[..200_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_engine_all_operations_fail() {
    let mut wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let reader = tokio::spawn(async move { near.read(&mut [0; 9]).await });
    let (far, _) = soon(listener.accept()).await.unwrap();
    let acceptor = tokio::spawn(async move { listener.accept().await.map(drop) });
    wire.cut();
    let (read, accepted) = (soon(reader).await.unwrap(), soon(acceptor).await.unwrap());
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(accepted.unwrap_err().kind(), ErrorKind::NotConnected);
    drop(far);
    let gone = soon(wire.a.connect(at(B[0], 80))).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotConnected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_stack_resets_its_peers_and_fails_waiting_operations() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    let (mut read, mut write) = near.into_split();
    let reader = tokio::spawn(async move { read.read(&mut [0; 9]).await });
    let hearer = tokio::spawn(async move { far.read(&mut [0; 9]).await });
    let datagrams = wire.a.bind_udp(at(A[0], 0)).unwrap();
    let waiter = tokio::spawn(async move { datagrams.recv_from(&mut [0; 9]).await.map(drop) });
    wire.a.close();
    let kinds = [
        soon(reader).await.unwrap().unwrap_err().kind(),
        soon(hearer).await.unwrap().unwrap_err().kind(),
        soon(waiter).await.unwrap().unwrap_err().kind(),
        soon(write.write_all(b"?")).await.unwrap_err().kind(),
        soon(wire.a.connect(at(B[0], 80))).await.unwrap_err().kind(),
        wire.a.listen(at(A[0], 80)).unwrap_err().kind(),
    ];
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    let reset = ConnectionReset;
    assert_eq!(kinds, [reset, reset, NotConnected, BrokenPipe, NotConnected, NotConnected]);
    drop(write);
    assert_eq!(wire.a.connections(), 0);
}

/// The network fails and then recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_is_drained_when_the_peers_have_all_data() {
    let wire = Wire::new();
    soon(wire.a.drained()).await;
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    wire.filter(|_| false);
    near.write_all(b"last words").await.unwrap();
    drop(near);
    let early = tokio::time::timeout(Duration::from_millis(100), wire.a.drained()).await;
    assert!(early.is_err(), "the peer has not received them");
    wire.filter(|_| true);
    soon(wire.a.drained()).await;
    wire.a.close();
    let mut received = [0; 10];
    soon(far.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"last words");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_close_separately_and_can_be_reunited() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let other = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    let (read, write) = near.into_split();
    let (other_read, _other_write) = other.into_split();
    let error = other_read.reunite(write).unwrap_err();
    let near = error.1.reunite(read).unwrap();
    let (mut read, mut write) = near.into_split();
    let parts = [&b"as "[..], b"", b"one"].map(std::io::IoSlice::new);
    assert_eq!(write.write_vectored(&parts).await.unwrap(), 6);
    drop(write);
    let mut received = String::new();
    soon(far.read_to_string(&mut received)).await.unwrap();
    assert_eq!(received, "as one");
    far.write_all(b"and back").await.unwrap();
    drop(far);
    received.clear();
    soon(read.read_to_string(&mut received)).await.unwrap();
    assert_eq!(received, "and back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_zero_linger_works_and_ends_with_a_reset() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    near.set_zero_linger().unwrap();
    near.write_all(b"still here").await.unwrap();
    let mut received = [0; 10];
    soon(far.read_exact(&mut received)).await.unwrap();
    drop(near);
    let reset = soon(far.read(&mut received)).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_work_with_little_memory() {
    let wire = Arc::new(Wire::with(config(A, 1 << 20), config(B, 1 << 20)));
    let streams = (0..20).map(|number| {
        let wire = wire.clone();
        tokio::spawn(async move { exchange(&wire, at(B[1], 1000 + number), 500_000).await })
    });
    for stream in streams.collect::<Vec<_>>() {
        soon(stream).await.unwrap();
    }
}

/// A router on the path has a smaller MTU than both ends, and reports it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_path_mtu_than_at_both_ends_is_adopted() {
    const NARROW: u16 = 1300;
    let wire = Wire::new();
    for (family, to) in [at(B[0], 80), at(B[1], 81)].into_iter().enumerate() {
        let (stack, too_long) = (wire.inject_a(), Arc::new(std::sync::atomic::AtomicU64::new(0)));
        let count = too_long.clone();
        wire.filter(move |packet| {
            let long = packet.len() > usize::from(NARROW);
            let from_a = packet.get([15, 23][family]) == Some(&1);
            if long && from_a {
                count.fetch_add(1, Ordering::Relaxed);
                stack.send(too_big(packet, NARROW)).unwrap();
            }
            !(long && from_a)
        });
        soon(exchange(&wire, to, 2_000_000)).await;
        let too_long = too_long.load(Ordering::Relaxed);
        assert!((1..200).contains(&too_long), "{too_long} packets were too long");
    }
}

/// A router's error about a packet that is too long.
fn too_big(packet: &[u8], mtu: u16) -> Vec<u8> {
    let v4 = packet[0] >> 4 == 4;
    let mtu = mtu.to_be_bytes();
    let kind: [u8; 2] = if v4 { [3, 4] } else { [2, 0] };
    let mut message = [&kind[..], &[0; 4], &mtu, &packet[..100]].concat();
    let from = if v4 { &packet[12..20] } else { &packet[8..40] };
    // The router sends with the receiver's address.
    let (us, them) = from.split_at(from.len() / 2);
    let mut bytes = if v4 {
        vec![0x45, 0, 0, 128, 0, 0, 0, 0, 64, 1, 0, 0]
    } else {
        vec![0x60, 0, 0, 0, 0, 108, 58, 64]
    };
    bytes.extend(them);
    bytes.extend(us);
    let mut sum = packet::checksum::sum(&message);
    if v4 {
        let header = !packet::checksum::sum(&bytes);
        bytes[10..12].copy_from_slice(&header.to_be_bytes());
    } else {
        let pseudo = [them, us, &[0, 0, 0, 108, 0, 0, 0, 58]].concat();
        sum = packet::checksum::add(sum, packet::checksum::sum(&pseudo));
    }
    message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// As with the kernel's TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_before_a_reset_is_read_and_a_reset_after_fin_is_not_an_error() {
    let wire = Wire::new();
    let listener = wire.b.listen(at(B[0], 80)).unwrap();
    for ends_first in [false, true] {
        let mut near = wire.a.connect(at(B[0], 80)).await.unwrap();
        let (mut far, _) = soon(listener.accept()).await.unwrap();
        near.write_all(b"tail").await.unwrap();
        if ends_first {
            near.shutdown().await.unwrap();
        }
        arrived(&wire.a, B[0]).await;
        near.set_zero_linger().unwrap();
        drop(near);
        arrived(&wire.a, B[0]).await;
        let mut sent = Vec::new();
        let read = soon(far.read_to_end(&mut sent)).await.map_err(|error| error.kind());
        assert_eq!(sent, b"tail");
        let written = soon(far.write_all(b"?")).await.map_err(|error| error.kind());
        if ends_first {
            assert_eq!((read, written), (Ok(4), Err(ErrorKind::BrokenPipe)));
        } else {
            assert_eq!(
                (read, written),
                (Err(ErrorKind::ConnectionReset), Err(ErrorKind::BrokenPipe))
            );
        }
    }
    assert_eq!(wire.b.memory_used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_stack_twice_reports_the_reset_once() {
    let wire = Wire::new();
    let _listener = wire.b.listen(at(B[0], 80)).unwrap();
    let mut near = soon(wire.a.connect(at(B[0], 80))).await.unwrap();
    wire.a.close();
    let read = soon(near.read(&mut [0])).await.unwrap_err();
    wire.a.close();
    let written = soon(near.write(b"?")).await.unwrap_err();
    assert_eq!([read.kind(), written.kind()], [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe]);
}
