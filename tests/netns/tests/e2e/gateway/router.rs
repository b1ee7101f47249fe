//! The exit's side: forwarding, source addresses, and packet sizes.

use netns::{
    Capture, Direction, Family, Frame, Host, INTERFACE, Iperf, ShowOutput, announce, eventually,
    forced_off, linerate,
};

use crate::gateway::page;
use crate::gateway::{EXIT, Hosts, PATIENCE, WORLD, answers, down};

/// A host behind the client, connected to the world.
const INSIDE: [&str; 2] = ["10.11.0.2", "fd11::2"];
/// The client as that host's router.
const GATEWAY: [&str; 2] = ["10.11.0.1", "fd11::1"];

/// ```text
///   inside              client  . . tunnel . .  exit               world
///   10.11.0.2 ---- 10.11.0.1                      10.12.0.1 ---- 10.12.0.2
/// ```
fn inside(hosts: &Hosts) -> Host {
    let inside = Host::new("inside");
    netns::cable(&inside, "eth0", &hosts.client, "eth1", 1500);
    for (host, device, addresses) in [(&inside, "eth0", INSIDE), (&hosts.client, "eth1", GATEWAY)] {
        for (address, length) in addresses.into_iter().zip([24, 64]) {
            netns::address(host, device, &format!("{address}/{length}"));
        }
    }
    for gateway in GATEWAY {
        inside.run(format!("ip route add default via {gateway}"));
    }
    inside
}

/// Both ends as routers, each for the network behind it. With masquerade, the exit hides the tunnel
/// from the world, which then needs no route back.
fn site_to_site(masquerade: bool) -> (Hosts, Host) {
    let hosts = Hosts::new();
    let inside = inside(&hosts);
    if !masquerade {
        for exit in EXIT {
            hosts.world.run(format!("ip route add default via {exit}"));
        }
    }
    let offered = format!(
        "OfferRoutes = 10.12.0.0/24, fd12::/64\nIpForward = true\nMasquerade = {masquerade}"
    );
    hosts.exit_up(&offered, "10.9.0.1/32, fd09::1/128, 10.11.0.0/24, fd11::/64");
    hosts.client_up(
        Family::V4,
        "OfferRoutes = 10.11.0.0/24, fd11::/64\nIpForward = true",
        "10.9.0.2/32, fd09::2/128, 10.12.0.0/24, fd12::/64",
    );
    for target in WORLD {
        eventually("the tunnel works", PATIENCE, || answers(&inside, target));
    }
    (hosts, inside)
}

/// Captured Ethernet frames of one direction.
fn packets(frames: &[Frame], direction: Direction) -> impl Iterator<Item = &Frame> {
    frames.iter().filter(move |frame| frame.direction == direction)
}

/// The sources of the echo requests that a host received.
fn askers(frames: &[Frame]) -> Vec<String> {
    let asker = |frame: &Frame| {
        let packet = frame.bytes.get(14..)?;
        match (
            packet.first()? >> 4,
            packet.get(9)?,
            packet.get(20)?,
            packet.get(6)?,
            packet.get(40),
        ) {
            (4, 1, 8, ..) => {
                let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
                Some(std::net::Ipv4Addr::from(source).to_string())
            }
            (6, _, _, 58, Some(128)) => {
                let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
                Some(std::net::Ipv6Addr::from(source).to_string())
            }
            _ => None,
        }
    };
    let mut askers: Vec<_> = packets(frames, Direction::In).filter_map(asker).collect();
    askers.dedup();
    askers
}

#[test]
fn the_world_sees_the_exit_with_masquerade_and_the_host_without() {
    for (masquerade, seen) in [(true, EXIT), (false, INSIDE)] {
        let (hosts, inside) = site_to_site(masquerade);
        let capture = Capture::start(&hosts.world, "eth0");
        for target in WORLD {
            assert!(answers(&inside, target), "masquerade {masquerade}: {target} is unreachable");
        }
        assert_eq!(askers(&capture.finish()), seen, "masquerade {masquerade}");
        let back = INSIDE.map(|target| answers(&hosts.world, target));
        assert_eq!(back, [!masquerade; 2], "masquerade {masquerade}");
    }
}

