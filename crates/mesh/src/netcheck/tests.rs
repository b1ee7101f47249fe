//! Checks on virtual time, with relays that answer or not.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng as _};

use super::*;

/// A network of relays.
struct World {
    netcheck: Netcheck,
    now: Duration,
    /// The latency of each server in milliseconds, and the address that it observes.
    servers: BTreeMap<SocketAddr, (u64, SocketAddr)>,
    requests: Vec<SocketAddr>,
    /// The number of next requests that are lost.
    lost: usize,
    /// The TCP latency in milliseconds; `None` if it fails.
    tcp: BTreeMap<u16, Option<u64>>,
}

const OWN: &str = "198.51.100.1:41641";
const OWN_V6: &str = "[2001:db8::1]:41641";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn node(host: &str, ipv4: &str, ipv6: &str) -> DerpNode {
    DerpNode { host_name: host.into(), ipv4: ipv4.into(), ipv6: ipv6.into(), ..DerpNode::default() }
}

fn map(regions: impl IntoIterator<Item = (u16, Vec<DerpNode>)>) -> DerpMap {
    let regions = regions.into_iter().map(|(id, nodes)| {
        (id, Some(DerpRegion { region_id: id, nodes, ..DerpRegion::default() }))
    });
    DerpMap { regions: Some(regions.collect()), ..DerpMap::default() }
}

/// Returns regions 1 to 6 with one node in both families. Each is 10 ms farther away.
fn six() -> World {
    let ids = 1..=6;
    let map = map(ids
        .clone()
        .map(|id| (id, vec![node("n", &format!("192.0.2.{id}"), &format!("2001:db8:1::{id}"))])));
    let servers = ids.flat_map(|id| {
        let ms = 10 * u64::from(id);
        let v4 = (addr(&format!("192.0.2.{id}:3478")), (ms, addr(OWN)));
        [v4, (addr(&format!("[2001:db8:1::{id}]:3478")), (ms + 1, addr(OWN_V6)))]
    });
    World::new(&map, servers.collect())
}

impl World {
    fn new(map: &DerpMap, servers: BTreeMap<SocketAddr, (u64, SocketAddr)>) -> Self {
        let mut netcheck = Netcheck::new(Box::new(ChaCha8Rng::seed_from_u64(1)));
        netcheck.set_map(map, Scope::default());
        let (now, requests) = (Duration::from_secs(1000), Vec::new());
        Self { netcheck, now, servers, requests, lost: 0, tcp: BTreeMap::new() }
    }

    /// Runs a check to its end.
    fn check(&mut self) -> Report {
        self.requests.clear();
        self.netcheck.start(self.now);
        let mut answers: BTreeMap<Duration, Vec<Vec<u8>>> = BTreeMap::new();
        loop {
            while let Some((server, request)) = self.netcheck.poll_transmit(self.now) {
                self.requests.push(server);
                if self.lost > 0 {
                    self.lost -= 1;
                    continue;
                }
                let Some((ms, own)) = self.servers.get(&server) else { continue };
                let tx = request[8..20].try_into().unwrap();
                let at = self.now + Duration::from_millis(*ms);
                answers.entry(at).or_default().push(stun::response(tx, *own));
            }
            if let Some(report) = self.netcheck.poll_report(self.now) {
                return report;
            }
            while let Some(region) = self.netcheck.poll_tcp_probe() {
                if let Some(latency) = self.tcp.get(&region) {
                    let latency = latency.map(Duration::from_millis);
                    self.netcheck.handle_tcp_latency(region, latency);
                }
            }
            if let Some(report) = self.netcheck.poll_report(self.now) {
                return report;
            }
            let timeout = self.netcheck.poll_timeout().expect("a check has an end");
            let answer = answers.first_key_value().map(|(at, _)| *at);
            self.now = answer.unwrap_or(timeout).min(timeout).max(self.now);
            for answer in answers.remove(&self.now).into_iter().flatten() {
                self.netcheck.handle_stun_response(&answer, self.now);
            }
        }
    }

    fn requests(&self, server: &str) -> usize {
        self.requests.iter().filter(|requests| **requests == addr(server)).count()
    }
}

