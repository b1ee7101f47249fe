//! Floods at real sockets.

use packet::{Flood, RecvMeta};

use super::*;

const DISCO: &[u8] = b"TS\xf0\x9f\x92\xac and the rest of a ping";

fn flood(expected: &[&str], share: u32) -> Flood {
    Flood { expected: expected.iter().map(|one| one.parse().unwrap()).collect(), share }
}

/// A number of datagrams of 1,364 bytes. A socket's buffer fits about 3,600.
const TOO_MANY: usize = 6_000;

/// Limits the bytes for filters of sockets in this network namespace. Returns whether that worked.
fn limit_memory(bytes: &str) -> bool {
    let limited = std::fs::write("/proc/sys/net/core/optmem_max", bytes).is_ok();
    if !limited {
        skips::skip("a limit of socket memory per network namespace");
    }
    limited
}

fn wireguard(kind: u8) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &[7; 60]].concat()
}

/// Sends datagrams from this address to the socket, and a last one of WireGuard. Returns those
/// that were received before the last one.
fn received(
    receiver: &mut UdpReceiver,
    port: u16,
    from: &str,
    datagrams: &[&[u8]],
) -> Vec<(Vec<u8>, RecvMeta)> {
    let source = plain_socket(&format!("{from}:0"));
    let to = if from.contains(':') { format!("[::1]:{port}") } else { format!("127.0.0.1:{port}") };
    let last = [&wireguard(4)[..], b"last"].concat();
    datagrams.iter().chain([&&*last]).for_each(|one| assert!(source.send_to(one, &to).is_ok()));
    let mut all = Vec::new();
    while all.last().is_none_or(|(bytes, _): &(Vec<u8>, _)| *bytes != last) {
        all.extend(receive(receiver));
    }
    all.pop();
    all
}

#[test]
fn wireguard_expected_addresses_and_a_random_share_pass_the_filter() {
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        let kinds: Vec<Vec<u8>> = (1..=4).map(wireguard).collect();
        let others = [DISCO, &[5, 0, 0, 0, 1], &[1, 0, 0, 1, 1], &[0; 20]];
        let all: Vec<&[u8]> = kinds.iter().map(|kind| &kind[..]).chain(others).collect();
        assert!(receiver.shed(Some(&flood(&["127.0.0.2", "192.0.2.1", "2001:db8::"], 0))));
        for from in ["127.0.0.1", "[::1]"] {
            let passed = received(&mut receiver, port, from, &all);
            assert_eq!(passed.len(), kinds.len(), "from {from}: {passed:?}");
        }
        assert_eq!(received(&mut receiver, port, "127.0.0.2", &all).len(), all.len());
        // It is replaced by another filter, with addresses of both families in other positions.
        assert!(receiver.shed(Some(&flood(&["2001:db8::", "10.0.0.1", "::1", "127.0.0.1"], 0))));
        for from in ["127.0.0.1", "[::1]"] {
            assert_eq!(received(&mut receiver, port, from, &all).len(), all.len(), "from {from}");
        }
        assert!(receiver.shed(Some(&flood(&[], u32::MAX / 4))));
        let many = received(&mut receiver, port, "127.0.0.1", &[DISCO; 1000]).len();
        assert!((150..350).contains(&many), "{many}");
        assert!(receiver.shed(None));
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 9);
    });
}

#[test]
fn shed_datagrams_are_not_counted_as_overflow() {
    in_namespace(|_| {
        let (socket, mut receiver, port) = bound();
        let source = plain_socket("127.0.0.1:0");
        let mut shed = 0;
        let mut receive_batch = |receiver: &mut UdpReceiver| {
            let mut batch = RecvBatch::new(16);
            while batch.is_empty() {
                receiver.recv(&mut batch, false, true).unwrap();
            }
            shed += batch.shed();
            assert_eq!(batch.lost(), 0);
        };
        let send_many = |datagram: &[u8], times: u32| {
            (0..times).for_each(|_| assert!(source.send_to(datagram, ("127.0.0.1", port)).is_ok()));
        };
        assert!(receiver.shed(Some(&flood(&[], 0))));
        send_many(DISCO, 20);
        send_many(&wireguard(4), 1);
        receive_batch(&mut receiver);
        send_many(DISCO, 10);
        assert!(receiver.shed(None));
        send_many(DISCO, 1);
        receive_batch(&mut receiver);
        assert_eq!((shed, socket.overflow()), (30, 0));
    });
}

#[test]
fn full_queue_during_a_flood_is_detected() {
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        assert!(receiver.shed(Some(&flood(&[], 0))));
        let source = plain_socket("127.0.0.1:0");
        let mut lost = || {
            let mut batch = RecvBatch::new(16);
            receiver.recv(&mut batch, false, true).unwrap();
            batch.lost()
        };
        let fill = |with: &[u8], times| {
            (0..times).for_each(|_| assert!(source.send_to(with, ("127.0.0.1", port)).is_ok()));
        };
        let large = [&wireguard(4)[..], &[7; 1300]].concat();
        fill(DISCO, 100);
        fill(&large, 64);
        assert_eq!(lost(), 0, "only the flood is dropped");
        fill(&large, TOO_MANY);
        assert_eq!((0..160).map(|_| lost()).sum::<u32>(), 0, "drops before the queue was full");
        fill(&large, TOO_MANY);
        assert!((0..200).any(|_| lost() > 0));
    });
}

#[test]
fn largest_filter_fits_the_memory_limit_of_older_kernels() {
    in_namespace(|_| {
        if !limit_memory("20480") {
            return;
        }
        let (_socket, mut receiver, port) = bound();
        let many = |from: u16| -> Vec<String> {
            (0..300).map(|number| format!("2001:db8:f00d:beef::{:x}", from + number)).collect()
        };
        for from in [1, 1000] {
            let many = many(from);
            let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
            many[159] = "::1";
            assert!(receiver.shed(Some(&flood(&many, 0))), "from {from}");
            assert_eq!(received(&mut receiver, port, "::1", &[DISCO; 9]).len(), 9);
        }
    });
}

#[test]
fn refused_filter_removes_the_previous_one() {
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        assert!(receiver.shed(None));
        assert!(receiver.shed(Some(&flood(&[], 0))));
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 0);
        if !limit_memory("64") {
            return;
        }
        assert!(!receiver.shed(Some(&flood(&["192.0.2.1"], 0))));
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 9);
        assert!(receiver.shed(None));
    });
}

#[test]
fn filter_is_set_on_a_new_port_and_waits_are_limited() {
    in_namespace(|_| {
        let (socket, mut receiver, _) = bound();
        assert!(receiver.shed(Some(&flood(&[], 0))));
        let port = socket.bind(0, 0).unwrap();
        let mut batch = RecvBatch::new(16);
        // The first wait is ended by the wake of `bind`.
        for _ in 0..2 {
            receiver.recv(&mut batch, false, true).unwrap();
            assert!(batch.is_empty());
        }
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 0);
    });
}