#[test]
fn other_destinations_are_refused_and_settings_are_restored() {
    let (hosts, inside) = site_to_site(false);
    // Into the outer network, to which the exit could forward.
    hosts.client.run("ip route add 10.2.0.254 dev wg0; ip route add fd02::254 dev wg0");
    hosts.client.run(format!(
        "wg set {INTERFACE} peer {} allowed-ips \
         10.9.0.0/24,fd09::2/128,10.2.0.254/32,fd02::254/128",
        hosts.keys[1].public
    ));
    let is_refused = |family| {
        let target = netns::Addresses::new(2, 254);
        let pings = netns::ping(&inside, format!("-c 2 -i 0.2 -W 1 {}", target.of(family)));
        assert_eq!(pings.received, 0, "{}", pings.text);
        let refused = ["filtered", "prohibited"].iter().any(|word| pings.text.contains(word));
        assert!(refused, "{family}: {}", pings.text);
    };
    Family::ALL.into_iter().for_each(is_refused);
    // A kernel before 6.2 does not rename an interface that is up.
    if hosts.exit.attempt(format!("ip link set {INTERFACE} name other")).ok {
        Family::ALL.into_iter().for_each(is_refused);
        hosts.exit.run(format!("ip link set other name {INTERFACE}"));
    }
    // Traffic between peers is allowed: this packet is routed into the tunnel again, which has no
    // such peer.
    let pings = netns::ping(&hosts.client, "-c 2 -i 0.2 -W 1 10.9.0.77");
    assert!(!pings.text.contains("filtered"), "{}", pings.text);
    let drops = ShowOutput::of(&hosts.exit, INTERFACE).drops;
    assert!(drops.get("out no peer").is_some_and(|count| *count >= 2), "{drops:?}");
    let settings = "cd /proc/sys/net; cat ipv4/ip_forward ipv6/conf/all/forwarding \
                    ipv6/conf/eth0/accept_ra ipv6/conf/eth1/accept_ra";
    assert_eq!(hosts.exit.run(settings), "1\n1\n2\n2\n");
    down(&hosts.exit);
    assert_eq!(hosts.exit.run(settings), "0\n0\n1\n1\n");
    assert_eq!(hosts.exit.run("nft list ruleset"), "");
}

/// A replacement for nft(8) that fails.
#[test]
fn without_nft_a_full_tunnel_comes_up_but_a_router_does_not() {
    let host = Host::new("host");
    host.run("chmod 700 /run/rig");
    host.write_program("nft", "#!/bin/sh\nexit 1\n");
    let up = |lines: &str| {
        let [own, other] = [netns::Key::generate(), netns::Key::generate()];
        let text = format!(
            "[Interface]\nPrivateKey = {}\n{lines}\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 0.0.0.0/0\n",
            own.private, other.public
        );
        linerate(&host, &format!("up {}", host.write("wg0.conf", &text)))
    };
    let router = up("OfferRoutes = 10.12.0.0/24");
    assert!(!router.ok && router.stderr.contains("OfferRoutes: nft:"), "{}", router.stderr);
    assert_eq!(host.run("ls /run/wireguard"), "");
    assert_eq!(host.run("ip rule | wc -l"), "3\n");
    let full = up("");
    assert!(full.ok && full.stderr.contains("no packet filter"), "{}", full.stderr);
    down(&host);
    assert_eq!(host.run("ls /run/wireguard"), "");
}

