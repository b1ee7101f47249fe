//! Each refusal of the kernel affects only its path, run or message.

use nix::errno::Errno;

use super::faulty::{Faulty, Rule, send_all, sender};
use super::*;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const C: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));

/// An endpoint through an interface; 0 if the routing table chooses.
fn by(interface: u32, address: IpAddr) -> Endpoint {
    match interface {
        0 => to(address, 51_820),
        _ => from(to(address, 51_820), "198.51.100.1", interface),
    }
}

/// Runs of datagrams of equal length.
fn batch_of(runs: &[(Endpoint, usize, usize)]) -> SendBatch {
    let mut batch = SendBatch::default();
    for (run, &(endpoint, count, len)) in runs.iter().enumerate() {
        for number in 0..count {
            let datagram = batch.push(len, endpoint, Ecn::NotEct);
            datagram[..2].copy_from_slice(&[run as u8, number as u8]);
        }
    }
    batch
}

/// Sends runs. Returns the number of datagrams in each message to `address`.
fn sizes(
    sender: &mut UdpSender<Faulty>,
    runs: &[(Endpoint, usize, usize)],
    address: IpAddr,
) -> Vec<usize> {
    let (sent, failures) = send_all(sender, &mut batch_of(runs));
    assert_eq!(failures, []);
    let to_address = sent.iter().filter(|message| message.remote.ip() == address);
    to_address.map(|message| message.datagrams.len()).collect()
}

#[test]
fn only_the_path_that_refuses_gso_is_demoted() {
    for errno in [Errno::EIO, Errno::EINVAL, Errno::EMSGSIZE, Errno::EOPNOTSUPP] {
        for interface in [0, 2] {
            let (mut sender, offloads) = sender(&[Rule::GsoTo(A, errno)]);
            let runs =
                [by(interface, A), by(interface, B), by(interface, A)].map(|to| (to, 10, 100));
            for round in 0..3 {
                let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
                assert_eq!(failures, []);
                let sizes: Vec<_> = sent.iter().map(|message| message.datagrams.len()).collect();
                assert_eq!(sizes, [&[1; 10][..], &[10], &[1; 10]].concat(), "{errno} {round}");
                assert_eq!(offloads.udp_gso.demotions(), 1);
                assert_eq!(sender.messages.refused, [errno], "the gate is closed");
            }
        }
    }
}

#[test]
fn demoted_path_is_tried_after_doubling_pauses() {
    let (mut sender, offloads) = sender(&[]);
    let runs = [(by(0, A), 10, 100), (by(0, B), 10, 100)];
    let step = Duration::from_millis(250);
    for _ in 0..2 {
        sender.messages.rules = vec![Rule::GsoTo(A, Errno::EINVAL)];
        let (mut seconds, mut steps) = (Vec::new(), 0);
        let mut demotions = offloads.udp_gso.demotions();
        for _ in 0..1_000 {
            if seconds.len() == 9 {
                break;
            }
            assert_eq!(sizes(&mut sender, &runs, A), [1; 10]);
            if offloads.udp_gso.demotions() > demotions {
                seconds.push(steps / 4);
                (steps, demotions) = (0, offloads.udp_gso.demotions());
            }
            assert_eq!(sizes(&mut sender, &runs[1..], B), [10], "the other path");
            sender.messages.time.pass(step);
            steps += 1;
        }
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        sender.messages.rules.clear();
        sender.messages.time.pass(Duration::from_secs(59));
        assert_eq!(sizes(&mut sender, &runs, A), [1; 10]);
        sender.messages.time.pass(Duration::from_secs(1));
        assert_eq!(sizes(&mut sender, &runs, A), [10]);
    }
}

#[test]
fn device_is_demoted_after_refusals_for_two_addresses() {
    let (mut sender, offloads) = sender(&[Rule::GsoBy(2, Errno::EIO)]);
    let run = |interface, address| [(by(interface, address), 10, 100)];
    for address in [A, B, C] {
        assert_eq!(sizes(&mut sender, &run(2, address), address), [1; 10]);
    }
    assert_eq!((sender.messages.refused.len(), offloads.udp_gso.demotions()), (2, 2));
    assert_eq!(sizes(&mut sender, &run(3, A), A), [10], "another device");
    assert_eq!(sizes(&mut sender, &run(0, A), A), [10], "an unknown device");
    sender.messages.time.pass(Duration::from_secs(1));
    sender.messages.rules.clear();
    assert_eq!(sizes(&mut sender, &run(2, C), C), [10]);
}

