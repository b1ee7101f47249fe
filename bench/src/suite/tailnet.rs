//! Two members of a tailnet of a real headscale, both of linerate or both of tailscaled.
//!
//! ```text
//!   left ----- switch ----- right      direct
//!     |           |           |
//!   router --- headscale --- router    no UDP: through its relay, over TCP
//!   router ----- relay ----- router    never direct: through a third member, over UDP
//! ```

use std::cell::RefCell;
use std::time::Duration;

use netns::{
    Addresses, Family, Member, MemberKind, MemberProgram, Nat, Pinging, Stopwatch, Tailnet, Uplink,
};

use super::topology::{End, Ends, Running};
use super::{News, Plan, Turn};
use crate::contender::{Carrier, Contender};
use crate::measure::{
    Measure, TAILNET_FIRST, TAILNET_JOIN, TAILNET_MEMORY, TAILNET_MEMORY_AFTER, TAILNET_MEMORY_PSS,
    TAILNET_PEER_RELAY_TCP, TAILNET_QUIC_DOWN, TAILNET_QUIC_UP, TAILNET_RELAY_TCP, TAILNET_TCP_4,
    TAILNET_TCP_BACK, TAILNET_TCP_BOTH, TAILNET_TCP_FORTH, TAILNET_UDP_64,
};
use crate::readings::Readings;

/// Port of peer relays.
pub(super) const RELAY_PORT: &str = "40000";

/// Time in which a peer answers. tailscaled takes 5 s: its first initiation leaves before there is
/// a path, and it is repeated.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures a contender.
///
/// # Panics
/// If members do not join or connect, or a generator fails. Earlier readings remain.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    notify: &dyn Fn(News<'_>),
) {
    let program = program(contender);
    let tailnet = Tailnet::start().expect("the test is left out where a program is missing");
    let mut turn = join(&tailnet, &program, Uplink::Switch, |ends, joined, first| {
        let mut turn = Turn::of(ends, plan, readings, notify);
        turn.note(&TAILNET_JOIN, joined);
        turn.note(&TAILNET_FIRST, first);
        turn
    });
    turn.ends.wait_until_direct();
    turn.directly();
    turn.ends.assert_direct();
    drop(turn);
    join(&tailnet, &program, Uplink::Behind(Nat::WithoutUdp), |ends, _, _| {
        let mut turn = Turn::of(ends, plan, readings, notify);
        let rate = turn.stream("");
        turn.note(&TAILNET_RELAY_TCP, rate.gbps() * 1e3);
    });
    // The same pair for both contenders: only the relay differs.
    let relay = Member::join(&tailnet, tailnet.host("relay", Uplink::Switch), program, "");
    relay.set_relay_port(RELAY_PORT);
    tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
    join(&tailnet, &MemberKind::Linerate.into(), Uplink::Behind(Nat::Symmetric), |ends, _, _| {
        ends.wait_until_relayed();
        let mut turn = Turn::of(ends, plan, readings, notify);
        let rate = turn.stream("");
        turn.note(&TAILNET_PEER_RELAY_TCP, rate.gbps());
    });
}

/// Joins both and passes them to `then` with two times in seconds: the second member's time to
/// join, and the time from there until the first one answered it.
fn join<T>(
    tailnet: &Tailnet,
    program: &MemberProgram,
    uplink: Uplink,
    then: impl FnOnce(Ends, f64, f64) -> T,
) -> T {
    let member = |name| Member::join(tailnet, tailnet.host(name, uplink), program.clone(), "");
    let left = member("left");
    let watch = Stopwatch::start();
    let right = member("right");
    let joined = watch.elapsed().as_secs_f64();
    let watch = Stopwatch::start();
    let target = format!("-i 0.05 {}", left.addresses.of(Family::V4));
    let pinging = Pinging::start(&right.host, "first", &target);
    pinging.wait_for_replies(1, PATIENCE);
    let first = watch.elapsed().as_secs_f64();
    pinging.finish();
    then(Ends::joined([left, right].map(end)), joined, first)
}

fn end(member: Member) -> End {
    End {
        host: member.host.clone(),
        // The outer address is not used.
        outer: Addresses::from_texts("", ""),
        inner: member.addresses.clone(),
        key: None,
        device: Member::INTERFACE,
        daemon: Some(Running::Member(member)),
    }
}

/// The program of both members. tailscaled gets the MTU that linerate uses on a cable; its own is
/// 1280.
pub(super) fn program(contender: &Contender) -> MemberProgram {
    match &contender.carrier {
        Carrier::Daemon(program) => MemberProgram {
            daemon: program.path.clone(),
            client: program.path.clone(),
            kind: MemberKind::Linerate,
            environment: Vec::new(),
        },
        _ => MemberProgram {
            environment: vec!["TS_DEBUG_MTU=1420".to_owned()],
            ..MemberKind::Tailscaled.into()
        },
    }
}

impl Turn<'_> {
    /// Measures the direct path.
    fn directly(&mut self) {
        self.note_stream(&TAILNET_TCP_FORTH, "");
        self.note_memory([&TAILNET_MEMORY, &TAILNET_MEMORY_AFTER, &TAILNET_MEMORY_PSS]);
        self.note_stream(&TAILNET_TCP_BACK, "-R");
        self.note_stream(&TAILNET_TCP_4, "-P 4");
        self.note_stream(&TAILNET_TCP_BOTH, "--bidir");
        self.quic_way(&TAILNET_QUIC_DOWN, "down", "plain");
        self.quic_way(&TAILNET_QUIC_UP, "up", "plain");
        let carried = self.flood_carried("64");
        self.note(&TAILNET_UDP_64, carried);
    }

    fn note_stream(&mut self, measure: &'static Measure, options: &str) {
        let rate = self.stream(options);
        self.note(measure, rate.gbps());
    }
}