/// nft(8) records whether the kernel forwards when it is called.
#[test]
fn forwarding_is_off_before_the_packet_filter_is_removed() {
    let host = Host::new("host");
    host.run("chmod 700 /run/rig");
    host.wrap_program("nft", "cat /proc/sys/net/ipv4/ip_forward >>/run/rig/at");
    let key = netns::Key::generate().private;
    let text =
        format!("[Interface]\nPrivateKey = {key}\nOfferRoutes = 10.12.0.0/24\nIpForward = true\n");
    let file = host.write_secret("wg1.conf", &text);
    let outcome = linerate(&host, &format!("up {file}"));
    assert!(outcome.ok, "{}", outcome.stderr);
    assert_eq!(host.run("cat /proc/sys/net/ipv4/ip_forward; : >/run/rig/at"), "1\n");
    assert!(linerate(&host, &format!("down {file}")).ok);
    let at = host.read("/run/rig/at");
    assert!(at.starts_with("0\n") && !at.contains('1'), "{at}");
    assert_eq!(host.run("nft list ruleset"), "");
}

/// With a second interface the kernel forwards until that one goes down, too.
#[test]
fn the_last_forwarding_interface_restores_the_setting() {
    let host = Host::new("host");
    host.run("chmod 700 /run/rig");
    let setting = || host.run("cat /proc/sys/net/ipv4/ip_forward").trim().to_owned();
    let files = ["wg1", "wg2"].map(|name| {
        let key = netns::Key::generate().private;
        let text = format!("[Interface]\nPrivateKey = {key}\nIpForward = true\n");
        host.write(&format!("{name}.conf"), &text)
    });
    for (down, up) in [(0, 1), (1, 0)] {
        assert_eq!(setting(), "0");
        for file in &files {
            assert!(linerate(&host, &format!("up {file}")).ok);
        }
        for (index, expected) in [(down, "1"), (up, "0")] {
            assert!(linerate(&host, &format!("down {}", files[index])).ok);
            assert_eq!(setting(), expected);
        }
    }
}

#[test]
fn without_ip_forward_nothing_is_set_and_a_warning_is_printed() {
    let hosts = Hosts::new();
    let output = hosts.exit_up("OfferRoutes = 10.12.0.0/24", "10.9.0.1/32");
    assert!(output.contains("OfferRoutes: the kernel does not forward"), "{output}");
    assert_eq!(hosts.exit.run("cat /proc/sys/net/ipv4/ip_forward").trim(), "0");
}

#[test]
fn a_router_warns_about_devices_without_udp_gro_forwarding() {
    let host = Host::new("host");
    let world = Host::new("world");
    for device in ["eth0", "eth1", "eth2"] {
        netns::cable(&host, device, &world, device, 1500);
    }
    host.run("chmod 700 /run/rig; ip link set eth2 down; ethtool -K eth0 rx-udp-gro-forwarding on");
    let output = |lines: &str| {
        let key = netns::Key::generate().private;
        let text = format!("[Interface]\nPrivateKey = {key}\n{lines}\n");
        let file = host.write(&format!("{INTERFACE}.conf"), &text);
        let program = netns::Implementation::Linerate.path();
        let (log, program) = ("/run/rig/verbose.log", program.display());
        host.run(format!("LOG_LEVEL=verbose {program} up {file} </dev/null >{log} 2>&1"));
        down(&host);
        host.read(log)
    };
    let offered = output("OfferRoutes = 10.12.0.0/24");
    assert!(offered.contains("from eth1 is forwarded datagram by datagram"), "{offered}");
    host.run("ethtool -K eth1 rx-udp-gro-forwarding on");
    let offered = output("OfferRoutes = 10.12.0.0/24");
    assert!(offered.contains("sandbox") && !offered.contains("datagram by datagram"), "{offered}");
    host.run("ethtool -K eth1 rx-udp-gro-forwarding off");
    assert!(!output("").contains("datagram by datagram"), "without routes there is no warning");
}

/// The MSS option of a SYN (RFC 9293 section 3.2).
fn mss(frame: &Frame) -> Option<u16> {
    const SYN: u8 = 2;
    let packet = frame.bytes.get(14..)?;
    let (protocol, at) = match packet.first()? >> 4 {
        4 => (packet[9], 20),
        _ => (packet[6], 40),
    };
    let header = packet.get(at..).filter(|_| protocol == 6)?;
    // The kernel writes it first.
    let option = header.get(20..24).filter(|option| option[..2] == [2, 4])?;
    (header[13] & SYN != 0).then(|| u16::from_be_bytes([option[2], option[3]]))
}