#[test]
fn unknown_device_is_never_demoted() {
    let (mut sender, offloads) = sender(&[Rule::GsoBy(0, Errno::EIO)]);
    for address in [A, B, C] {
        assert_eq!(sizes(&mut sender, &[(by(0, address), 10, 100)], address), [1; 10]);
    }
    assert_eq!((sender.messages.refused.len(), offloads.udp_gso.demotions()), (3, 3));
}

#[test]
fn refused_length_affects_one_address_but_not_shorter_segments() {
    let (mut sender, offloads) = sender(&[Rule::Longer(A, 1_000, Errno::EMSGSIZE)]);
    let run = |len| [(by(2, A), 10, len)];
    assert_eq!(sizes(&mut sender, &run(1_400), A), [1; 10]);
    assert_eq!(sizes(&mut sender, &run(1_000), A), [10]);
    assert_eq!(sizes(&mut sender, &[(by(2, B), 10, 1_400)], B), [10]);
    assert_eq!((sender.messages.refused.len(), offloads.udp_gso.demotions()), (1, 1));
    assert_eq!(sizes(&mut sender, &run(1_001), A), [1; 10]);
    assert_eq!(sizes(&mut sender, &run(1_200), A), [1; 10]);
    assert_eq!((sender.messages.refused.len(), offloads.udp_gso.demotions()), (2, 2));
    // A sent GSO message with shorter segments does not reset the pauses.
    for (seconds, refused) in [(1, 3), (1, 3), (1, 4)] {
        sender.messages.time.pass(Duration::from_secs(seconds));
        assert_eq!(sizes(&mut sender, &run(1_000), A), [10]);
        assert_eq!(sizes(&mut sender, &run(1_400), A), [1; 10]);
        assert_eq!(sender.messages.refused.len(), refused);
    }
    assert_eq!(sizes(&mut sender, &run(1_001), A), [1; 10]);
    assert_eq!(sender.messages.refused.len(), 4, "the shortest refused length is stored");
}

#[test]
fn refusals_not_caused_by_a_device_do_not_demote_it() {
    for (errno, repeats) in [(Errno::EMSGSIZE, 1), (Errno::EINVAL, 1), (Errno::EIO, 3)] {
        // Repeated EIO, but to the same address.
        let rules = [Rule::GsoTo(A, errno), Rule::GsoTo(B, Errno::EINVAL)];
        let (mut sender, _) = sender(&rules);
        for _ in 0..repeats {
            for address in [A, B] {
                assert_eq!(sizes(&mut sender, &[(by(2, address), 10, 100)], address), [1; 10]);
            }
            sender.messages.time.pass(Duration::from_secs(10));
        }
        sender.messages.rules.push(Rule::GsoTo(B, errno));
        assert_eq!(sizes(&mut sender, &[(by(2, A), 10, 100)], A), [1; 10]);
        assert_eq!(sizes(&mut sender, &[(by(2, C), 10, 100)], C), [10], "{errno}");
    }
}

#[test]
fn datagrams_are_not_lost_with_more_paths_than_gates() {
    let (mut sender, _) = sender(&[Rule::Above(1, Errno::EINVAL)]);
    let addresses = (0..70).map(|number| IpAddr::from([10, 1, 0, number]));
    let runs: Vec<_> = addresses.map(|address| (by(0, address), 5, 50)).collect();
    send_all(&mut sender, &mut batch_of(&runs));
    sender.messages.refused.clear();
    send_all(&mut sender, &mut batch_of(&runs[6..]));
    assert_eq!(sender.messages.refused, [], "only the oldest gates were removed");
    send_all(&mut sender, &mut batch_of(&runs[5..]));
    assert_eq!(sender.messages.refused, [Errno::EINVAL]);
    for _ in 0..3 {
        let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
        assert_eq!((sent.len(), failures), (350, vec![]));
    }
}

#[test]
fn refused_destination_fails_only_its_run_in_few_calls() {
    for (errno, error, refusals, pinned) in [
        (Errno::EHOSTUNREACH, SendError::Unreachable, 1, 1),
        (Errno::ENETDOWN, SendError::Unreachable, 1, 1),
        (Errno::EACCES, SendError::Unreachable, 1, 1),
        // One more call without the sticky source.
        (Errno::ENETUNREACH, SendError::Unreachable, 1, 2),
        // A blackhole route, with the same errno as an invalid GSO message.
        (Errno::EINVAL, SendError::Other(Errno::EINVAL as i32), 2, 4),
    ] {
        for (interface, refusals) in [(0, refusals), (2, pinned)] {
            let (mut sender, offloads) = sender(&[Rule::To(A, errno)]);
            let runs = [(by(2, B), 70, 100), (by(interface, A), 200, 100), (by(2, B), 70, 100)];
            let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
            assert_eq!(failures, [Failure { transmit: 1, datagrams: 200, error }]);
            let sizes: Vec<_> = sent.iter().map(|message| message.datagrams.len()).collect();
            assert_eq!(sizes, [64, 6, 64, 6]);
            assert_eq!(sender.messages.refused.len(), refusals, "{errno}");
            assert_eq!(offloads.udp_gso.demotions(), 0, "{errno}");
        }
    }
}