#[test]
fn first_check_measures_all_regions() {
    let mut world = six();
    let report = world.check();
    assert_eq!(report.latencies[&1], Duration::from_millis(10));
    assert_eq!(report.v6_latencies[&1], Duration::from_millis(11));
    assert!(report.udp);
    for id in 1..=6 {
        assert!(world.requests(&format!("192.0.2.{id}:3478")) > 0, "region {id}");
    }
    assert_eq!(report.global(false), [addr(OWN)]);
    assert_eq!(report.global(true), [addr(OWN_V6)]);
    assert_eq!(report.mapping_varies(), Some(false));
    // The third region answered after 30 ms. The others have twice that time.
    assert!(world.now - report.began <= Duration::from_millis(100), "{:?}", world.now);
}

#[test]
fn later_checks_measure_the_three_fastest_and_the_home() {
    let mut world = six();
    world.check();
    world.netcheck.set_home(Some(6));
    world.now += Duration::from_secs(25);
    let report = world.check();
    assert!(report.latencies.keys().all(|id| [1, 2, 3, 6].contains(id)), "{report:?}");
    assert_eq!((world.requests("192.0.2.4:3478"), world.requests("192.0.2.5:3478")), (0, 0));
    assert!(world.requests("192.0.2.6:3478") > 0);
    world.now += FULL_EVERY;
    world.check();
    assert!(world.requests("192.0.2.4:3478") > 0, "all of them after five minutes");
}

#[test]
fn lost_requests_are_repeated_and_three_losses_do_not_hide_the_home() {
    let mut world = six();
    world.netcheck.set_families(Families { v4: true, v6: false });
    world.check();
    world.netcheck.set_home(Some(1));
    world.servers.retain(|server, _| *server == addr("192.0.2.1:3478"));
    world.lost = 6;
    let report = world.check();
    assert_eq!(report.latencies.keys().collect::<Vec<_>>(), [&1]);
}

#[test]
fn symmetric_nat_is_reported() {
    let mut world = six();
    world.servers.get_mut(&addr("192.0.2.2:3478")).unwrap().1 = addr("198.51.100.1:7");
    let report = world.check();
    assert_eq!(report.mapping_varies(), Some(true));
    assert_eq!(report.global(false), [addr(OWN)], "one server's view is of no use to others");
    let one = [(1, vec![node("", "192.0.2.1", "none")])];
    let mut world = World::new(&map(one), world.servers);
    assert_eq!(world.check().mapping_varies(), None, "one server says nothing");
}

#[test]
fn blocked_udp_is_detected_after_three_seconds_and_tcp_is_measured() {
    let mut world = six();
    world.servers.clear();
    world.tcp = (1..=6).map(|id| (id, Some(u64::from(id) * 10).filter(|_| id > 4))).collect();
    let report = world.check();
    assert!(!report.udp && report.reflexive_addresses.is_empty());
    assert_eq!(report.latencies.keys().collect::<Vec<_>>(), [&5, &6]);
    assert_eq!(world.now - report.began, STUN_TIMEOUT);
    let info = serde_json::to_value(report.net_info(Some(5), true)).unwrap();
    assert_eq!((&info["WorkingUDP"], &info["PreferredDERP"]), (&false.into(), &5.into()));
    world.tcp.remove(&3);
    let report = world.check();
    assert_eq!(world.now - report.began, STUN_TIMEOUT + TCP_TIMEOUT);
}

#[test]
fn relays_without_addresses_wait_for_the_look_up() {
    let map = map([(7, vec![node("relay.example", "", "none")])]);
    let server = addr("192.0.2.7:3478");
    let mut world = World::new(&map, [(server, (20, addr(OWN)))].into());
    world.netcheck.start(world.now);
    assert_eq!(world.netcheck.poll_transmit(world.now), None);
    assert_eq!(world.netcheck.poll_timeout(), Some(world.now + STUN_TIMEOUT), "nothing to do");
    assert_eq!(world.netcheck.poll_lookup().as_deref(), Some("relay.example"));
    assert_eq!(world.netcheck.poll_lookup(), None, "requests once");
    world.now += Duration::from_millis(500);
    world.netcheck.handle_address("relay.example", vec![server.ip()]);
    let report = world.check();
    assert_eq!(report.latencies[&7], Duration::from_millis(20));
    world.now += FULL_EVERY;
    world.netcheck.start(world.now);
    assert_eq!(world.netcheck.poll_lookup().as_deref(), Some("relay.example"), "looked up again");
    world.netcheck.handle_address("relay.example", Vec::new());
    assert_eq!(world.check().latencies.len(), 1, "what was known is used");
}

