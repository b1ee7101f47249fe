use std::{
    fs::File,
    net::IpAddr,
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use netlink_packet_route::link::LinkAttribute;
use nix::sys::socket::{setsockopt, sockopt};

use super::*;
use crate::{testing::in_namespace, tun::Tun};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// All pending events of the monitor.
fn events(monitor: &mut Monitor) -> Vec<Event> {
    // Notifications are queued before the reply, except for those of IPv6, which a work queue
    // sends.
    let mut events = Vec::new();
    let brief = Some(Duration::from_millis(20));
    while crate::poll::readable([std::os::fd::AsFd::as_fd(monitor)], brief).unwrap()[0] {
        while let Some(event) = monitor.try_next().unwrap() {
            events.push(event);
        }
    }
    events
}

#[test]
fn addresses_can_be_added_listed_and_deleted() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let mut all = [net("10.9.0.1/24"), net("10.9.1.1/32"), net("fd00::1/64")];
        for one in all {
            netlink.add_address(info.index, one).unwrap();
        }
        let mut listed = netlink.addresses(info.index).unwrap();
        listed.sort();
        all.sort();
        assert_eq!(listed, all);
        let again = netlink.add_address(info.index, all[0]).unwrap_err();
        assert_eq!(again.errno(), Some(Errno::EEXIST));
        for one in all {
            netlink.delete_address(info.index, one).unwrap();
        }
        assert_eq!(netlink.addresses(info.index).unwrap(), []);
        let absent = netlink.delete_address(info.index, all[0]).unwrap_err();
        assert_eq!(absent.errno(), Some(Errno::EADDRNOTAVAIL));
    });
}

#[test]
fn route_can_be_added_once_listed_and_deleted() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let device = info.index;
        let route = |destination, table, metric| Route {
            destination: net(destination),
            device,
            table,
            metric,
        };
        let down = netlink.add_route(&route("10.8.0.0/16", MAIN_TABLE, None)).unwrap_err();
        assert_eq!(down.errno(), Some(Errno::ENETDOWN));
        netlink.set_up(device).unwrap();
        for (one, family) in [
            (route("10.8.0.0/16", MAIN_TABLE, Some(77)), Family::V4),
            (route("0.0.0.0/0", 51820, Some(5)), Family::V4),
            (route("fd77::/64", MAIN_TABLE, Some(77)), Family::V6),
            (route("::/0", 51820, Some(5)), Family::V6),
        ] {
            netlink.add_route(&one).unwrap();
            let again = netlink.add_route(&one).unwrap_err();
            assert_eq!(again.errno(), Some(Errno::EEXIST));
            let listed = netlink.routes(family, one.table).unwrap();
            assert_eq!(listed.iter().filter(|listed| **listed == one).count(), 1, "{listed:?}");
            assert!(!netlink.routes(family, 4711).unwrap().contains(&one));
            assert!(netlink.tables().unwrap().contains(&one.table));
            netlink.delete_route(&one).unwrap();
            assert!(!netlink.routes(family, one.table).unwrap().contains(&one));
            assert!(!netlink.tables().unwrap().contains(&51820));
            assert_eq!(netlink.delete_route(&one).unwrap_err().errno(), Some(Errno::ESRCH));
        }
        let untruncated = route("10.7.1.2/16", MAIN_TABLE, None);
        netlink.add_route(&untruncated).unwrap();
        let listed = netlink.routes(Family::V4, MAIN_TABLE).unwrap();
        assert_eq!(listed, [route("10.7.0.0/16", MAIN_TABLE, None)]);
    });
}

#[test]
fn ipv6_of_a_link_is_enabled_disabled_or_absent() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let of_link = || netlink.link(info.index).unwrap().unwrap().disable_ipv6;
        assert_eq!(of_link(), Some(false));
        std::fs::write("/proc/sys/net/ipv6/conf/lr0/disable_ipv6", "1").unwrap();
        assert_eq!(of_link(), Some(true));
        netlink.set_mtu(info.index, 1279).unwrap();
        assert_eq!(of_link(), None);
    });
}