#[test]
fn destination_refused_during_a_run_fails_the_rest_of_the_run() {
    let (mut sender, _) = sender(&[Rule::Call(1, Errno::EHOSTUNREACH)]);
    sender.messages.partial = 255;
    let runs = [(by(0, A), 200, 100), (by(0, B), 10, 100)];
    let (_, failures) = send_all(&mut sender, &mut batch_of(&runs));
    let error = SendError::Unreachable;
    assert_eq!(failures, [Failure { transmit: 0, datagrams: 200 - 64, error }]);
}

#[test]
fn run_refused_with_and_without_gso_does_not_demote_the_path() {
    let refused = |call| Rule::Call(call, Errno::EINVAL);
    let (mut sender, offloads) = sender(&[refused(0), refused(1)]);
    let runs = [(by(0, A), 10, 100), (by(0, A), 10, 101)];
    let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
    let error = SendError::Other(Errno::EINVAL as i32);
    assert_eq!(failures, [Failure { transmit: 0, datagrams: 10, error }]);
    assert_eq!((sent.len(), offloads.udp_gso.demotions()), (1, 0));
}

#[test]
fn only_a_sent_full_datagram_proves_that_gso_was_the_cause() {
    for (last, demotions) in [(100, 1), (99, 0)] {
        let rules = [Rule::Call(0, Errno::EIO), Rule::Call(1, Errno::EPERM)];
        let (mut sender, offloads) = sender(&rules);
        let mut batch = batch_of(&[(by(0, A), 1, 100)]);
        batch.push(last, by(0, A), Ecn::NotEct).fill(9);
        let (sent, failures) = send_all(&mut sender, &mut batch);
        let error = SendError::Unreachable;
        assert_eq!((sent.len(), failures), (1, vec![Failure { transmit: 0, datagrams: 1, error }]));
        assert_eq!(offloads.udp_gso.demotions(), demotions, "{last} bytes");
    }
}

#[test]
fn firewall_refusal_fails_only_that_message() {
    let (mut sender, offloads) = sender(&[Rule::Call(0, Errno::EPERM)]);
    let runs = [(by(0, A), 200, 100)];
    let (_, failures) = send_all(&mut sender, &mut batch_of(&runs));
    let error = SendError::Unreachable;
    assert_eq!(failures, [Failure { transmit: 0, datagrams: 64, error }]);
    assert_eq!((sender.messages.calls, offloads.udp_gso.demotions()), (2, 0));
}

#[test]
fn too_long_datagram_is_dropped_without_demotion() {
    let (mut sender, offloads) = sender(&[Rule::TooLong(1_000, Errno::EMSGSIZE)]);
    let mut batch = batch_of(&[(by(0, A), 3, 1_001)]);
    batch.push(1_000, by(0, A), Ecn::NotEct).fill(9);
    batch.push(1_000, by(0, B), Ecn::NotEct).fill(9);
    let (sent, failures) = send_all(&mut sender, &mut batch);
    let error = SendError::TooBig;
    assert_eq!((sent.len(), failures), (2, vec![Failure { transmit: 0, datagrams: 3, error }]));
    assert!(sender.messages.calls <= 6, "{}", sender.messages.calls);
    assert_eq!(offloads.udp_gso.demotions(), 0);
}

