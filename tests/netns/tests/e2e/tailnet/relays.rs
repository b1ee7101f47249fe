//! Peer relays over UDP, of each kind for each kind of node.

use netns::{Family, Member, MemberKind, Nat, Tailnet, Uplink, eventually};

use MemberKind::{Linerate, Tailscaled};

use crate::tailnet::{PATIENCE, SLOW, talk};

/// Port of the peer relays.
const PORT: u16 = 40_000;

/// Two nodes without a direct path, and one that both reach.
struct World {
    pair: [Member; 2],
    relay: Member,
    /// The relay's address on the switch.
    at: String,
    _tailnet: Tailnet,
}

fn world(kinds: [MemberKind; 2], relay: MemberKind) -> Option<World> {
    let tailnet = Tailnet::start()?;
    let host = tailnet.host("relay", Uplink::Switch);
    let at = host.run("ip -4 -o addr show dev eth0 | awk '{sub(\"/.*\", \"\", $4); print $4}'");
    let at = format!("{}:{PORT}", at.trim());
    let relay = Member::join(&tailnet, host, relay, "");
    relay.set_relay_port(&PORT.to_string());
    tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
    let [one, other] = [("one", kinds[0]), ("other", kinds[1])].map(|(name, kind)| {
        Member::join(&tailnet, tailnet.host(name, Uplink::Behind(Nat::Symmetric)), kind, "")
    });
    Some(World { pair: [one, other], relay, at, _tailnet: tailnet })
}

fn relayed(kinds: [MemberKind; 2], relay: MemberKind) {
    let Some(world) = world(kinds, relay) else { return };
    let [one, other] = &world.pair;
    one.reaches(other, Family::V4);
    one.wait_until_relayed(other, &world.at);
    other.wait_until_relayed(one, &world.at);
    talk(one, other, SLOW, 0);
}

#[test]
fn linerate_relays_for_two_tailscaled() {
    relayed([Tailscaled, Tailscaled], Linerate);
}

#[test]
fn tailscaled_relays_for_two_tailscaled() {
    relayed([Tailscaled, Tailscaled], Tailscaled);
}

#[test]
fn tailscaled_relays_for_two_linerates() {
    relayed([Linerate, Linerate], Tailscaled);
}

#[test]
fn linerate_relays_for_two_linerates() {
    relayed([Linerate, Linerate], Linerate);
}

#[test]
fn linerate_relays_for_linerate_and_tailscaled() {
    relayed([Linerate, Tailscaled], Linerate);
}

#[test]
fn a_relay_runs_without_rights_ends_when_disabled_and_restarts_after_a_crash() {
    let Some(world) = world([Tailscaled, Tailscaled], Linerate) else { return };
    let [one, other] = &world.pair;
    one.wait_until_relayed(other, &world.at);
    let pid = || world.relay.host.attempt("pgrep -x linerate-relay").stdout.trim().to_owned();
    let before = pid();
    let status = world.relay.host.run(format!("cat /proc/{before}/status"));
    let is = |line: &str| status.lines().any(|one| one == line);
    assert!(is("CapEff:\t0000000000000000") && is("CapPrm:\t0000000000000000"), "{status}");
    assert!(is("NoNewPrivs:\t1") && is("Seccomp:\t2") && !status.contains("\nUid:\t0"), "{status}");
    world.relay.host.run(format!("kill -KILL {before}"));
    eventually("another relay", PATIENCE, || !pid().is_empty() && pid() != before);
    world.relay.set_relay_port("''");
    eventually("no relay", PATIENCE, || pid().is_empty());
}
