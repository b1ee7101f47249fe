//! Two members of a tailnet behind NAT boxes with real rules, both of linerate or both of
//! tailscaled: the time until they connect, and the cost of changes.

use std::cell::RefCell;
use std::time::Duration;

use netns::{
    Family, Iperf, Member, MemberKind, MemberProgram, Nat, Path, Pinging, Stopwatch, Tailnet,
    Uplink, accept_udp, drop_udp,
};

use super::tailnet::{RELAY_PORT, program};
use super::{News, Plan};
use crate::contender::Contender;
use crate::measure::{
    Measure, NAT_CHANGED, NAT_CONES_DIRECT, NAT_CONES_FIRST, NAT_CUT, NAT_DIRECT_TCP,
    NAT_HARD_FIRST, NAT_LOST, NAT_MIXED_DIRECT, NAT_MIXED_FIRST, NAT_OPEN_DIRECT, NAT_OPEN_FIRST,
    NAT_PEER_RELAY_TCP,
};
use crate::readings::Readings;

/// Time in which a peer answers, and in which pairs become direct that always do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time in which a pair becomes direct, if ever: twice what tailscaled takes.
const UNTIL_DIRECT: Duration = Duration::from_secs(11);

/// Joins of each pair a turn. With the usual five rounds that is 20, and both contenders together
/// take less than half an hour.
const JOINS: usize = 4;

/// Time in which a member finds another path.
const LONG: Duration = Duration::from_secs(90);

/// Interval of pings.
const OFTEN: Duration = Duration::from_millis(10);

/// Replies before and after a change.
const SOME: usize = 100;

/// Two boxes, and the measures behind them: until the first answer, and until both send directly.
type Pair = ([Nat; 2], &'static Measure, Option<&'static Measure>);

const PAIRS: [Pair; 4] = [
    ([Nat::PortRestricted; 2], &NAT_CONES_FIRST, Some(&NAT_CONES_DIRECT)),
    ([Nat::AddressRestricted, Nat::Symmetric], &NAT_MIXED_FIRST, Some(&NAT_MIXED_DIRECT)),
    ([Nat::WithoutInputDrop; 2], &NAT_OPEN_FIRST, Some(&NAT_OPEN_DIRECT)),
    ([Nat::PortRestricted, Nat::Symmetric], &NAT_HARD_FIRST, None),
];

/// Measures a contender.
///
/// # Panics
/// If members do not join or connect. Earlier readings remain.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    notify: &dyn Fn(News<'_>),
) {
    let program = program(contender);
    let tailnet = Tailnet::start().expect("the test is left out where a program is missing");
    let note = |measure: &'static Measure, figure: f64| {
        if plan.wants(measure) {
            notify(News::Figure(measure, figure));
            readings.borrow_mut().push(measure, figure);
        }
    };
    let (pairs, joins) = if plan.is_brief { (&PAIRS[..1], 1) } else { (&PAIRS[..], JOINS) };
    for &(nats, first, direct) in pairs {
        let times = join_again(&tailnet, &program, nats, joins, direct.is_some());
        for (measure, times) in [Some(first), direct].into_iter().flatten().zip(times) {
            if let Some(middle) = median_of(&times) {
                note(measure, middle);
                readings.borrow_mut().push_round_trips(measure.key, times);
            }
        }
    }
    let (members, _) = join(&tailnet, &program, [Uplink::Switch; 2]);
    assert!(becomes_direct(&members, PATIENCE), "the path on one switch is direct");
    let gap = gap_of(&members, || {
        members[0].host.run(
            "ip address flush dev eth0 scope global && ip address add 10.1.0.77/24 dev eth0 && \
             ip address add fd01::77/64 dev eth0 nodad && \
             ip route replace default via 10.1.0.1 && ip -6 route replace default via fd01::1",
        );
    });
    note(&NAT_CHANGED, gap);
    if plan.is_brief {
        return;
    }
    let (members, _) = join(&tailnet, &program, [Uplink::Behind(Nat::PortRestricted); 2]);
    assert!(becomes_direct(&members, PATIENCE), "the path behind such boxes is direct");
    note(&NAT_CUT, gap_of(&members, || members.iter().for_each(|member| drop_udp(&member.host))));
    let pinging = pings(&members);
    pinging.wait_for_replies(SOME, LONG);
    members.iter().for_each(|member| accept_udp(&member.host));
    if becomes_direct(&members, LONG) {
        pinging.wait_for_replies(SOME, LONG);
        let pings = pinging.finish();
        note(&NAT_LOST, f64::from(pings.sent - pings.received));
    }
    drop(members);
    let carried = carry(&tailnet, &program, plan.seconds);
    note(&NAT_DIRECT_TCP, carried[0]);
    note(&NAT_PEER_RELAY_TCP, carried[1]);
}

