//! Routes in a separate network namespace for each test.

use std::{net::Ipv4Addr, sync::Arc, thread};

use ipnet::Ipv4Net;
use nix::sched::{CloneFlags, unshare};
use sys::{Tun, netlink::Link};

use super::*;

const NAME: &str = "lr0";

/// Runs `test` with an interface that is up and has the addresses 10.9.0.1/24 and fd09::1/64.
fn with_interface(test: impl FnOnce(&Netlink, u32) + Send) {
    let run = || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skips::skip("CAP_NET_ADMIN");
        }
        let netlink = Netlink::open().unwrap();
        let (_recv, _send, info) = Tun::create(NAME, 1420, &Arc::default()).unwrap();
        for address in ["10.9.0.1/24", "fd09::1/64"] {
            netlink.add_address(info.index, address.parse().unwrap()).unwrap();
        }
        netlink.set_up(info.index).unwrap();
        test(&netlink, info.index);
    };
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let thread = thread::Builder::new().name(name);
    thread::scope(|scope| thread.spawn_scoped(scope, run).unwrap().join().unwrap());
}

fn add(netlink: &Netlink, device: u32, nets: Vec<IpNet>) -> anyhow::Result<MainRoutes> {
    add_to(Table::Auto, netlink, device, nets)
}

fn add_to(
    table: Table,
    netlink: &Netlink,
    device: u32,
    nets: Vec<IpNet>,
) -> anyhow::Result<MainRoutes> {
    let policy = Policy::default();
    let wanted = WantedRoutes { nets, table, policy: &policy };
    let log = &mut UndoLog::open("linerate-none").unwrap();
    Routes { netlink, wanted, log, interface: NAME, device, own: None }.add()
}

/// This number of networks, each of 2,048 addresses.
fn many(count: u32) -> Vec<IpNet> {
    let net = |number: u32| Ipv4Net::new(Ipv4Addr::from((16 << 24) + number * 4096), 21).unwrap();
    (0..count).map(|number| net(number).into()).collect()
}

#[test]
fn existing_routes_are_read_once_for_all_networks() {
    with_interface(|netlink, device| {
        let cost = |nets: Vec<IpNet>| {
            let before = netlink.requests();
            let main = add(netlink, device, nets).unwrap();
            (main, netlink.requests() - before)
        };
        let (_, of_one) = cost(vec!["10.200.0.0/16".parse().unwrap()]);
        let (mut main, of_many) = cost(many(500));
        assert_eq!(of_many, of_one + 499, "one request for each further route");
        assert_eq!(main.networks().len(), 500);
        let before = netlink.requests();
        main.sync(netlink, None, device).unwrap();
        assert_eq!(netlink.requests() - before, 2, "one for the links and one for the addresses");
    });
}

#[test]
fn tables_are_not_read_without_networks_for_the_main_table() {
    with_interface(|netlink, device| {
        for (table, requests) in [(Table::Off, 0), (Table::Id(1234), 500)] {
            let before = netlink.requests();
            let main = add_to(table, netlink, device, many(500)).unwrap();
            assert_eq!((main.networks().len(), netlink.requests() - before), (0, requests));
        }
    });
}

#[test]
fn free_table_is_found_by_two_requests_after_many_used_ones() {
    with_interface(|netlink, device| {
        let policy = Policy::default();
        let nets = vec!["0.0.0.0/0".parse().unwrap()];
        let wanted = WantedRoutes { nets, table: Table::Auto, policy: &policy };
        let choose = || {
            let before = netlink.requests();
            let own = TunnelTable::choose(netlink, &wanted, 0).unwrap().unwrap();
            (own.table, netlink.requests() - before)
        };
        assert_eq!(choose(), (FIRST_TABLE, 2));
        for table in FIRST_TABLE..FIRST_TABLE + 100 {
            let destination = "10.7.0.0/16".parse().unwrap();
            netlink.add_route(&Route { destination, device, table, metric: None }).unwrap();
        }
        assert_eq!(choose(), (FIRST_TABLE + 100, 2));
    });
}

#[test]
fn network_within_an_existing_route_is_skipped() {
    with_interface(|netlink, device| {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let wanted =
            nets(&["10.9.0.128/25", "10.9.0.0/24", "10.8.0.0/15", "fd09::/80", "fd08::/15"]);
        let main = add(netlink, device, wanted).unwrap();
        assert_eq!(main.networks(), nets(&["10.8.0.0/15", "fd08::/15"]));
    });
}

#[test]
fn error_contains_the_network_of_the_refused_route() {
    with_interface(|netlink, device| {
        let taken: IpNet = "16.0.16.0/21".parse().unwrap();
        let lo = netlink.link_by_name("lo").unwrap().map(|Link { index, .. }| index).unwrap();
        netlink.set_up(lo).unwrap();
        let route = Route { destination: taken, device: lo, table: MAIN_TABLE, metric: None };
        netlink.add_route(&route).unwrap();
        let error = add(netlink, device, many(3)).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&RouteTarget::route(taken)));
        assert_eq!(format!("{error:#}"), "route to 16.0.16.0/21: File exists (os error 17)");
    });
}
