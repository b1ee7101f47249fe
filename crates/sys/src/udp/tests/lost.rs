//! Random refusals of the kernel. In every case, datagrams are neither lost without a report, nor
//! sent twice, nor reordered.

use nix::errno::Errno;
use proptest::{collection::vec, prelude::*, sample::select};

use super::faulty::{Faulty, Rule, send_all, sender};
use super::*;
use crate::testing::Random;

/// A run of datagrams.
#[derive(Clone, Copy, Debug)]
struct Run {
    host: usize,
    /// The interface of the sticky source, 0 for none.
    interface: u32,
    ecn: Ecn,
    len: usize,
    count: usize,
    /// Length of the additional last datagram of the run.
    last: usize,
}

const HOSTS: usize = 4;

fn host(number: usize) -> IpAddr {
    match number {
        0 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | 1).into(),
        _ => Ipv4Addr::new(192, 0, 2, number as u8).into(),
    }
}

fn source(host: usize, interface: u32) -> IpAddr {
    match host {
        0 => Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(interface)).into(),
        _ => Ipv4Addr::new(10, 0, 0, interface as u8).into(),
    }
}

impl Run {
    fn endpoint(&self) -> Endpoint {
        let endpoint = to(host(self.host), 51_820);
        let addr = source(self.host, self.interface);
        let local = Local { addr, interface: self.interface };
        Endpoint { local: (self.interface > 0).then_some(local), ..endpoint }
    }
}

fn batch_of(runs: &[Run]) -> SendBatch {
    let mut batch = SendBatch::default();
    let mut number = 0u32;
    for run in runs {
        for len in std::iter::repeat_n(run.len, run.count).chain([run.last.min(run.len)]) {
            let datagram = batch.push(len, run.endpoint(), run.ecn);
            datagram.fill(number as u8);
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            number += 1;
        }
    }
    batch
}

fn run() -> impl Strategy<Value = Run> {
    let place = (0..HOSTS, 0u32..3, select(vec![Ecn::NotEct, Ecn::Ect0]));
    let len = prop_oneof![6 => select(vec![4usize, 40, 100]), 1 => Just(1452), 1 => Just(20_000)];
    (place, len, 0usize..150, 4usize..100).prop_map(|((host, interface, ecn), len, count, last)| {
        Run { host, interface, ecn, len, count: if len > 5_000 { count / 10 } else { count }, last }
    })
}

fn errno() -> impl Strategy<Value = Errno> {
    select(vec![
        Errno::EINTR,
        Errno::EIO,
        Errno::EINVAL,
        Errno::EMSGSIZE,
        Errno::EOPNOTSUPP,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EAGAIN,
        Errno::EPERM,
        Errno::EACCES,
        Errno::ECONNREFUSED,
        Errno::EHOSTUNREACH,
        Errno::ENETUNREACH,
        Errno::ENETDOWN,
        Errno::ENODEV,
        Errno::EADDRNOTAVAIL,
        Errno::ENOTCONN,
    ])
}

/// Errors of the kernel for a GSO message.
fn gso_errno() -> impl Strategy<Value = Errno> {
    select(vec![Errno::EIO, Errno::EINVAL, Errno::EMSGSIZE, Errno::EOPNOTSUPP])
}

fn stale_errno() -> impl Strategy<Value = Errno> {
    select(vec![Errno::EINVAL, Errno::EADDRNOTAVAIL, Errno::ENETUNREACH, Errno::ENODEV])
}

/// Refusals that do not prevent sending.
fn harmless() -> impl Strategy<Value = Rule> {
    let passing = vec![Errno::EINTR, Errno::ECONNREFUSED, Errno::EAGAIN, Errno::ENOBUFS];
    let full = vec![Errno::EAGAIN, Errno::ENOBUFS, Errno::ENOMEM];
    prop_oneof![
        (0..HOSTS, gso_errno()).prop_map(|(to, errno)| Rule::GsoTo(host(to), errno)),
        (0u32..3, gso_errno()).prop_map(|(by, errno)| Rule::GsoBy(by, errno)),
        (1usize..70, gso_errno()).prop_map(|(most, errno)| Rule::Above(most, errno)),
        (0..HOSTS, 0usize..1500, gso_errno()).prop_map(|(to, most, errno)| Rule::Longer(
            host(to),
            most,
            errno
        )),
        (0..HOSTS, 1u32..3, stale_errno())
            .prop_map(|(host, interface, errno)| Rule::From(source(host, interface), errno)),
        (0usize..30, select(passing)).prop_map(|(call, errno)| Rule::Call(call, errno)),
        (1u64..12, select(full))
            .prop_map(|(ms, errno)| Rule::Until(Duration::from_millis(ms), errno)),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        3 => harmless(),
        2 => (any::<u8>(), errno()).prop_map(|(chances, errno)| Rule::Chance(chances % 200, errno)),
        1 => (0usize..40, errno()).prop_map(|(call, errno)| Rule::Call(call, errno)),
        1 => (0..HOSTS, errno().prop_filter("endless calls", |errno| *errno != Errno::EINTR))
            .prop_map(|(to, errno)| Rule::To(host(to), errno)),
        1 => (0usize..2_000).prop_map(|most| Rule::TooLong(most, Errno::EMSGSIZE)),
        1 => (0u64..60, errno())
            .prop_filter("endless calls", |(_, errno)| *errno != Errno::EINTR)
            .prop_map(|(ms, errno)| Rule::Until(Duration::from_millis(ms), errno)),
    ]
}