/// Times of joins with the same first node, in seconds: until the first answer, and until both send
/// directly, if they do.
fn join_again(
    tailnet: &Tailnet,
    program: &MemberProgram,
    [here, there]: [Nat; 2],
    joins: usize,
    direct: bool,
) -> [Vec<f64>; 2] {
    let join = |name, nat| {
        let host = tailnet.host(name, Uplink::Behind(nat));
        Member::join(tailnet, host, program.clone(), "")
    };
    let mut left = join("left", here);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..joins {
        let (members, watch) = ([left, join("right", there)], Stopwatch::start());
        let pinging = pings(&members);
        pinging.wait_for_replies(1, PATIENCE);
        times[0].push(watch.elapsed().as_secs_f64());
        if direct && becomes_direct(&members, UNTIL_DIRECT) {
            times[1].push(watch.elapsed().as_secs_f64());
        }
        pinging.finish();
        [left, _] = members;
    }
    times
}

/// The median; `None` if empty.
fn median_of(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// TCP between two linerates, in Gbit/s: direct, and through a relay node of the contender.
fn carry(tailnet: &Tailnet, program: &MemberProgram, seconds: u32) -> [f64; 2] {
    let (members, _) =
        join(tailnet, &MemberKind::Linerate.into(), [Uplink::Behind(Nat::PortRestricted); 2]);
    assert!(becomes_direct(&members, PATIENCE), "the path behind such boxes is direct");
    let [left, right] = &members;
    let address = right.addresses.of(Family::V4);
    let iperf = Iperf { client: &left.host, server: &right.host, address, seconds, options: "" };
    let directly = iperf.run().gbps();
    let relay = Member::join(tailnet, tailnet.host("relay", Uplink::Switch), program.clone(), "");
    relay.set_relay_port(RELAY_PORT);
    tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
    tailnet.block_between_boxes();
    left.wait_until_relayed(right, "");
    right.wait_until_relayed(left, "");
    [directly, iperf.run().gbps()]
}

/// Joins both. The time starts when the second one is connected.
fn join(
    tailnet: &Tailnet,
    program: &MemberProgram,
    uplinks: [Uplink; 2],
) -> ([Member; 2], Stopwatch) {
    let mut names = ["left", "right"].into_iter();
    let members = uplinks.map(|uplink| {
        let host = tailnet.host(names.next().unwrap_or_default(), uplink);
        Member::join(tailnet, host, program.clone(), "")
    });
    (members, Stopwatch::start())
}

/// A ping from the second member.
fn pings([left, right]: &[Member; 2]) -> Pinging {
    let interval = OFTEN.as_secs_f64();
    let target = format!("-i {interval} {}", left.addresses.of(Family::V4));
    Pinging::start(&right.host, "first", &target)
}

/// Waits until both send directly. Returns whether they do.
fn becomes_direct([left, right]: &[Member; 2], patience: Duration) -> bool {
    let watch = Stopwatch::start();
    let is_direct = |from: &Member, to| matches!(from.path_to(to), Path::Direct(_));
    while watch.elapsed() < patience {
        if is_direct(right, left) && is_direct(left, right) {
            return true;
        }
        netns::ping(&left.host, format!("-c 1 -W 0.2 {}", right.addresses.of(Family::V4)));
    }
    false
}

/// The longest time without an answer, in seconds, during a change.
fn gap_of(members: &[Member; 2], change: impl FnOnce()) -> f64 {
    let pinging = pings(members);
    pinging.wait_for_replies(SOME, PATIENCE);
    change();
    // Waits for answers in flight.
    std::thread::sleep(OFTEN * 10);
    pinging.wait_for_replies(SOME, LONG);
    pinging.finish().longest_gap(OFTEN).as_secs_f64()
}
