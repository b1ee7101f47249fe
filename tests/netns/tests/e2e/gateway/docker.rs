//! A host with Docker's firewall: forwarding is dropped except for Docker's bridge, by chains that
//! iptables created in nftables or in its own tables (legacy).
//!
//! ```text
//!   container            host
//!   172.17.0.2 ---- docker0 172.17.0.1
//! ```

use netns::{Capture, Direction, Family, Host, cable, eventually, linerate};

use crate::gateway::page;
use crate::gateway::{EXIT, Hosts, PATIENCE, WORLD, answers, down};

const KINDS: [&str; 2] = ["nft", "legacy"];

/// Rules of Docker 28 on a host with one bridge and no published port, for one family. DOCKER-USER
/// is the chain for other programs.
const RULES: &str = "*filter
:FORWARD DROP
:DOCKER -
:DOCKER-BRIDGE -
:DOCKER-CT -
:DOCKER-FORWARD -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
*nat
:DOCKER -
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s SUBNET ! -o docker0 -j MASQUERADE
COMMIT
";

/// The bridge's networks, and the container's addresses there.
const SUBNETS: [&str; 2] = ["172.17.0.0/16", "fd17::/64"];

/// Sets Docker's rules on a host, by iptables of this kind.
fn docker(host: &Host, kind: &str) {
    host.run("ip link add docker0 type bridge && ip link set docker0 up");
    netns::address(host, "docker0", "172.17.0.1/16");
    netns::address(host, "docker0", "fd17::1/64");
    for (program, subnet) in ["iptables", "ip6tables"].into_iter().zip(SUBNETS) {
        let rules = host.write("docker.rules", &RULES.replace("SUBNET", subnet));
        host.run(format!("{program}-{kind}-restore <{rules}"));
    }
}

/// A host behind the bridge.
fn container(host: &Host) -> Host {
    let container = Host::new("container");
    cable(&container, "eth0", host, "veth0", 1500);
    host.run("ip link set veth0 master docker0");
    for (address, gateway) in [("172.17.0.2/16", "172.17.0.1"), ("fd17::2/64", "fd17::1")] {
        netns::address(&container, "eth0", address);
        container.run(format!("ip route add default via {gateway}"));
    }
    container
}

/// All rules of all kinds, without counters.
fn rules(host: &Host) -> String {
    host.run(
        "for kind in nft legacy; do for program in iptables ip6tables; do \
         $program-$kind-save 2>/dev/null | grep -v '^#'; done; done | sed 's/ \\[.*//'; \
         nft list tables",
    )
}

fn doctors_notes(host: &Host) -> Vec<String> {
    let outcome = linerate(host, "doctor --json");
    let report: serde_json::Value =
        serde_json::from_str(&outcome.stderr).expect("doctor prints JSON");
    let findings = report["findings"].as_array().expect("a list").iter();
    let filters = findings.filter(|finding| finding["check"] == "forward-filter");
    filters.map(|finding| finding["what"].as_str().expect("a text").to_owned()).collect()
}

/// Docker drops packets that linerate's table accepts. If its own chain accepts the tunnel, as its
/// manual recommends, everything passes.
#[test]
fn an_exit_with_docker_reports_its_filter_and_forwards_once_it_accepts_the_tunnel() {
    for kind in KINDS {
        let hosts = Hosts::new();
        docker(&hosts.exit, kind);
        let before = rules(&hosts.exit);
        hosts.exit_up(
            "OfferRoutes = 0.0.0.0/0, ::/0\nMasquerade = true\nIpForward = true",
            "10.9.0.1/32, fd09::1/128",
        );
        hosts.client_up(Family::V4, "", "0.0.0.0/0, ::/0");
        eventually("the tunnel works", PATIENCE, || answers(&hosts.client, "10.9.0.2"));
        assert_eq!(WORLD.map(|target| answers(&hosts.client, target)), [false; 2], "{kind}");
        let notes = doctors_notes(&hosts.exit);
        let chains = match kind {
            "nft" => ["chain ip filter FORWARD", "chain ip6 filter FORWARD"],
            _ => ["chain FORWARD of iptables-legacy", "chain FORWARD of ip6tables-legacy"],
        };
        for chain in chains {
            assert!(notes.iter().any(|note| note.contains(chain)), "{kind}: {notes:?}");
        }

        for program in ["iptables", "ip6tables"] {
            let insert = format!("{program}-{kind} -I DOCKER-USER");
            hosts.exit.run(format!("{insert} -i wg0 -j ACCEPT && {insert} -o wg0 -j ACCEPT"));
        }
        assert_eq!(WORLD.map(|target| answers(&hosts.client, target)), [true; 2], "{kind}");
        down(&hosts.exit);
        for program in ["iptables", "ip6tables"] {
            hosts.exit.run(format!("{program}-{kind} -F DOCKER-USER"));
        }
        assert_eq!(rules(&hosts.exit), before, "{kind}: Docker's rules have changed");
    }
}

/// A container's packets are masqueraded by the host and sent through the tunnel.
#[test]
fn a_container_of_a_full_tunnel_client_reaches_the_world_through_the_tunnel() {
    for kind in KINDS {
        let hosts = Hosts::new();
        hosts.client.run("echo 1 >/proc/sys/net/ipv4/ip_forward");
        hosts.client.run("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
        docker(&hosts.client, kind);
        let container = container(&hosts.client);
        let before = rules(&hosts.client);
        page::serve(&hosts.world, WORLD);
        hosts.exit_up(
            "OfferRoutes = 0.0.0.0/0, ::/0\nMasquerade = true\nIpForward = true",
            "10.9.0.1/32, fd09::1/128",
        );
        hosts.client_up(Family::V4, "", "0.0.0.0/0, ::/0");
        for (host, exit) in ["10.12.0.2", "[fd12::2]"].into_iter().zip(EXIT) {
            let url = format!("http://{host}:{}/", page::PORT);
            let capture = Capture::start(&hosts.client, "wg0");
            let text = container.run(format!("curl -sS --max-time 20 {url}"));
            assert_eq!(text, format!("a page for {exit}"), "{kind}");
            let frames = capture.finish();
            let sent = frames.iter().filter(|frame| frame.direction == Direction::Out).count();
            assert!(sent > 3, "{kind}: {sent} packets went through the tunnel");
        }
        down(&hosts.client);
        assert_eq!(rules(&hosts.client), before, "{kind}: Docker's rules have changed");
    }
}