#[test]
fn table_with_a_route_of_any_kind_is_in_use() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        netlink.set_up(info.index).unwrap();
        for words in ["unreachable default table 70", "-6 blackhole fd00::/8 table 71"] {
            let (family, words) = words.strip_prefix("-6 ").map_or(("-4", words), |w| ("-6", w));
            let words = [family, "route", "add"].into_iter().chain(words.split(' '));
            assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
        }
        let tables = netlink.tables().unwrap();
        assert!(
            tables.contains(&70) && tables.contains(&71) && !tables.contains(&72),
            "{tables:?}"
        );
    });
}

#[test]
fn connected_networks_are_those_of_other_links_that_are_up_except_tunnels() {
    in_namespace(|netlink| {
        let (_recv, _send, tunnel) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        for (name, end) in [("lan0", "lan1"), ("lan2", "lan3")] {
            let words = ["link", "add", name, "type", "veth", "peer", "name", end];
            assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
        }
        let index = |name| netlink.link_by_name(name).unwrap().unwrap().index;
        let (one, two, down) = (index("lan0"), index("lan1"), index("lan2"));
        for (link, text) in [
            (tunnel.index, "10.9.0.1/24"),
            (one, "192.168.7.1/24"),
            (one, "192.168.8.1/32"),
            (one, "fd07::1/64"),
            (two, "10.2.0.1/16"),
            (down, "10.3.0.1/16"),
        ] {
            netlink.add_address(link, net(text)).unwrap();
        }
        [tunnel.index, one, two].iter().for_each(|link| netlink.set_up(*link).unwrap());
        let connected = netlink.connected_networks(two).unwrap();
        assert_eq!(connected, [net("192.168.7.0/24"), net("fd07::/64")].into());
    });
}

#[test]
fn networks_in_use_are_addresses_routes_and_next_hops_of_other_links() {
    in_namespace(|netlink| {
        let (_recv, _send, tunnel) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let run = |line: &str| {
            let words = line.split(' ');
            assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
        };
        netlink.add_address(tunnel.index, net("10.9.0.1/32")).unwrap();
        netlink.set_up(tunnel.index).unwrap();
        run("link add lan0 type veth peer name lan1");
        run("address add 192.168.7.5/24 dev lan0");
        run("link set lan1 up");
        run("link set lan0 up");
        run("route add 10.20.0.0/16 via 192.168.7.1");
        run("route add default via 172.31.1.1 dev lan0 onlink");
        run("route add 10.9.1.0/24 dev lr0");
        run(
            "route add 10.30.0.0/16 nexthop via 192.168.7.1 nexthop via 172.31.1.3 dev lan0 onlink",
        );
        run("route add 0.0.0.0/1 via 192.168.7.1");
        run("route add blackhole 172.16.0.0/13");
        let in_use = netlink.networks_in_use(tunnel.index).unwrap();
        let is_in_use = |text: &str| in_use.iter().any(|network| network.contains(&net(text)));
        for address in ["192.168.7.9/32", "10.20.3.4/32", "172.31.1.1/32", "172.31.1.3/32"] {
            assert!(is_in_use(address), "{address}: {in_use:?}");
        }
        for address in
            ["10.9.0.1/32", "10.9.1.7/32", "172.31.1.2/32", "10.21.0.1/32", "172.16.0.1/32"]
        {
            assert!(!is_in_use(address), "{address}: {in_use:?}");
        }
    });
}

