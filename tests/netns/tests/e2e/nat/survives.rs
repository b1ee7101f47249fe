//! What a stream and a ping survive: everything that happens to the network around a laptop.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{
    Family, Host, Member, MemberKind, Nat, Pinging, Stopwatch, Stream, Tailnet, Uplink, deadline,
};

use super::changes::{INTERVAL, OFTEN, PACED, PATIENCE};

/// Traffic has to be back so soon after a change. A second is promised where the host itself is told
/// of the change, and three where silence alone tells, by a release build on idle cores.
const BACK: Duration = Duration::from_secs(5);

/// Replies before and after a change.
const SOME: usize = 100;

/// How long a link is gone.
const DOWN: Duration = Duration::from_secs(5);

/// How long a host sleeps.
const SLEEP: Duration = Duration::from_secs(60);

const CONES: [Nat; 2] = [Nat::PortRestricted; 2];

/// Two that go directly, with a stream and a ping from the first.
struct Talk {
    one: Member,
    other: Member,
    stream: Stream,
    pinging: Pinging,
}

fn talk(tailnet: &Tailnet, nats: [Nat; 2]) -> Talk {
    let mut names = ["one", "other"].into_iter();
    let [one, other] = nats.map(|nat| {
        let host = tailnet.host(names.next().unwrap_or_default(), Uplink::Behind(nat));
        Member::join(tailnet, host, MemberKind::Linerate, "")
    });
    one.becomes_direct(&other);
    other.becomes_direct(&one);
    let address = other.addresses.of(Family::V4);
    let socket = SocketAddr::new(address.parse().expect("an address"), 7000);
    let stream = Stream::start(&one.host, &other.host, socket, PACED);
    let pinging = Pinging::start(&one.host, "change", &format!("{OFTEN} {address}"));
    pinging.goes_on(SOME, PATIENCE);
    Talk { one, other, stream, pinging }
}

impl Talk {
    /// Goes on after the last change, which was this long ago by the watch. Nothing was answered for
    /// `gone`, and for little longer.
    fn survives(self, what: &str, gone: Duration) {
        self.pinging.goes_on(3 * SOME, PATIENCE);
        let gap = self.pinging.finish().longest_gap(INTERVAL);
        println!("{what}: {gap:?} without an answer");
        assert!(gap < gone + deadline(BACK), "{what}: {gap:?}");
        self.one.becomes_direct(&self.other);
        self.other.becomes_direct(&self.one);
        let carried = self.stream.finish();
        assert!(carried.received > 0 && carried.received == carried.sent, "{what}: {carried:?}");
    }
}

/// Sends a signal to all that linerate runs on a host.
fn signal(host: &Host, signal: &str) {
    host.run(format!("kill -{signal} $(pgrep linerate)"));
}

#[test]
fn streams_survive_a_lease_with_another_address() {
    let Some(tailnet) = Tailnet::start() else { return };
    let talk = talk(&tailnet, CONES);
    talk.one.host.run(
        "ip address flush dev eth0 scope global && ip address add 192.168.0.77/24 dev eth0 && \
         ip route replace default via 192.168.0.1",
    );
    talk.survives("another lease", Duration::ZERO);
}

#[test]
fn streams_survive_a_default_route_that_moves_to_another_interface_and_back() {
    let Some(tailnet) = Tailnet::start() else { return };
    let talk = talk(&tailnet, CONES);
    let (device, router) = tailnet.second_way(&talk.one.host);
    talk.pinging.goes_on(SOME, PATIENCE);
    // Both interfaces keep their addresses: nothing but the route is another.
    let router = router.of(Family::V4);
    for (via, device) in [(router, device), ("192.168.0.1", "eth0")] {
        talk.one.host.run(format!("ip route replace default via {via} dev {device}"));
        talk.pinging.goes_on(3 * SOME, PATIENCE);
        talk.one.becomes_direct(&talk.other);
        let at = talk.other.becomes_direct(&talk.one);
        let is_there = at.starts_with("10.1.0.");
        assert_eq!(is_there, device != "eth0", "by {device}, {at}");
    }
    talk.survives("another interface", Duration::ZERO);
}

#[test]
fn streams_survive_an_interface_that_goes_down_and_comes_up() {
    let Some(tailnet) = Tailnet::start() else { return };
    let talk = talk(&tailnet, CONES);
    talk.one.host.run("ip link set eth0 down");
    thread::sleep(DOWN);
    talk.one.host.run("ip link set eth0 up && ip route add default via 192.168.0.1");
    talk.survives("an interface down", DOWN);
}

#[test]
fn streams_survive_boxes_that_forget() {
    let Some(tailnet) = Tailnet::start() else { return };
    // Of a symmetric one, the port is another afterwards.
    for nats in [CONES, [Nat::Symmetric, Nat::AddressRestricted]] {
        let talk = talk(&tailnet, nats);
        tailnet.forget(&talk.one.host);
        talk.pinging.goes_on(3 * SOME, PATIENCE);
        for member in [&talk.one, &talk.other] {
            tailnet.forget(&member.host);
        }
        talk.survives("boxes that forget", Duration::ZERO);
    }
}

#[test]
fn streams_survive_a_host_that_sleeps() {
    let Some(tailnet) = Tailnet::start() else { return };
    let talk = talk(&tailnet, CONES);
    let watch = Stopwatch::start();
    signal(&talk.other.host, "STOP");
    thread::sleep(SLEEP);
    signal(&talk.other.host, "CONT");
    let slept = watch.elapsed();
    talk.survives("a host that sleeps", slept);
}
