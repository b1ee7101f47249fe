//! Two servers of one network, configured by exactly the manual's text, except for names of files.
//! Nodes use one name with the addresses of both. UDP between nodes is blocked unless a test enables
//! it, so that their packets are relayed.
//!
//! ```text
//!   PostgreSQL ──┬────────────── first ──── mesh ──── second
//!                |                 |                     |
//!                '─ second        one               other, ours
//! ```

use std::time::Duration;

use netns::{
    Coordinator, Family, Host, Member, MemberKind, Path, Pinging, Stopwatch, Tailnet, Uplink,
    announce, eventually, ping, serve_names,
};
use postgres_rig::Cluster;
use serde_json::Value;

use super::mesh::{self, addresses};
use super::{PATIENCE, block, start};

const MANUAL: &str = include_str!("../../../../../docs/operating.md");
/// The name of both servers, and their own names.
const NAME: &str = "net.example.com";
const NAMES: [&str; 2] = ["a.example.com", "b.example.com"];
/// Time in which nodes of a killed server use the other relay, and follow the other server.
const MOVED: Duration = Duration::from_secs(10);
const FOLLOWED: Duration = Duration::from_secs(15);

/// Blocks UDP except DNS.
const WITHOUT_UDP: &str = "
table inet without_udp {
  chain in { type filter hook input priority filter; iifname eth0 udp sport != 53 drop; }
  chain out { type filter hook output priority filter; oifname eth0 udp dport != 53 drop; }
}
";

/// Which of the two servers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Which {
    First,
    Second,
}

use Which::{First, Second};

/// Two servers; the tailnet's coordinator is the first.
pub(super) struct World {
    pub tailnet: Tailnet,
    pub second: Coordinator,
    names: Host,
    key: String,
    _cluster: Cluster,
}

/// A block of the manual, with the rig's names.
fn of_manual(name: &str) -> String {
    block(MANUAL, name)
        .replace("/etc/ssl/private/net.example.com.key", "/run/rig/tls.key")
        .replace("/etc/ssl/net.example.com.pem", "/run/rig/tls.pem")
        .replace("/etc/linerate/", "/run/rig/")
}

impl World {
    pub(super) fn start() -> Option<Self> {
        if netns::lacks_users() {
            return None;
        }
        let cluster = Cluster::start()?;
        let mut tailnet = start()?;
        let [names, first, second] =
            ["names", "first", "second"].map(|name| tailnet.host(name, Uplink::Switch));
        let at = [&first, &second].map(|host| addresses(host).of(Family::V4).to_owned());
        let records = [(NAME, &at[0]), (NAME, &at[1]), (NAMES[0], &at[0]), (NAMES[1], &at[1])];
        let records = records.map(|(name, at)| format!("--host-record={name},{at}")).join(" ");
        serve_names(&names, &[addresses(&names).of(Family::V4)], &records);
        let database = cluster.database("net");
        let configuration = format!(
            "state_dir = \"/run/rig/coordinator\"\nsocket = \"/run/rig/coordinator/socket\"\n\
             base_domain = \"rig.test\"\n{}",
            of_manual("toml replicas")
        );
        for host in [&first, &second] {
            resolve_by(host, &names);
            let all = [&[NAME], &NAMES[..]].concat();
            let certificate = tailnet.certificate.of_names(addresses(host), &all);
            host.write("tls.pem", &certificate.chain);
            host.write_secret("tls.key", &certificate.key);
            host.write_secret("mesh.key", mesh::KEY);
            host.write_secret("database", &database);
            host.write("relays.json", &of_manual("json replicas"));
        }
        let url = format!("https://{NAME}");
        let concurrent = |host| tailnet.coordinator.start_replica(host, &url, &configuration);
        let [mut first, second] = [first, second].map(concurrent);
        first.populate();
        let key = first.auth_key().to_owned();
        tailnet.coordinator = first;
        Some(Self { tailnet, second, names, key, _cluster: cluster })
    }

    pub(super) fn server(&mut self, which: Which) -> &mut Coordinator {
        match which {
            First => &mut self.tailnet.coordinator,
            Second => &mut self.second,
        }
    }

    /// Kills the first server; the second becomes the first.
    pub(super) fn lose_first(&mut self) {
        self.tailnet.coordinator.kill();
        std::mem::swap(&mut self.tailnet.coordinator, &mut self.second);
    }

    /// A member without UDP that joins by this server, and stays with it until it is killed.
    pub(super) fn join(&mut self, name: &str, kind: MemberKind, at: Which) -> Member {
        let host = self.tailnet.host(name, Uplink::Switch);
        let rules = host.write("without-udp", WITHOUT_UDP);
        host.run(format!("nft -f {rules}"));
        self.join_of(host, kind, at)
    }

    fn join_of(&mut self, host: Host, kind: MemberKind, at: Which) -> Member {
        resolve_by(&host, &self.names);
        let far = self.server(if at == First { Second } else { First }).host.clone();
        // Only this server answers, whichever address it tries first.
        host.run(format!(
            "nft 'add table inet far; \
               add chain inet far out {{ type filter hook output priority filter; }}; \
               add rule inet far out ip daddr {} tcp dport 443 reject with tcp reset'",
            addresses(&far).of(Family::V4)
        ));
        let member = Member::join_at(&format!("https://{NAME}"), &self.key, host, kind, "");
        let server = self.server(at).host.clone();
        eventually("it follows that server and has its relay", PATIENCE, || {
            connections(&server, &member) >= 2
        });
        member.host.run("nft delete table inet far");
        member
    }
}

