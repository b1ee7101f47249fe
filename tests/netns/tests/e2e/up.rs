//! `linerate up FILE` and `linerate down FILE`, which replace wg-quick.
//!
//! ```text
//!   left: linerate up wg0.conf                               right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//!                                                            lo   192.0.2.1    2001:db8::1
//! ```
//!
//! The two addresses on right's `lo` stand for the world behind a default route.

mod container;
mod crash;
mod dns;
mod endpoints;
mod files;
mod hooks;
mod interface_lock;
mod names;
mod reload;
mod rules;

use std::collections::BTreeSet;
use std::time::Duration;

use netns::{
    Addresses, Host, INTERFACE, Implementation, Key, Outcome, Pair, ShowOutput, Side, Status,
    address, conf, eventually, linerate, ping,
};

const PATIENCE: Duration = Duration::from_secs(15);
/// Addresses of the world behind a default route.
const WORLD: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Everything that `up` may change and `down` must restore.
const STATE: &str = "ip -4 route show table all; ip -6 route show table all; ip -4 rule; \
                     ip -6 rule; ip -o address; nft list ruleset; cat /etc/resolv.conf; \
                     ls /run/wireguard; cd /proc/sys/net; \
                     grep . ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/eth0/accept_ra";

struct World {
    left: Host,
    right: Side,
    key: Key,
    before: BTreeSet<String>,
}

