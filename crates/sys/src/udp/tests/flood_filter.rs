//! A flood, at sockets of the kernel.

use packet::{Flood, RecvMeta};

use super::*;

const DISCO: &[u8] = b"TS\xf0\x9f\x92\xac and the rest of a ping";

fn flood(expected: &[&str], share: u32) -> Flood {
    Flood { expected: expected.iter().map(|one| one.parse().unwrap()).collect(), share }
}

/// Datagrams of 1,364 bytes, of which a socket's buffer holds some 3,600.
const MORE_THAN_FIT: usize = 6_000;

/// Whether a socket of this network namespace may have so many bytes for a filter from now on.
fn limit_memory(bytes: &str) -> bool {
    let limited = std::fs::write("/proc/sys/net/core/optmem_max", bytes).is_ok();
    if !limited {
        skips::skip("a limit of a network namespace's own for sockets' memory");
    }
    limited
}

fn wireguard(kind: u8) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &[7; 60]].concat()
}

/// Sends to the socket from this address; the last is WireGuard's, behind which nothing is on its
/// way. What was received but that.
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
fn of_a_flood_wireguard_and_what_is_expected_is_received_and_chance_takes_a_share_of_the_rest() {
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        let kinds: Vec<Vec<u8>> = (1..=4).map(wireguard).collect();
        let others = [DISCO, &[5, 0, 0, 0, 1], &[1, 0, 0, 1, 1], &[0; 20]];
        let all: Vec<&[u8]> = kinds.iter().map(|kind| &kind[..]).chain(others).collect();
        assert!(receiver.shed(Some(&flood(&["127.0.0.2", "192.0.2.1", "2001:db8::"], 0))));
        for from in ["127.0.0.1", "[::1]"] {
            let came = received(&mut receiver, port, from, &all);
            assert_eq!(came.len(), kinds.len(), "of {from}: {came:?}");
        }
        assert_eq!(received(&mut receiver, port, "127.0.0.2", &all).len(), all.len());
        // Another filter takes its place: of both families, an address behind others.
        assert!(receiver.shed(Some(&flood(&["2001:db8::", "10.0.0.1", "::1", "127.0.0.1"], 0))));
        for from in ["127.0.0.1", "[::1]"] {
            assert_eq!(received(&mut receiver, port, from, &all).len(), all.len(), "of {from}");
        }
        assert!(receiver.shed(Some(&flood(&[], u32::MAX / 4))));
        let many = received(&mut receiver, port, "127.0.0.1", &[DISCO; 1000]).len();
        assert!((150..350).contains(&many), "{many}");
        assert!(receiver.shed(None));
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 9);
    });
}

#[test]
fn what_is_left_out_of_a_flood_is_not_taken_for_what_finds_no_room() {
    in_namespace(|_| {
        let (socket, mut receiver, port) = bound();
        let source = plain_socket("127.0.0.1:0");
        let mut shed = 0;
        let mut take = |receiver: &mut UdpReceiver| {
            let mut batch = RecvBatch::new(16);
            while batch.is_empty() {
                receiver.recv(&mut batch, false, true).unwrap();
            }
            shed += batch.shed();
            assert_eq!(batch.lost(), 0);
        };
        let say = |what: &[u8], times: u32| {
            (0..times).for_each(|_| assert!(source.send_to(what, ("127.0.0.1", port)).is_ok()));
        };
        assert!(receiver.shed(Some(&flood(&[], 0))));
        say(DISCO, 20);
        say(&wireguard(4), 1);
        take(&mut receiver);
        say(DISCO, 10);
        assert!(receiver.shed(None));
        say(DISCO, 1);
        take(&mut receiver);
        assert_eq!((shed, socket.overflow()), (30, 0));
    });
}

#[test]
fn beside_a_flood_a_queue_that_stands_full_is_seen() {
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
        assert_eq!(lost(), 0, "what is dropped is the flood's");
        fill(&large, MORE_THAN_FIT);
        assert_eq!((0..160).map(|_| lost()).sum::<u32>(), 0, "as it was before");
        fill(&large, MORE_THAN_FIT);
        assert!((0..200).any(|_| lost() > 0));
    });
}

#[test]
fn as_many_addresses_as_a_filter_has_fit_where_an_older_kernel_gives_little_memory() {
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
            assert!(receiver.shed(Some(&flood(&many, 0))), "of {from}");
            assert_eq!(received(&mut receiver, port, "::1", &[DISCO; 9]).len(), 9);
        }
    });
}

#[test]
fn a_filter_that_is_refused_leaves_none_and_none_can_be_taken_off() {
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
fn a_flood_outlasts_another_port_and_a_wait_ends_in_it() {
    in_namespace(|_| {
        let (socket, mut receiver, _) = bound();
        assert!(receiver.shed(Some(&flood(&[], 0))));
        let port = socket.bind(0, 0).unwrap();
        let mut batch = RecvBatch::new(16);
        // The first wait ends by the wake that `bind` left behind.
        for _ in 0..2 {
            receiver.recv(&mut batch, false, true).unwrap();
            assert!(batch.is_empty());
        }
        assert_eq!(received(&mut receiver, port, "127.0.0.1", &[DISCO; 9]).len(), 0);
    });
}