fn resolve_by(host: &Host, names: &Host) {
    let at = addresses(names);
    host.run(format!("echo nameserver {} >/etc/resolv.conf", at.of(Family::V4)));
}

/// Number of connections between a server and a member: the map stream and the relay.
fn connections(server: &Host, member: &Member) -> usize {
    let at = addresses(&member.host);
    let all = server.connected_to(443);
    all.iter().filter(|end| end.contains(&format!("{}]:", at.of(Family::V4)))).count()
}

/// Whether a member has a peer of this name.
fn has_peer(member: &Member, name: &str) -> bool {
    let peers = &member.status()["Peer"];
    let mut peers = peers.as_object().into_iter().flat_map(|peers| peers.values());
    peers.any(|peer: &Value| peer["DNSName"] == format!("{name}.rig.test."))
}

fn reach_each_other(members: &[&Member]) {
    for from in members {
        for to in members.iter().filter(|to| to.host.name() != from.host.name()) {
            from.reaches(to, Family::V4);
            assert_eq!(from.path_to(to), Path::Relay("example".to_owned()));
        }
    }
}

/// Measures the time from a server's end until one of its nodes reaches a node of the other server,
/// and receives changes made there.
fn lose(world: &mut World, lost: Which, mover: &Member, stayer: &Member, name: &str) {
    let left = if lost == First { Second } else { First };
    let watch = Stopwatch::start();
    world.server(lost).kill();
    let target = stayer.addresses.of(Family::V4);
    eventually("a node of the server that is gone reaches one of the other", PATIENCE, || {
        ping(&mover.host, format!("-c 1 -W 1 {target}")).is_complete()
    });
    let relayed = watch.elapsed();
    let server = world.server(left);
    let nodes = server.nodes();
    let renamed = nodes.iter().find(|node| node["given_name"] == stayer.host.name());
    let number = renamed.and_then(|node| node["id"].as_i64()).expect("the node is there");
    server.command(&format!("nodes rename -i {number} {name}"));
    eventually("it receives changes made at the other", PATIENCE, || has_peer(mover, name));
    let followed = watch.elapsed();
    server.command(&format!("nodes rename -i {number} {}", stayer.host.name()));
    announce(&format!(
        "{:?} of a killed server reconnects after {:.2} s and follows after {:.2} s",
        mover.kind(),
        relayed.as_secs_f64(),
        followed.as_secs_f64()
    ));
    assert!(relayed < MOVED && followed < FOLLOWED, "{relayed:?} {followed:?}");
}

#[test]
fn nodes_of_two_servers_connect_by_relays_and_survive_the_loss_of_either() {
    let Some(mut world) = World::start() else { return };
    let one = world.join("one", MemberKind::Tailscaled, First);
    let other = world.join("other", MemberKind::Tailscaled, Second);
    let ours = world.join("ours", MemberKind::Linerate, Second);
    reach_each_other(&[&one, &other, &ours]);
    let placed = |world: &mut World| {
        [First, Second].map(|which| {
            let server = world.server(which).host.clone();
            [&one, &other, &ours].map(|member| connections(&server, member) > 0)
        })
    };
    assert_eq!(placed(&mut world), [[true, false, false], [false, true, true]]);
    let target = other.addresses.of(Family::V4).to_owned();
    let pings = ping(&one.host, format!("-c 20 -i 0.05 -s 1200 {target}"));
    assert!(pings.received + 1 >= pings.sent, "{}", pings.text);

    lose(&mut world, First, &one, &other, "renamed");
    reach_each_other(&[&one, &other, &ours]);
    world.tailnet.coordinator.restart();
    let third = world.join("third", MemberKind::Linerate, First);
    reach_each_other(&[&third, &one, &other, &ours]);
    assert_eq!(placed(&mut world), [[false; 3], [true; 3]], "those that moved stay");

    lose(&mut world, Second, &other, &third, "again");
    all_follow(&mut world, &[&one, &other, &ours, &third]);
}

#[test]
fn direct_peers_lose_nothing_when_their_server_is_killed() {
    let Some(mut world) = World::start() else { return };
    let [one, other] = ["one", "other"].map(|name| {
        let host = world.tailnet.host(name, Uplink::Switch);
        world.join_of(host, MemberKind::Linerate, First)
    });
    one.reaches(&other, Family::V4);
    eventually("they connect directly", PATIENCE, || {
        matches!(one.path_to(&other), Path::Direct(_))
    });
    let target = other.addresses.of(Family::V4);
    let pinging = Pinging::start(&one.host, "directly", &format!("-i 0.02 {target}"));
    pinging.wait_for_replies(50, PATIENCE);
    world.server(First).kill();
    let left = world.second.host.clone();
    eventually("both follow the other server", PATIENCE, || {
        [&one, &other].iter().all(|member| connections(&left, member) > 0)
    });
    pinging.wait_for_replies(100, PATIENCE);
    let pings = pinging.finish();
    announce(&format!("{} of {} pings were answered", pings.received, pings.sent));
    assert!(pings.is_complete(), "{}", pings.text);
}

/// All of them follow the remaining server.
fn all_follow(world: &mut World, members: &[&Member]) {
    reach_each_other(members);
    let server = world.server(First);
    eventually("all are online", PATIENCE, || {
        let nodes = server.nodes();
        nodes.len() == members.len() && nodes.iter().all(|node| node["online"] == true)
    });
}
