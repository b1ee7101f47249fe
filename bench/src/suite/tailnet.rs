//! Two members of a tailnet that a real headscale runs, both of linerate or both of tailscaled.
//!
//! ```text
//!   left ----- switch ----- right      directly
//!     |           |           |
//!   router --- headscale --- router    no UDP: by its relay, over TCP
//!   router ----- relay ----- router    never directly: by a third member, over UDP
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

/// Where peer relays listen.
pub(super) const RELAY_PORT: &str = "40000";

/// Within this a peer answers. tailscaled takes 5 s: it repeats its first initiation, which leaves
/// before there is a way.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures a contender.
///
/// # Panics
/// When members do not join or meet, or a generator fails; what was read until then stays.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    tell: &dyn Fn(News<'_>),
) {
    let program = program(contender);
    let tailnet = Tailnet::start().expect("the test is left out where a program is missing");
    let mut turn = join(&tailnet, &program, Uplink::Switch, |ends, joined, first| {
        let mut turn = Turn::of(ends, plan, readings, tell);
        turn.note(&TAILNET_JOIN, joined);
        turn.note(&TAILNET_FIRST, first);
        turn
    });
    turn.ends.become_direct();
    turn.directly();
    turn.ends.were_direct();
    drop(turn);
    join(&tailnet, &program, Uplink::Behind(Nat::WithoutUdp), |ends, _, _| {
        let mut turn = Turn::of(ends, plan, readings, tell);
        let rate = turn.stream("");
        turn.note(&TAILNET_RELAY_TCP, rate.gbps() * 1e3);
    });
    // The same pair for both contenders: what differs is who relays.
    let relay = Member::join(&tailnet, tailnet.host("relay", Uplink::Switch), program, "");
    relay.relays_at(RELAY_PORT);
    tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
    join(&tailnet, &MemberKind::Linerate.into(), Uplink::Behind(Nat::Symmetric), |ends, _, _| {
        ends.become_relayed();
        let mut turn = Turn::of(ends, plan, readings, tell);
        let rate = turn.stream("");
        turn.note(&TAILNET_PEER_RELAY_TCP, rate.gbps());
    });
}

/// Joins both, and gives them to `then` with the seconds that the second one took to join, and behind
/// that until the first one answered it.
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
    pinging.goes_on(1, PATIENCE);
    let first = watch.elapsed().as_secs_f64();
    pinging.finish();
    then(Ends::joined([left, right].map(end)), joined, first)
}

fn end(member: Member) -> End {
    End {
        host: member.host.clone(),
        // It is not called by it.
        outer: Addresses::from_texts("", ""),
        inner: member.addresses.clone(),
        key: None,
        device: Member::INTERFACE,
        daemon: Some(Running::Member(member)),
    }
}

/// What both members run. tailscaled has the MTU that linerate takes on a cable; its own is 1280.
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
    /// What goes directly.
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