/// Both hosts; the right one has left's key.
fn world() -> World {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    for far in ["192.0.2.1/32", "2001:db8::1/128"] {
        address(&right.host, "lo", far);
    }
    let key = Key::generate();
    right.host.run(format!("wg set wg0 peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public));
    left.run("chmod 700 /run/rig; mkdir -p /run/wireguard");
    resolvconf(&left);
    let before = state(&left);
    World { left, right, key, before }
}

fn state(host: &Host) -> BTreeSet<String> {
    let text = host.run(STATE);
    // The kernel sets link-local addresses and multicast routes of the cable at its own pace.
    let is_settled = |line: &&str| !line.contains("fe80:") && !line.contains("multicast");
    text.lines().filter(is_settled).map(str::to_owned).collect()
}

/// A resolvconf(8) that writes one interface's servers to the host's private /etc/resolv.conf.
fn resolvconf(host: &Host) {
    let script = "#!/bin/sh\ncase $1 in\n\
                  -a) cat >/etc/resolv.conf ;;\n-d) : >/etc/resolv.conf ;;\n\
                  -l) cat /etc/resolv.conf ;;\nesac\n";
    host.write_program("resolvconf", script);
}

impl World {
    /// Writes wg0.conf: keys, addresses, these further lines and the peer with these allowed IPs.
    fn conf(&self, interface_lines: &str, allowed_ips: &str) -> String {
        let peer = format!("Endpoint = 10.1.0.2:51820\nAllowedIPs = {allowed_ips}");
        conf(&self.left, &self.key, &self.right.key, interface_lines, &peer)
    }

    fn linerate(&self, verb: &str, file: &str) -> Outcome {
        linerate(&self.left, &format!("{verb} {file}"))
    }

    fn up(&self, file: &str) {
        let outcome = self.linerate("up", file);
        assert!(outcome.ok, "up failed: {}", outcome.stderr);
    }

    /// `linerate down`, and checks that nothing of the interface remains.
    fn down(&self, file: &str) {
        let outcome = self.linerate("down", file);
        assert!(outcome.ok, "down failed: {}", outcome.stderr);
        self.is_as_before();
    }

    fn is_as_before(&self) {
        let gone = || !self.left.has_device(INTERFACE) && self.left.daemon_of(INTERFACE).is_none();
        eventually("interface and daemon are gone", PATIENCE, gone);
        eventually("the socket is gone", PATIENCE, || !self.left.has("/run/wireguard/wg0.sock"));
        // The rest is reverted after the socket is removed, so that PostDown runs without the
        // interface.
        eventually("the process has ended", PATIENCE, || {
            !self.left.attempt("pgrep -x 'linerate|linerate-guard'").ok
        });
        let after = state(&self.left);
        let left_behind: Vec<_> = after.difference(&self.before).collect();
        let missing: Vec<_> = self.before.difference(&after).collect();
        assert!(left_behind.is_empty(), "left behind: {left_behind:#?}");
        assert!(missing.is_empty(), "missing: {missing:#?}");
    }

    fn reaches(&self, targets: &[&str]) {
        for target in targets {
            let pings = ping(&self.left, format!("-c 3 -i 0.1 -W 5 {target}"));
            assert!(pings.is_complete(), "{target}: {}", pings.text);
        }
    }
}

#[test]
fn a_hook_does_not_inherit_the_file_that_an_argument_names() {
    let host = Host::new("alone");
    let text = format!(
        "[Interface]\nPrivateKey = {}\nPostUp = ls -l /proc/self/fd >/run/rig/files\n",
        Key::generate().private
    );
    let path = host.write_secret("wg0.conf", &text);
    let program = Implementation::Linerate.path();
    host.run(format!("{} up /dev/fd/9 9<{path} </dev/null >/run/rig/log 2>&1", program.display()));
    let files = host.read("/run/rig/files");
    assert!(files.contains("/run/rig/files") && !files.contains("wg0.conf"), "{files}");
}

#[test]
fn addresses_mtu_and_routes_are_set_and_reverted() {
    let world = world();
    let file = world.conf("MTU = 1380", "10.9.0.0/24, fd09::/64, 192.0.2.0/24, 2001:db8::/32");
    world.up(&file);
    let link = world.left.run("ip -o link show wg0; ip -o address show wg0");
    for word in ["mtu 1380", "UP", "10.9.0.1/24", "fd09::1/64"] {
        assert!(link.contains(word), "no {word} in\n{link}");
    }
    let routes = world.left.run("ip -4 route; ip -6 route");
    for route in ["192.0.2.0/24 dev wg0", "2001:db8::/32 dev wg0"] {
        assert!(routes.contains(route), "no {route} in\n{routes}");
    }
    assert_eq!(world.left.run("wg show interfaces").trim(), INTERFACE);
    world.reaches(&["10.9.0.2", "fd09::2", "192.0.2.1", "2001:db8::1"]);
    world.down(&file);
}

#[test]
fn without_an_mtu_line_the_mtu_follows_the_link_to_the_endpoint() {
    for (outer, inner) in [(1500, 1420), (1400, 1320)] {
        let world = world();
        world.left.run(format!("ip link set eth0 mtu {outer}"));
        let file = world.conf("", "10.9.0.0/24");
        world.up(&file);
        let link = world.left.run("ip -o link show wg0");
        assert!(link.contains(&format!("mtu {inner} ")), "outside {outer}: {link}");
        world.down(&file);
    }
}

#[test]
fn a_default_route_uses_the_tunnel_but_the_tunnel_does_not() {
    let world = world();
    let file = world.conf("", "0.0.0.0/0, ::/0");
    world.up(&file);
    for family in ["-4", "-6"] {
        let rules = world.left.run(format!("ip {family} rule"));
        assert!(rules.contains("suppress_prefixlength 0"), "{rules}");
        let rule = rules.lines().find(|line| line.contains("not from all fwmark"));
        let table = rule.and_then(|line| line.split_whitespace().last());
        let table = table.unwrap_or_else(|| panic!("no rule `not fwmark` in\n{rules}"));
        let routes = world.left.run(format!("ip {family} route show table {table}"));
        assert!(routes.contains("default dev wg0"), "{routes}");
    }
    assert_ne!(Status::of(&world.left, INTERFACE).fwmark, "off");
    world.reaches(&["10.9.0.2", "fd09::2", "192.0.2.1", "2001:db8::1"]);
    // The cable itself remains reachable: its route is more specific.
    world.reaches(&["10.1.0.2", "fd01::2"]);
    world.down(&file);
}

#[test]
fn a_default_route_of_one_family_does_not_affect_the_other() {
    let world = world();
    let file = world.conf("", "0.0.0.0/0");
    let rules = world.left.run("ip -6 rule");
    world.up(&file);
    assert_eq!(world.left.run("ip -6 rule"), rules);
    world.reaches(&["192.0.2.1"]);
    world.down(&file);
}

#[test]
fn table_off_adds_no_route() {
    let world = world();
    let file = world.conf("Table = off", "10.9.0.0/24, 192.0.2.0/24, 0.0.0.0/0");
    world.up(&file);
    let routes = world.left.run("ip -4 route show table all");
    assert!(!routes.contains("192.0.2.0/24") && !routes.contains("default"), "{routes}");
    world.reaches(&["10.9.0.2"]);
    world.down(&file);
}

#[test]
fn a_numbered_table_gets_all_the_routes() {
    let world = world();
    let file = world.conf("Table = 1234", "192.0.2.0/24, 0.0.0.0/0, 2001:db8::/32");
    let rules = world.left.run("ip rule; ip -6 rule");
    world.up(&file);
    let routes = world.left.run("ip -4 route show table 1234; ip -6 route show table 1234");
    for route in ["192.0.2.0/24 dev wg0", "default dev wg0", "2001:db8::/32 dev wg0"] {
        assert!(routes.contains(route), "no {route} in\n{routes}");
    }
    assert!(!world.left.run("ip -4 route").contains("192.0.2.0/24"));
    assert_eq!(world.left.run("ip rule; ip -6 rule"), rules);
    world.down(&file);
}

#[test]
fn hooks_run_in_order_with_the_interface_name() {
    let world = world();
    let say = |when: &str| {
        format!(
            "{when} = echo {when} %i $(ip link show %i >/dev/null 2>&1 && echo there) >>/run/rig/hooks\n\
             {when} = echo second {when} >>/run/rig/hooks\n"
        )
    };
    let hooks = ["PreUp", "PostUp", "PreDown", "PostDown"].map(say).concat();
    let file = world.conf(&hooks, "10.9.0.0/24");
    world.up(&file);
    let expected = "PreUp wg0 there\nsecond PreUp\nPostUp wg0 there\nsecond PostUp\n";
    assert_eq!(world.left.read("/run/rig/hooks"), expected);
    world.down(&file);
    let expected =
        format!("{expected}PreDown wg0 there\nsecond PreDown\nPostDown wg0\nsecond PostDown\n");
    assert_eq!(world.left.read("/run/rig/hooks"), expected);
}

#[test]
fn a_failed_hook_reverts_everything() {
    let world = world();
    let file = world.conf("PostUp = false", "10.9.0.0/24, 0.0.0.0/0");
    let outcome = world.linerate("up", &file);
    assert!(!outcome.ok, "up succeeded although a hook failed");
    world.is_as_before();
}

/// Twice: once before the configuration is applied, and once after.
#[test]
fn a_failed_start_does_not_change_the_file_or_run_down_hooks() {
    for (lines, endpoint) in [("", "[fe80::1%nowhere]:1"), ("PostUp = false", "10.1.0.2:51820")] {
        let world = world();
        let log = "/run/rig/down.log";
        let file = world.conf(
            &format!(
                "SaveConfig = true\n{lines}\nPreDown = echo x >{log}\nPostDown = echo x >{log}"
            ),
            "10.9.0.0/24",
        );
        let text = world.left.read(&file).replace("10.1.0.2:51820", endpoint);
        world.left.write("wg0.conf", &text);
        let outcome = world.linerate("up", &file);
        assert!(!outcome.ok, "up succeeded");
        world.is_as_before();
        assert_eq!(world.left.read(&file), text);
        assert!(!world.left.has(log), "a hook ran");
    }
}

/// The route of left's packets to right's address on the cable.
fn route(world: &World) -> String {
    world.left.run("ip route get 10.1.0.2")
}

#[test]
fn a_connected_network_has_precedence_over_a_peers_route() {
    let world = world();
    for lines in ["", "ConnectedFirst = true"] {
        let file = world.conf(lines, "10.9.0.0/24, 10.1.0.0/24");
        let outcome = world.linerate("up", &file);
        assert!(outcome.ok, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("AllowedIPs: this host is connected to 10.1.0.0/24"));
        assert!(route(&world).contains("dev eth0"), "{}", route(&world));
        world.reaches(&["10.9.0.2", "10.1.0.2"]);
        world.down(&file);
    }
}

#[test]
fn a_later_connected_network_has_precedence_until_it_is_removed() {
    let world = world();
    let file = world.conf("", "10.9.0.0/24, 10.77.0.0/24, fd77::/64");
    world.up(&file);
    let leads = |device: &str| {
        // While the routes change, the destination can be unreachable for a moment.
        let ways = world.left.attempt("ip route get 10.77.0.5; ip route get fd77::5").stdout;
        ways.matches(&format!("dev {device}")).count() == 2
    };
    assert!(leads("wg0"), "no routes");
    let connect = |networks: [&str; 2]| {
        networks.into_iter().for_each(|network| address(&world.left, "eth0", network));
    };
    let disconnect = |[v4, v6]: [&str; 2]| {
        world.left.run(format!("ip address del {v4} dev eth0; ip address del {v6} dev eth0"));
    };
    let same = ["10.77.0.9/24", "fd77::9/64"];
    connect(same);
    eventually("the connected networks win", PATIENCE, || leads("eth0"));
    disconnect(same);
    eventually("the peer has its networks again", PATIENCE, || leads("wg0"));

    // A wider prefix removes no route of the tunnel. The routes of the next networks show that
    // these prefixes were checked.
    let wide = ["10.77.0.8/16", "fd77::8/48"];
    connect(wide);
    connect(same);
    eventually("the connected networks win", PATIENCE, || leads("eth0"));
    disconnect(same);
    eventually("the peer has its networks again", PATIENCE, || leads("wg0"));
    disconnect(wide);
    world.down(&file);
}

#[test]
fn a_peers_routes_have_precedence_if_the_file_says_so() {
    let world = world();
    for nets in ["10.9.0.0/24, 10.1.0.0/24", "0.0.0.0/0"] {
        let file = world.conf("ConnectedFirst = false", nets);
        world.up(&file);
        assert!(route(&world).contains("dev wg0"), "{}", route(&world));
        world.reaches(&["10.9.0.2", "10.1.0.2"]);
        world.down(&file);
    }
}

#[test]
fn an_existing_route_is_not_replaced() {
    let world = world();
    let file = world.conf("", "10.9.0.0/24, 192.0.2.0/24");
    world.left.run("ip route add 192.0.2.0/24 via 10.1.0.2");
    let before = world.left.run("ip -4 route show 192.0.2.0/24");
    assert!(!world.linerate("up", &file).ok, "up took the route of eth0");
    assert_eq!(world.left.run("ip -4 route show 192.0.2.0/24"), before);
}

/// A route of the host sends the tunnel's datagrams into the tunnel; then it is removed.
#[test]
fn a_tunnel_routed_into_itself_does_not_loop_and_recovers() {
    let world = world();
    let file = world.conf("Table = off", "10.9.0.0/24, 10.1.0.2/32");
    world.up(&file);
    world.reaches(&["10.9.0.2"]);
    let sent = || world.left.device_count("wg0", "tx_packets");
    let looped = || ShowOutput::of(&world.left, INTERFACE).drops.remove("out loop").unwrap_or(0);
    world.left.run("ip route add 10.1.0.2 dev wg0");
    let before = sent();
    ping(&world.left, "-c 5 -i 0.2 -W 1 10.9.0.2");
    let rounds = sent() - before;
    assert!(looped() >= 5, "{} datagrams looped", looped());
    assert!(rounds < 60, "{rounds} packets went into the tunnel for 5");
    world.left.run("ip route del 10.1.0.2 dev wg0");
    world.reaches(&["10.9.0.2"]);
    world.down(&file);
}

#[test]
fn mark_mask_table_and_priority_are_those_of_the_file() {
    let world = world();
    let lines = "FwMark = 0x100\nFwMask = 0xff00\nDefaultRouteTable = 1000\nRulePriority = 100";
    let file = world.conf(lines, "0.0.0.0/0, ::/0");
    world.up(&file);
    for family in ["-4", "-6"] {
        let rules = world.left.run(format!("ip {family} rule"));
        for rule in [
            "100:\tfrom all lookup main suppress_prefixlength 0",
            "101:\tnot from all fwmark 0x100/0xff00 lookup 1000",
        ] {
            assert!(rules.contains(rule), "no `{rule}` in\n{rules}");
        }
        let routes = world.left.run(format!("ip {family} route show table 1000"));
        assert!(routes.contains("default dev wg0"), "{routes}");
    }
    assert_eq!(Status::of(&world.left, INTERFACE).fwmark, "0x100");
    // Only the bits of the mask count, and only these are changed.
    world.left.run("ip route add default via 10.1.0.2");
    for (mark, device) in [("0x1", "wg0"), ("0x10101", "eth0"), ("0x300", "wg0")] {
        let route = world.left.run(format!("ip route get 192.0.2.1 mark {mark}"));
        assert!(route.contains(&format!("dev {device}")), "mark {mark}: {route}");
    }
    let filter = world.left.run("nft list table inet linerate-wg0");
    for rule in [
        "meta mark & 0x0000ff00 == 0x00000100 ct mark set ct mark & 0xffff01ff | 0x00000100",
        "ct mark & 0x0000ff00 == 0x00000100 meta mark set meta mark & 0xffff01ff | 0x00000100",
    ] {
        assert!(filter.contains(rule), "no `{rule}` in\n{filter}");
    }
    world.reaches(&["10.9.0.2", "fd09::2", "192.0.2.1", "2001:db8::1"]);
    world.left.run("ip route del default via 10.1.0.2");
    world.down(&file);
}

#[test]
fn save_config_writes_what_changed_at_run_time() {
    let world = world();
    let file = world.conf("SaveConfig = true\nMTU = 1390", "10.9.0.0/24");
    world.up(&file);
    let added = Key::generate().public;
    world.left.run(format!("wg set wg0 peer {added} allowed-ips 10.9.7.0/24"));
    let outcome = world.linerate("down", &file);
    assert!(outcome.ok, "{}", outcome.stderr);
    world.is_as_before();
    let saved = world.left.read(&file);
    let kept = [&added, &world.right.key.public, &world.key.private];
    for word in kept.map(String::as_str).into_iter().chain(["10.9.0.1/24", "1390", "SaveConfig"]) {
        assert!(saved.contains(word), "no {word} in\n{saved}");
    }
    world.up(&file);
    assert_eq!(Status::of(&world.left, INTERFACE).peers.len(), 2);
    world.reaches(&["10.9.0.2"]);
}

#[test]
fn sigterm_to_the_daemon_reverts_everything() {
    let world = world();
    let file = world.conf("", "0.0.0.0/0, ::/0");
    world.up(&file);
    world.reaches(&["192.0.2.1"]);
    let pid = world.left.daemon_of(INTERFACE).expect("the daemon runs");
    world.left.run(format!("kill -TERM {pid}"));
    world.is_as_before();
}

#[test]
fn a_signal_is_either_ignored_or_reverts_everything() {
    let world = world();
    let file = world.conf("PostDown = true", "0.0.0.0/0, ::/0");
    world.up(&file);
    let daemon = || world.left.daemon_of(INTERFACE).expect("the daemon runs");
    for signal in ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "STKFLT", "XFSZ", "RTMIN+3"] {
        // The guardian and the helper get it as well.
        world.left.run(format!("kill -{signal} {0} $(pgrep -P {0})", daemon()));
    }
    world.reaches(&["192.0.2.1"]);
    for signal in ["QUIT", "PWR", "XCPU"] {
        world.left.run(format!("kill -{signal} {}", daemon()));
        world.is_as_before();
        world.up(&file);
    }
    world.down(&file);
}

#[test]
fn a_second_up_is_refused_without_effect() {
    let world = world();
    let file = world.conf("", "10.9.0.0/24");
    world.up(&file);
    let outcome = world.linerate("up", &file);
    assert!(!outcome.ok && !outcome.stderr.trim().is_empty(), "{outcome:?}");
    world.reaches(&["10.9.0.2"]);
    world.down(&file);
    let outcome = world.linerate("down", &file);
    assert!(!outcome.ok && !outcome.stderr.trim().is_empty(), "{outcome:?}");
}

#[test]
fn an_error_in_the_file_is_reported_with_file_line_and_key() {
    let world = world();
    let key = &world.key.private;
    let good = format!("[Interface]\nPrivateKey = {key}\n");
    for (line, name, text) in [
        (5, "AllowedIPs", format!("{good}[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/33\n")),
        (2, "PrivateKey", "[Interface]\nPrivateKey = short\n".to_owned()),
        (3, "ListenPort", format!("{good}ListenPort = 70000\n")),
        (3, "Address", format!("{good}Address = 10.9.0.256\n")),
        (4, "MTU", format!("{good}# a comment\nMTU = large\n")),
        (3, "Nonsense", format!("{good}Nonsense = 1\n")),
        (4, "Endpoint", format!("{good}[Peer]\nEndpoint = 10.0.0.1\nPublicKey = {key}\n")),
        (3, "Table", format!("{good}Table = some\n")),
        (3, "FwMask", format!("{good}FwMask = 0xff\n")),
        (3, "OfferRoutes", format!("{good}OfferRoutes = lan\n")),
    ] {
        let file = world.left.write("wg0.conf", &text);
        let outcome = world.linerate("up", &file);
        assert!(!outcome.ok, "accepted:\n{text}");
        let wanted = format!("{file}:{line}: {name}");
        assert!(outcome.stderr.contains(&wanted), "no `{wanted}` in `{}`", outcome.stderr);
        let is_safe = name != "PrivateKey" || !outcome.stderr.contains(key.as_str());
        assert!(is_safe, "a private key was printed");
        world.is_as_before();
    }
}

#[test]
fn a_proxy_refuses_what_only_up_understands() {
    let host = Host::new("host");
    host.run("chmod 700 /run/rig");
    let key = Key::generate().private;
    let lines = "Address = 10.9.0.1/24\nSocks5 = 127.0.0.1:1080\nIpForward = true";
    let file = host.write("wg0.conf", &format!("[Interface]\nPrivateKey = {key}\n{lines}\n"));
    let outcome = linerate(&host, &format!("proxy {file}"));
    let wanted = format!("{file}:5: IpForward: only `linerate up` uses this key");
    assert!(!outcome.ok && outcome.stderr.contains(&wanted), "{}", outcome.stderr);
}