/// Batches, and the milliseconds before each.
fn batches() -> impl Strategy<Value = Vec<(u64, Vec<Run>)>> {
    let pause = prop_oneof![Just(0u64), 0u64..3_000, Just(61_000)];
    vec((pause, vec(run(), 1..6)), 1..4)
}

/// The maximum number of calls for this number of datagrams, including waits and refusals.
fn bound(datagrams: usize) -> usize {
    // Each datagram may be retried without GSO and without its source, after the maximum number of
    // errors of earlier ones. The waits are limited per batch.
    22 + 19 * datagrams
}

proptest! {
    #[test]
    fn each_datagram_is_sent_once_in_order_or_reported(
        (rules, seed, partial) in (vec(any_rule(), 0..5), any::<u64>(), any::<u8>()),
        batches in batches(),
    ) {
        let (mut sender, _) = sender(&rules);
        sender.messages.random = Random::new(seed);
        sender.messages.partial = partial / 4;
        for (pause, runs) in batches {
            let faulty = &mut sender.messages;
            faulty.time.pass(Duration::from_millis(pause));
            let (waited, calls) = (faulty.time.waited(), faulty.calls);
            faulty.refused.clear();
            let mut batch = batch_of(&runs);
            send_all(&mut sender, &mut batch);
            let faulty = &sender.messages;
            prop_assert!(faulty.time.waited() - waited <= Duration::from_millis(20));
            let signals = faulty.refused.iter().filter(|errno| **errno == Errno::EINTR).count();
            let datagrams = batch.transmits().iter().map(|run| run.datagrams()).sum();
            prop_assert!(faulty.calls - calls - signals <= bound(datagrams));
        }
    }

    #[test]
    fn all_datagrams_are_sent_after_temporary_and_gso_refusals(
        (rules, seed, partial) in (vec(harmless(), 0..6), any::<u64>(), any::<u8>()),
        batches in batches(),
    ) {
        let (mut sender, offloads) = sender(&rules);
        sender.messages.random = Random::new(seed);
        sender.messages.partial = partial / 4;
        for (pause, runs) in batches {
            sender.messages.time.pass(Duration::from_millis(pause));
            let (_, failures) = send_all(&mut sender, &mut batch_of(&runs));
            prop_assert!(
                failures.iter().all(|failure| failure.error == SendError::StaleSource),
                "{failures:?}"
            );
        }
        let concerns_gso = |rule: &Rule| {
            matches!(
                rule,
                Rule::GsoTo(..) | Rule::GsoBy(..) | Rule::Above(..) | Rule::Longer(..)
            )
        };
        if !rules.iter().any(concerns_gso) {
            prop_assert_eq!(offloads.udp_gso.demotions(), 0);
        }
    }

    #[test]
    fn receive_errors_do_not_lose_or_reorder_datagrams(
        answers in vec(prop_oneof![
            2 => (1usize..20).prop_map(Ok),
            1 => errno().prop_map(Err),
            1 => Just(Err(Errno::EBADF)),
        ], 0..60),
        datagrams in vec(vec(any::<u8>(), 0..40), 1..100),
        no_gro: bool,
    ) {
        let offloads = Arc::<Offloads>::default();
        let (socket, _) = UdpSocket::unbound(&offloads).unwrap();
        socket.bind(0, 0).unwrap();
        let faulty = Faulty {
            answers: answers.clone().into(),
            incoming: datagrams.clone().into(),
            no_gro,
            ..Faulty::default()
        };
        let mut receiver = UdpReceiver::over(socket.shared.clone(), faulty);
        let bound_socket = socket.shared.socket().unwrap();
        let mut batch = RecvBatch::new(32);
        let mut arrived: Vec<Vec<u8>> = Vec::new();
        let mut rounds = 0;
        while !receiver.messages.incoming.is_empty() {
            batch.clear();
            socket.shared.apply_gro(&bound_socket, &receiver.messages);
            let received = receiver.receive(&bound_socket, &mut batch, RecvBatch::SLOT);
            prop_assert!(received.is_ok() || batch.is_empty());
            arrived.extend(batch.datagrams().map(|(span, _)| batch.get(span).to_vec()));
            rounds += 1;
            prop_assert!(rounds <= answers.len() + datagrams.len());
        }
        prop_assert_eq!(arrived, datagrams);
        let lacks = (offloads.udp_gro.is_enabled(), offloads.udp_gro.demotions());
        prop_assert_eq!(lacks, if no_gro { (false, 1) } else { (true, 0) });
    }
}