#[test]
fn missing_address_families_are_not_probed() {
    let nodes = vec![node("192.0.2.9", "", "none")];
    let mut world = World::new(&map([(1, nodes)]), BTreeMap::new());
    world.check();
    assert!(!world.requests.is_empty() && world.requests.iter().all(|server| server.is_ipv4()));
    let mut world = six();
    world.netcheck.set_families(Families { v4: false, v6: true });
    world.check();
    assert!(!world.requests.is_empty() && world.requests.iter().all(|server| server.is_ipv6()));
    let no_stun = DerpNode { stun_port: -1, ..node("", "192.0.2.1", "") };
    let mut world = World::new(&map([(1, vec![no_stun])]), BTreeMap::new());
    world.check();
    assert!(world.requests.is_empty());
}

#[test]
fn unexpected_answer_is_ignored() {
    let mut world = six();
    let stray = stun::response([9; 12], addr(OWN));
    assert!(!world.netcheck.handle_stun_response(&stray, world.now));
    world.netcheck.start(world.now);
    assert!(!world.netcheck.handle_stun_response(&stray, world.now));
    assert!(!world.netcheck.handle_stun_response(b"junk", world.now));
    let (_, request) = world.netcheck.poll_transmit(world.now).unwrap();
    let answer = stun::response(request[8..20].try_into().unwrap(), addr(OWN));
    assert!(world.netcheck.handle_stun_response(&answer, world.now));
    assert!(!world.netcheck.handle_stun_response(&answer, world.now), "each counts once");
}

#[test]
fn net_info_has_the_json_of_tailscale() {
    let info = six().check().net_info(Some(1), true);
    let info = serde_json::to_value(info).unwrap();
    assert_eq!(info["MappingVariesByDestIP"], false);
    assert_eq!(info["WorkingIPv6"], true);
    assert_eq!(info["OSHasIPv6"], true);
    assert_eq!(info["PreferredDERP"], 1);
    assert_eq!(info["DERPLatency"]["1-v4"], 0.01);
}

#[test]
fn next_check_is_due_after_20_to_26_seconds() {
    let mut world = six();
    world.check();
    let wait = world.netcheck.due() - world.now;
    assert!((EVERY..EVERY + Duration::from_secs(6)).contains(&wait), "{wait:?}");
}

#[test]
fn servers_on_loopback_are_probed_only_for_a_local_coordinator() {
    let by = |ipv4: &str, ipv6: &str, test_ip: &str| DerpNode {
        stun_test_ip: test_ip.into(),
        ..node("relay.example", ipv4, ipv6)
    };
    let map = map([
        (1, vec![by("127.0.0.1", "::1", "")]),
        (2, vec![by("", "", "127.0.0.1")]),
        (3, vec![by("none", "::ffff:127.0.0.1", "")]),
        (4, vec![node("127.0.0.1", "", "none")]),
        (
            5,
            vec![
                by("0.0.0.0", "::", ""),
                by("224.0.0.1", "ff02::1", ""),
                by("255.255.255.255", "", ""),
            ],
        ),
        // Region 6 has addresses from a DNS answer.
        (6, vec![by("", "", "")]),
        (7, vec![by("192.0.2.1", "none", "")]),
    ]);
    let here = Scope::of_control(&"http://127.0.0.1".parse().unwrap(), "");
    for (scope, is_here) in [(Scope::default(), false), (here, true)] {
        let mut world = World::new(&map, BTreeMap::new());
        world.netcheck.set_map(&map, scope);
        let found = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap()).to_vec();
        world.netcheck.handle_address("relay.example", found);
        world.check();
        let requests: BTreeSet<SocketAddr> = world.requests.iter().copied().collect();
        let expected: &[&str] = match is_here {
            false => &["192.0.2.1:3478"],
            true => &["127.0.0.1:3478", "192.0.2.1:3478", "[::1]:3478", "[::ffff:127.0.0.1]:3478"],
        };
        let expected: BTreeSet<SocketAddr> = expected.iter().map(|text| addr(text)).collect();
        assert_eq!(requests, expected);
    }
}

#[test]
fn reflexive_address_on_loopback_is_ignored() {
    for own in ["127.0.0.1:631", "169.254.169.254:80", "224.0.0.251:5353", "[::1]:631"] {
        let mut world = six();
        world.servers.values_mut().for_each(|(_, seen)| *seen = addr(own));
        let report = world.check();
        assert_eq!((report.udp, &report.reflexive_addresses[..]), (false, &[][..]), "{own}");
        let requests = |at: &SocketAddr| *at == addr(own);
        assert!(!world.requests.iter().any(requests), "{own}: {:?}", world.requests);
    }
}