#[test]
fn rules_of_wg_quick_can_be_added_listed_and_deleted() {
    in_namespace(|netlink| {
        /// The priority of the rule for the main table (ip-rule(8)).
        const MAIN_PRIORITY: u32 = 32766;
        for family in [Family::V4, Family::V6] {
            assert_eq!(netlink.first_rule_priority(family).unwrap(), Some(MAIN_PRIORITY));
            let before = netlink.rules(family).unwrap();
            assert!(before.iter().any(|rule| rule.table == MAIN_TABLE), "{before:?}");
            let marked = Rule {
                family,
                fwmark: Some(FwMark::exact(51820)),
                invert: true,
                table: 51820,
                priority: None,
                suppress_prefix_length: None,
            };
            let suppressed = Rule {
                fwmark: None,
                invert: false,
                table: MAIN_TABLE,
                suppress_prefix_length: Some(0),
                ..marked
            };
            netlink.add_rule(&marked).unwrap();
            netlink.add_rule(&suppressed).unwrap();
            assert_eq!(netlink.first_rule_priority(family).unwrap(), Some(MAIN_PRIORITY - 2));
            let fwmark = Some(FwMark { value: 0x100, mask: 0xff00 });
            let fixed = Rule { priority: Some(100), table: 7, fwmark, ..suppressed };
            netlink.add_rule(&fixed).unwrap();
            assert_eq!(netlink.add_rule(&fixed).unwrap_err().errno(), Some(Errno::EEXIST));
            let added: Vec<_> = netlink
                .rules(family)
                .unwrap()
                .into_iter()
                .filter(|rule| !before.contains(rule))
                .collect();
            let unplaced: Vec<_> =
                added.iter().map(|rule| Rule { priority: None, ..*rule }).collect();
            assert_eq!(unplaced, [Rule { priority: None, ..fixed }, suppressed, marked]);
            assert!(added[1].priority < added[2].priority, "a later rule gets a lower priority");
            for rule in &added {
                netlink.delete_rule(rule).unwrap();
            }
            assert_eq!(netlink.rules(family).unwrap(), before);
            let absent = netlink.delete_rule(&fixed).unwrap_err();
            assert_eq!(absent.errno(), Some(Errno::ENOENT));
        }
    });
}

#[test]
fn rule_is_restored_before_the_others_of_its_priority() {
    in_namespace(|netlink| {
        for family in [Family::V4, Family::V6] {
            let first = Rule {
                family,
                fwmark: None,
                invert: false,
                table: MAIN_TABLE,
                priority: Some(0),
                suppress_prefix_length: Some(0),
            };
            let second = Rule {
                fwmark: Some(FwMark::exact(7)),
                invert: true,
                table: 7,
                suppress_prefix_length: None,
                ..first
            };
            let other = Rule { table: 8, priority: Some(1), ..second };
            let ours = || -> Vec<_> {
                let rules = netlink.rules(family).unwrap().into_iter();
                rules.filter(|rule| [first, second, other].contains(rule)).collect()
            };
            for rule in [other, first, second] {
                netlink.add_rule(&rule).unwrap();
            }
            assert_eq!(ours(), [first, second, other]);
            netlink.delete_rule(&first).unwrap();
            netlink.add_rule_before(&first, &[second, other]).unwrap();
            assert_eq!(ours(), [first, second, other]);
            netlink.delete_rule(&first).unwrap();
            netlink.delete_rule(&second).unwrap();
            netlink.add_rule_before(&first, &[second]).unwrap();
            assert_eq!(ours(), [first, other], "deleted rules are not restored early");
            // Packets never pass without the second rule while the first is restored.
            netlink.add_rule(&second).unwrap();
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let looking = scope.spawn(|| {
                    let netlink = Netlink::open().unwrap();
                    let is_there = || netlink.rules(family).unwrap().contains(&second);
                    let mut gaps = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        gaps += u32::from(!is_there());
                    }
                    gaps
                });
                for _ in 0..300 {
                    netlink.delete_rule(&first).unwrap();
                    netlink.add_rule_before(&first, &[second]).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
                assert_eq!(looking.join().unwrap(), 0);
            });
            assert_eq!(ours(), [first, second, other]);
            netlink.delete_rule(&second).unwrap();
            let exists = netlink.add_rule_before(&first, &[second]).unwrap_err();
            assert_eq!(exists.errno(), Some(Errno::EEXIST));
        }
    });
}