#[test]
fn messages_fail_after_the_time_limit_for_a_full_queue() {
    for errno in [Errno::EAGAIN, Errno::ENOBUFS, Errno::ENOMEM] {
        let runs = [(by(0, A), 200, 100), (by(0, B), 1, 50)];
        let ms = Duration::from_millis;
        let (mut sender, offloads) = sender(&[Rule::Until(ms(19), errno)]);
        let (_, failures) = send_all(&mut sender, &mut batch_of(&runs));
        assert_eq!((failures, sender.messages.time.waited()), (vec![], ms(19)));

        sender.messages.rules = vec![Rule::Until(ms(1_000), errno)];
        sender.messages.refused.clear();
        let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
        let failed =
            |transmit, datagrams| Failure { transmit, datagrams, error: SendError::NoBuffer };
        assert_eq!((sent.len(), failures), (0, vec![failed(0, 200), failed(1, 1)]));
        let time = &sender.messages.time;
        let (waited, other) = match errno {
            Errno::EAGAIN => (time.polled(), time.slept()),
            _ => (time.slept(), time.polled()),
        };
        assert_eq!((waited, other), (ms(19 + 20), ms(0)), "the limit applies to each batch");
        assert_eq!(sender.messages.refused.len(), 20 + 5);
        assert_eq!(offloads.udp_gso.demotions(), 0);
    }
}

#[test]
fn endless_icmp_errors_fail_a_message_but_do_not_block_the_sender() {
    let (mut sender, _) = sender(&[Rule::To(A, Errno::ECONNREFUSED)]);
    let runs = [(by(0, A), 70, 100), (by(0, B), 1, 100)];
    let (sent, failures) = send_all(&mut sender, &mut batch_of(&runs));
    let error = SendError::Other(Errno::ECONNREFUSED as i32);
    assert_eq!((sent.len(), failures), (1, vec![Failure { transmit: 0, datagrams: 70, error }]));
    assert_eq!(sender.messages.refused.len(), 2 * 17);
}

#[test]
fn icmp_errors_between_messages_do_not_lose_datagrams() {
    let refused = |call| Rule::Call(call, Errno::ECONNREFUSED);
    let (mut sender, _) =
        sender(&(0..60).filter(|call| call % 12 > 0).map(refused).collect::<Vec<_>>());
    sender.messages.partial = 255;
    assert_eq!(sizes(&mut sender, &[(by(0, A), 5 * 64, 100)], A), [64; 5]);
}

#[test]
fn stale_source_and_refused_gso_are_distinguished() {
    let ours = "198.51.100.1".parse().unwrap();
    for errno in [Errno::EINVAL, Errno::ENETUNREACH, Errno::EADDRNOTAVAIL, Errno::ENODEV] {
        let stale = Rule::From(ours, errno);
        for (rules, demotions) in
            [(vec![stale], 0), (vec![stale, Rule::GsoTo(A, Errno::EINVAL)], 1)]
        {
            let (mut sender, offloads) = sender(&rules);
            let (sent, failures) = send_all(&mut sender, &mut batch_of(&[(by(2, A), 10, 100)]));
            let error = SendError::StaleSource;
            assert_eq!(failures, [Failure { transmit: 0, datagrams: 10, error }]);
            assert_eq!(sent.len(), if demotions == 0 { 1 } else { 10 });
            assert_eq!(offloads.udp_gso.demotions(), demotions, "{errno}");
        }
    }
}

#[test]
fn disabled_gso_is_neither_tried_nor_counted() {
    let (mut sender, offloads) = sender(&[Rule::Above(1, Errno::EIO)]);
    offloads.udp_gso.set_enabled(false);
    assert_eq!(sizes(&mut sender, &[(by(0, A), 10, 100)], A), [1; 10]);
    assert_eq!((sender.messages.refused.len(), offloads.udp_gso.demotions()), (0, 0));
}

#[test]
fn empty_socket_is_read_once() {
    let (socket, _) = UdpSocket::unbound(&Arc::default()).unwrap();
    socket.bind(0, 0).unwrap();
    let mut receiver = UdpReceiver::over(socket.shared.clone(), Faulty::default());
    let bound_socket = socket.shared.socket().unwrap();
    receiver.receive(&bound_socket, &mut RecvBatch::new(4), RecvBatch::SLOT).unwrap();
    assert_eq!(receiver.messages.calls, 1);
}

#[test]
fn waker_ends_a_receive_with_endless_errors() {
    let (socket, _) = UdpSocket::unbound(&Arc::default()).unwrap();
    let port = socket.bind(0, 0).unwrap();
    let answers = std::iter::repeat_n(Err(Errno::ENOMEM), 100).collect();
    let faulty = Faulty { answers, ..Faulty::default() };
    let mut receiver = UdpReceiver::over(socket.shared.clone(), faulty);
    plain_socket("127.0.0.1:0").send_to(b"x", ("127.0.0.1", port)).unwrap();
    receiver.waker()();
    let mut batch = RecvBatch::new(4);
    receiver.recv(&mut batch, false, true).unwrap();
    assert!(batch.is_empty());
    assert_eq!(receiver.messages.answers.len(), 84);
}
