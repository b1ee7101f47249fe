//! A stream and a ping survive all events of a laptop's network.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{
    Family, Host, Member, MemberKind, Nat, Pinging, Stopwatch, Stream, Tailnet, Uplink, deadline,
};

use super::changes::{INTERVAL, OFTEN, PACED, PATIENCE};

/// Time in which traffic resumes after a change. A release build on idle cores promises one second
/// if the host is notified of the change, and three if only silence shows it.
const BACK: Duration = Duration::from_secs(5);

/// Replies before and after a change.
const SOME: usize = 100;

/// Duration of a link's absence.
const DOWN: Duration = Duration::from_secs(5);

/// Duration of a host's sleep.
const SLEEP: Duration = Duration::from_secs(60);

const CONES: [Nat; 2] = [Nat::PortRestricted; 2];

/// Two direct nodes, with a stream and a ping from the first.
struct Traffic {
    one: Member,
    other: Member,
    stream: Stream,
    pinging: Pinging,
}

fn traffic(tailnet: &Tailnet, nats: [Nat; 2]) -> Traffic {
    let mut names = ["one", "other"].into_iter();
    let [one, other] = nats.map(|nat| {
        let host = tailnet.host(names.next().unwrap_or_default(), Uplink::Behind(nat));
        Member::join(tailnet, host, MemberKind::Linerate, "")
    });
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
    let address = other.addresses.of(Family::V4);
    let socket = SocketAddr::new(address.parse().expect("an address"), 7000);
    let stream = Stream::start(&one.host, &other.host, socket, PACED);
    let pinging = Pinging::start(&one.host, "change", &format!("{OFTEN} {address}"));
    pinging.wait_for_replies(SOME, PATIENCE);
    Traffic { one, other, stream, pinging }
}

impl Traffic {
    /// Waits for replies after the last change and checks the gap: nothing was answered for `gone`, and for
    /// little longer.
    fn survives(self, what: &str, gone: Duration) {
        self.pinging.wait_for_replies(3 * SOME, PATIENCE);
        let gap = self.pinging.finish().longest_gap(INTERVAL);
        println!("{what}: {gap:?} without an answer");
        assert!(gap < gone + deadline(BACK), "{what}: {gap:?}");
        self.one.wait_until_direct(&self.other);
        self.other.wait_until_direct(&self.one);
        let carried = self.stream.finish();
        assert!(carried.received > 0 && carried.received == carried.sent, "{what}: {carried:?}");
    }
}

/// Sends a signal to all processes of linerate on a host.
fn signal(host: &Host, signal: &str) {
    host.run(format!("kill -{signal} $(pgrep linerate)"));
}

#[test]
fn streams_survive_a_lease_with_another_address() {
    let Some(tailnet) = Tailnet::start() else { return };
    let traffic = traffic(&tailnet, CONES);
    traffic.one.host.run(
        "ip address flush dev eth0 scope global && ip address add 192.168.0.77/24 dev eth0 && \
         ip route replace default via 192.168.0.1",
    );
    traffic.survives("another lease", Duration::ZERO);
}

#[test]
fn streams_survive_a_default_route_that_moves_to_another_interface_and_back() {
    let Some(tailnet) = Tailnet::start() else { return };
    let traffic = traffic(&tailnet, CONES);
    let (device, router) = tailnet.add_second_uplink(&traffic.one.host);
    traffic.pinging.wait_for_replies(SOME, PATIENCE);
    // Both interfaces keep their addresses: only the route changes.
    let router = router.of(Family::V4);
    for (via, device) in [(router, device), ("192.168.0.1", "eth0")] {
        traffic.one.host.run(format!("ip route replace default via {via} dev {device}"));
        traffic.pinging.wait_for_replies(3 * SOME, PATIENCE);
        traffic.one.wait_until_direct(&traffic.other);
        let at = traffic.other.wait_until_direct(&traffic.one);
        let is_there = at.starts_with("10.1.0.");
        assert_eq!(is_there, device != "eth0", "by {device}, {at}");
    }
    traffic.survives("another interface", Duration::ZERO);
}

#[test]
fn streams_survive_an_interface_that_goes_down_and_comes_up() {
    let Some(tailnet) = Tailnet::start() else { return };
    let traffic = traffic(&tailnet, CONES);
    traffic.one.host.run("ip link set eth0 down");
    thread::sleep(DOWN);
    traffic.one.host.run("ip link set eth0 up && ip route add default via 192.168.0.1");
    traffic.survives("an interface down", DOWN);
}

#[test]
fn streams_survive_boxes_that_delete_all_flows() {
    let Some(tailnet) = Tailnet::start() else { return };
    // A symmetric one uses another port afterwards.
    for nats in [CONES, [Nat::Symmetric, Nat::AddressRestricted]] {
        let traffic = traffic(&tailnet, nats);
        tailnet.clear_flows(&traffic.one.host);
        traffic.pinging.wait_for_replies(3 * SOME, PATIENCE);
        for member in [&traffic.one, &traffic.other] {
            tailnet.clear_flows(&member.host);
        }
        traffic.survives("boxes that delete all flows", Duration::ZERO);
    }
}

#[test]
fn streams_survive_a_host_that_sleeps() {
    let Some(tailnet) = Tailnet::start() else { return };
    let traffic = traffic(&tailnet, CONES);
    let watch = Stopwatch::start();
    signal(&traffic.other.host, "STOP");
    thread::sleep(SLEEP);
    signal(&traffic.other.host, "CONT");
    let slept = watch.elapsed();
    traffic.survives("a host that sleeps", slept);
}