#[test]
fn mtu_towards_an_address_is_that_of_the_interface_of_its_route() {
    in_namespace(|netlink| {
        assert_eq!(netlink.mtu_to(address("192.0.2.1"), 0).unwrap(), None);
        assert_eq!(netlink.mtu_to(address("2001:db8::1"), 0).unwrap(), None);
        assert_eq!(netlink.default_route_mtu().unwrap(), None);
        let (_recv, _send, one) = Tun::create("lr0", 1400, &Arc::default()).unwrap();
        let (_recv, _send, two) = Tun::create("lr1", 1300, &Arc::default()).unwrap();
        for (device, table) in [(one.index, MAIN_TABLE), (two.index, 51820)] {
            netlink.set_up(device).unwrap();
            for destination in [net("0.0.0.0/0"), net("::/0")] {
                let route = Route { destination, device, table, metric: None };
                netlink.add_route(&route).unwrap();
            }
        }
        netlink.add_address(one.index, net("10.9.0.1/24")).unwrap();
        netlink.add_address(one.index, net("fd00::1/64")).unwrap();
        assert_eq!(netlink.default_route_mtu().unwrap(), Some(1400));
        assert_eq!(netlink.default_gateway().unwrap(), None, "these routes have no gateway");
        for (family, to) in [(Family::V4, "192.0.2.1"), (Family::V6, "2001:db8::1")] {
            assert_eq!(netlink.mtu_to(address(to), 0).unwrap(), Some(1400));
            let rule = Rule {
                family,
                fwmark: Some(FwMark::exact(9)),
                invert: true,
                table: 51820,
                priority: None,
                suppress_prefix_length: None,
            };
            netlink.add_rule(&rule).unwrap();
            assert_eq!(netlink.mtu_to(address(to), 0).unwrap(), Some(1300), "into the tunnel");
            assert_eq!(netlink.mtu_to(address(to), 9).unwrap(), Some(1400), "outside the tunnel");
        }
    });
}

#[test]
fn changing_a_missing_link_returns_the_errno() {
    in_namespace(|netlink| {
        assert_eq!(netlink.link_by_name("lr0").unwrap(), None);
        assert_eq!(netlink.link(4711).unwrap(), None);
        assert_eq!(netlink.set_up(4711).unwrap_err().errno(), Some(Errno::ENODEV));
        assert_eq!(netlink.delete_link(4711).unwrap_err().errno(), Some(Errno::ENODEV));
        let names: Vec<_> = netlink.links().unwrap().into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["lo"]);
    });
}

#[test]
fn monitor_reports_each_later_change_once() {
    in_namespace(|netlink| {
        let (recv, send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let index = info.index;
        let mut monitor = Monitor::open().unwrap();
        assert_eq!(events(&mut monitor), []);
        netlink.set_mtu(index, 1300).unwrap();
        assert_eq!(events(&mut monitor), [Event::MtuChanged { index, mtu: 1300 }]);
        netlink.set_up(index).unwrap();
        let up = events(&mut monitor);
        assert!(up.contains(&Event::LinkUp { index }), "{up:?}");
        for one in [net("10.9.0.1/24"), net("fd00::1/64")] {
            netlink.add_address(index, one).unwrap();
            // The event of IPv6 is sent by a work queue.
            let mut added = events(&mut monitor);
            for _ in 0..100 {
                if !added.contains(&Event::AddressesChanged) {
                    added.extend(events(&mut monitor));
                }
            }
            assert!(added.contains(&Event::AddressesChanged), "{added:?}");
            let of_routes = [Event::AddressesChanged, Event::RoutesChanged];
            assert!(added.iter().all(|event| of_routes.contains(event)), "{added:?}");
            let destination =
                if one.addr().is_ipv4() { net("10.8.0.0/16") } else { net("fd08::/64") };
            let route = Route { destination, device: index, table: MAIN_TABLE, metric: None };
            netlink.add_route(&route).unwrap();
            assert_eq!(events(&mut monitor), [Event::RoutesChanged]);
            netlink.delete_route(&route).unwrap();
            assert_eq!(events(&mut monitor), [Event::RoutesChanged]);
            let family = Family::of(destination.addr());
            let rule = Rule {
                family,
                fwmark: None,
                invert: false,
                table: 7,
                priority: Some(7),
                suppress_prefix_length: None,
            };
            netlink.add_rule(&rule).unwrap();
            assert_eq!(events(&mut monitor), [Event::RulesChanged]);
            netlink.delete_rule(&rule).unwrap();
            assert_eq!(events(&mut monitor), [Event::RulesChanged]);
        }
        netlink.set_down(index).unwrap();
        let down = events(&mut monitor);
        assert!(down.contains(&Event::LinkDown { index }), "{down:?}");
        drop((recv, send));
        let deleted = events(&mut monitor);
        assert!(deleted.contains(&Event::LinkDeleted { index }), "{deleted:?}");
    });
}

#[test]
fn waiting_monitor_reports_a_change_and_is_ended_by_its_waker() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let mut monitor = Monitor::open().unwrap();
        let waker = monitor.waker();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let first = monitor.next().unwrap();
                waker();
                while monitor.next().unwrap().is_some() {}
                first
            });
            netlink.set_mtu(info.index, 1280).unwrap();
            let expected = Event::MtuChanged { index: info.index, mtu: 1280 };
            assert_eq!(waiting.join().unwrap(), Some(expected));
        });
    });
}

