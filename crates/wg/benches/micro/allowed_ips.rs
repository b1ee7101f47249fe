use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use wg::AllowedIps;

use crate::measure::{Times, measuring, table, work};

/// Number of addresses to look up, large enough that their tree nodes do not remain in a cache.
const PROBES: u64 = 1 << 16;

/// Looks up addresses that are in a network, with all prefix lengths from /24 or /64 on.
pub(crate) fn lookup() {
    let rows = [10, 1_000, 100_000, 1_000_000].map(|entries: u64| {
        let entries = if measuring() { entries } else { entries.min(1_000) };
        let times = Times::of([false, true].map(|ipv6| {
            let mut table = AllowedIps::default();
            for n in 0..entries {
                table.insert(net(ipv6, n), n as u32);
            }
            let probes: Vec<IpAddr> = (0..PROBES).map(|n| probe(ipv6, n, entries)).collect();
            assert!(probes.iter().all(|address| table.lookup(*address).is_some()));
            let mut probes = probes.into_iter().cycle();
            work(move || table.lookup(black_box(probes.next()?)).copied())
        }));
        [entries.to_string(), format!("{:.1}", times.ns(0)), format!("{:.1}", times.ns(1))]
    });
    table("allowed IPs", ["entries", "IPv4 ns", "IPv6 ns"], &rows);
}

fn net(ipv6: bool, n: u64) -> IpNet {
    let (v4, v6) = addresses(n);
    let net = if ipv6 {
        Ipv6Net::new(v6, 64 + (n % 65) as u8).map(IpNet::from)
    } else {
        Ipv4Net::new(v4, 24 + (n % 9) as u8).map(IpNet::from)
    };
    net.expect("the prefix is not too long").trunc()
}

/// Returns the address of one of the networks.
fn probe(ipv6: bool, n: u64, entries: u64) -> IpAddr {
    let (v4, v6) = addresses(mix(n) % entries);
    if ipv6 { v6.into() } else { v4.into() }
}

fn addresses(n: u64) -> (Ipv4Addr, Ipv6Addr) {
    let bits = mix(n);
    let v6 = 0xfd << 120 | u128::from(bits) << 56 | u128::from(mix(bits) >> 8);
    (Ipv4Addr::from_bits((bits >> 32) as u32), Ipv6Addr::from_bits(v6))
}

/// SplitMix64.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