fn opens(hosts: &Hosts, inside: &Host, target: &str) -> Vec<u16> {
    let captures = [&hosts.world, inside].map(|host| Capture::start(host, "eth0"));
    let host = if target.contains(':') { format!("[{target}]") } else { target.to_owned() };
    inside.run(format!("curl -sS --max-time 20 http://{host}:{}/", page::PORT));
    let input = captures.map(|capture| {
        let frames = capture.finish();
        packets(&frames, Direction::In).find_map(mss)
    });
    input.into_iter().flatten().collect()
}

/// Both hosts have an MTU of 1500, and the tunnel has 1420, of which 40 or 60 bytes are headers.
#[test]
fn both_ends_of_a_connection_get_an_mss_that_fits_the_tunnel() {
    let (hosts, inside) = site_to_site(false);
    page::serve(&hosts.world, WORLD);
    assert_eq!(opens(&hosts, &inside, WORLD[0]), [1380, 1380]);
    assert_eq!(opens(&hosts, &inside, WORLD[1]), [1360, 1360]);
    // Either router alone clamps both directions.
    down(&hosts.client);
    let plain = "ClampMss = false\nOfferRoutes = 10.11.0.0/24, fd11::/64\nIpForward = true";
    hosts.client_up(Family::V4, plain, "10.9.0.2/32, 10.12.0.0/24");
    eventually("the tunnel works", PATIENCE, || answers(&inside, WORLD[0]));
    assert_eq!(opens(&hosts, &inside, WORLD[0]), [1380, 1380]);
    hosts.exit.run(format!("nft flush chain inet linerate-{INTERFACE} clamp"));
    assert_eq!(opens(&hosts, &inside, WORLD[0]), [1460, 1460]);
}

/// Data of a connection that passes a device in one direction: bytes, packets and super-packets.
#[derive(Debug, Default)]
struct Passed {
    bytes: usize,
    packets: usize,
    supers: usize,
}

fn passed(frames: &[Frame], direction: Direction, link_header: usize) -> Passed {
    let mut passed = Passed::default();
    for frame in packets(frames, direction) {
        let bytes = frame.bytes.len() - link_header;
        // Without acknowledgments and the handshake.
        if bytes > 200 {
            passed.bytes += bytes;
            passed.packets += 1;
            passed.supers += usize::from(frame.segment_size.is_some());
        }
    }
    passed
}

/// On each of the four devices between the two hosts, the data is in super-packets. Both routers
/// filter, one masquerades, and both clamp.
#[test]
fn super_packets_are_forwarded_unsplit() {
    const ETHERNET: usize = 14;
    if forced_off().is_some() {
        return;
    }
    let (hosts, inside) = site_to_site(true);
    let places = [
        (&hosts.client, "eth1", Direction::In, ETHERNET),
        (&hosts.client, INTERFACE, Direction::Out, 0),
        (&hosts.exit, INTERFACE, Direction::In, 0),
        (&hosts.exit, "eth1", Direction::Out, ETHERNET),
    ];
    for target in WORLD {
        let captures = places.map(|(host, device, ..)| Capture::start(host, device));
        let options = "-b 200M";
        Iperf { client: &inside, server: &hosts.world, address: target, seconds: 1, options }.run();
        for (capture, (host, device, way, header)) in captures.into_iter().zip(places) {
            let passed = passed(&capture.finish(), way, header);
            let mean = passed.bytes / passed.packets.max(1);
            announce(&format!("FORWARD {} {device} {way:?}: {passed:?}, {mean} each", host.name()));
            assert!(passed.bytes > 10 << 20, "{passed:?}");
            // A packet of the tunnel has at most 1420 bytes.
            assert!(mean > 4 * 1420, "{} {device}: {mean} bytes a packet", host.name());
        }
    }
}