#[test]
fn monitor_reports_an_overflow_and_continues() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let mut monitor = Monitor::open().unwrap();
        setsockopt(&monitor, sockopt::RcvBuf, &2048).unwrap();
        for round in 0..50 {
            netlink.set_mtu(info.index, 1280 + round).unwrap();
        }
        assert!(events(&mut monitor).contains(&Event::Lost));
        netlink.set_mtu(info.index, 1400).unwrap();
        assert_eq!(events(&mut monitor), [Event::MtuChanged { index: info.index, mtu: 1400 }]);
    });
}

#[test]
fn links_have_their_kind_and_routes_their_device() {
    in_namespace(|netlink| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        netlink.add_address(info.index, net("10.9.0.1/24")).unwrap();
        netlink.set_up(info.index).unwrap();
        let links = netlink.links().unwrap();
        let link = links.iter().find(|link| link.index == info.index).unwrap();
        assert_eq!((link.ethernet, link.bridged, link.mtu), (false, false, 1420));
        let device_to = |to, from| netlink.device_to(address(to), from, 0).unwrap();
        assert_eq!(device_to("10.9.0.7", None), Some(info.index));
        assert_eq!(device_to("10.8.0.7", None), None);
        assert_eq!(device_to("10.9.0.7", Some(address("10.9.0.1"))), Some(info.index));
        assert_eq!(
            device_to("10.9.0.7", Some(address("10.9.0.2"))),
            None,
            "not an address of this host"
        );
    });
}

fn own_namespace() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

/// Moves a link to a network namespace.
fn move_to(netlink: &Netlink, index: u32, namespace: &File) {
    let mut message = link::link_message(index);
    message.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
    netlink.change(RouteNetlinkMessage::SetLink(message), 0).unwrap();
}

fn followed(follow: &mut LinkFollower) -> Vec<LinkChange> {
    std::iter::from_fn(|| follow.try_next().unwrap()).collect()
}

#[test]
fn interface_is_followed_to_another_namespace_and_back() {
    use LinkChange::{Deleted, Down, MovedAway, MovedBack, Mtu, Up};
    in_namespace(|home| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let (index, home_namespace) = (info.index, own_namespace());
        let mut follow = LinkFollower::open(index).unwrap();
        home.set_up(index).unwrap();
        assert_eq!(followed(&mut follow), [Up]);
        let moved = MovedAway { is_visible: true };
        in_namespace(|away| {
            let namespace = own_namespace();
            move_to(home, index, &namespace);
            assert_eq!(followed(&mut follow), [Down, moved, Mtu(1420), Down]);
            away.set_mtu(index, 1300).unwrap();
            away.set_up(index).unwrap();
            assert_eq!(followed(&mut follow), [Mtu(1300), Up]);
            move_to(away, index, &home_namespace);
            assert_eq!(followed(&mut follow), [Down, moved, MovedBack(index), Mtu(1300), Down]);
            home.set_up(index).unwrap();
            assert_eq!(followed(&mut follow), [Up]);
            move_to(home, index, &namespace);
            followed(&mut follow);
            away.delete_link(index).unwrap();
            assert_eq!(followed(&mut follow), [Deleted]);
        });
    });
}

#[test]
fn interface_in_an_invisible_namespace_is_not_confused_with_another() {
    in_namespace(|home| {
        let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let index = info.index;
        let mut follow = LinkFollower::open(index).unwrap();
        in_namespace(|second| {
            let namespace = own_namespace();
            in_namespace(|_| {
                let third = own_namespace();
                move_to(home, index, &namespace);
                move_to(second, index, &third);
            });
            followed(&mut follow);
            // The third namespace has ended. Neither of these links is the followed one.
            let (_recv, _send, other) = Tun::create("other", 1300, &Arc::default()).unwrap();
            second.set_up(other.index).unwrap();
            second.delete_link(other.index).unwrap();
        });
        assert_eq!(followed(&mut follow), []);
    });
}
