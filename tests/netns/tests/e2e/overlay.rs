//! VXLAN inside a tunnel: the kernel sends its super-packets unsplit (Linux 6.17), and each segment has
//! correct headers and checksums.
//!
//! ```text
//!   left: linerate                                           right: a peer
//!   vx0  10.13.0.1/24              . . . . VXLAN  . . . .    vx0  10.13.0.2/24
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//! ```

use std::time::Duration;

use netns::{
    Family, INTERFACE, Implementation, Introduction, Iperf, OVERLAY, Pair, announce, eventually,
    has_vxlan, overlay, skip,
};

/// Bytes of each TCP stream.
const BYTES: u64 = 64 << 20;

const SOON: Duration = Duration::from_secs(10);

/// Longer than any packet of the interface, and shorter than a super-packet.
const LONG: u32 = 10_000;

#[test]
fn vxlan_leaves_in_super_packets_and_arrives_with_correct_checksums() {
    if !has_vxlan() {
        return skip("VXLAN in the kernel");
    }
    // The first one writes single packets to the kernel, which verifies each checksum.
    for peer in [Implementation::Boringtun, Implementation::Linerate] {
        if peer.is_skipped() {
            continue;
        }
        let pair = Pair::start(Implementation::Linerate, peer);
        pair.introduce(Introduction::default());
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        for (outer, checksums, options) in [
            (Family::V4, false, "noudpcsum"),
            (Family::V4, true, "udpcsum"),
            (Family::V6, false, "udp6zerocsumtx udp6zerocsumrx"),
            (Family::V6, true, "noudp6zerocsumtx noudp6zerocsumrx"),
        ] {
            let case = format!("to {peer} over {outer}, with checksums: {checksums}");
            let addresses = [left, right].map(|side| side.inner.of(outer));
            overlay([&left.host, &right.host], addresses, options);
            let is_whole = carries(&pair, &case);
            assert!(is_whole || !has_tunnels(&pair), "{case}: no packet of {LONG} bytes left");
        }
    }
}

/// Sends TCP through it. Returns whether some of it left the kernel in super-packets.
fn carries(pair: &Pair, case: &str) -> bool {
    let (left, right) = (&pair.left.host, &pair.right.host);
    let bad = || {
        let counters = "nstat -asz TcpInCsumErrors UdpInCsumErrors Udp6InCsumErrors";
        right.run(format!("{counters} | awk '!/^#/ {{ sum += $2 }} END {{ print sum }}'"))
    };
    let before = bad();
    let log = "/run/rig/tcpdump.log";
    let watch = format!("timeout 20 tcpdump -Q out -c 1 -i {INTERFACE} greater {LONG} >{log} 2>&1");
    left.run(format!("rm -f {log}"));
    let (rate, seen) = std::thread::scope(|scope| {
        let seen = scope.spawn(|| left.attempt(watch).ok);
        let listens = || left.attempt(format!("grep 'listening on' {log}")).ok;
        eventually("tcpdump listens", SOON, listens);
        let address = OVERLAY[1];
        let rate =
            Iperf { client: left, server: right, address, seconds: 2, options: "" }.carry(BYTES);
        (rate, seen.join().expect("it was watched"))
    });
    announce(&format!("vxlan {case}: {:.2} Gbit/s", rate.gbps()));
    assert_eq!(bad(), before, "{case}: wrong checksums");
    seen
}

/// Whether the kernel sends super-packets of tunnels.
fn has_tunnels(pair: &Pair) -> bool {
    let features = pair.left.host.run(format!("ethtool -k {INTERFACE}"));
    features.lines().any(|line| line.trim() == "tx-udp_tnl-segmentation: on")
}
