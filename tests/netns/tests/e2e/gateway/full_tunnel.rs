//! The client's side: all traffic goes through the tunnel.

use std::time::Duration;

use netns::{Capture, Family, Host, INTERFACE, PORT, eventually};

use crate::gateway::{EXIT, Hosts, WORLD, answers, down};
use crate::gateway::{outside, page};

/// Configuration lines of the exit.
const EXIT_LINES: &str = "OfferRoutes = 0.0.0.0/0, ::/0\nMasquerade = true\nIpForward = true";

fn hosts(outer: Family, lines: &str) -> Hosts {
    let hosts = Hosts::new();
    hosts.exit_up(EXIT_LINES, "10.9.0.1/32, fd09::1/128");
    hosts.client_up(outer, lines, "0.0.0.0/0, ::/0");
    hosts
}

#[test]
fn dns_and_http_use_the_exit_and_no_packet_leaves_outside_of_the_tunnel() {
    for outer in Family::ALL {
        let hosts = Hosts::new();
        page::serve(&hosts.world, WORLD);
        hosts.exit_up(EXIT_LINES, "10.9.0.1/32, fd09::1/128");
        let capture = Capture::start(&hosts.client, "eth0");
        let [v4, v6] = WORLD;
        hosts.client_up(outer, &format!("DNS = {v4}, {v6}"), "0.0.0.0/0, ::/0");
        for (name, exit) in page::NAMES.into_iter().zip(EXIT) {
            let url = format!("http://{name}:{}/", page::PORT);
            let text = hosts.client.run(format!("curl -sS --max-time 20 {url}"));
            assert_eq!(text, format!("a page for {exit}"));
        }
        let frames = capture.finish();
        let tunnel = frames.iter().filter(|frame| outside::is_tunnel(&frame.bytes, PORT)).count();
        assert!(tunnel > 20, "only {tunnel} datagrams of the tunnel were captured");
        let concurrent = outside::outside_tunnel(&frames, PORT);
        assert!(concurrent.is_empty(), "outer {outer}: {concurrent:#?}");
        down(&hosts.client);
        down(&hosts.exit);
        // The same capture detects packets outside of the tunnel.
        let capture = Capture::start(&hosts.client, "eth0");
        assert!(!answers(&hosts.client, v4), "{v4} answers without a tunnel");
        assert!(!outside::outside_tunnel(&capture.finish(), PORT).is_empty());
    }
}

fn filtered(host: &Host) -> u64 {
    let chain = host.run(format!("nft list chain inet linerate-{INTERFACE} preraw"));
    let counts = chain.split("counter packets ").skip(1);
    counts.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// The second half shows that the packets would have arrived.
#[test]
fn packets_from_outside_to_the_tunnels_addresses_are_dropped() {
    let hosts = hosts(Family::V4, "");
    let inner = ["10.9.0.1", "fd09::1"];
    hosts.net.run("ip route add 10.9.0.1 via 10.1.0.1; ip route add fd09::1 via fd01::1");
    for (count, target) in [3, 6].into_iter().zip(inner) {
        assert!(!answers(&hosts.net, target), "{target} answers");
        assert_eq!(filtered(&hosts.client), count);
    }
    hosts.client.run(format!("nft delete table inet linerate-{INTERFACE}"));
    for target in inner {
        assert!(answers(&hosts.net, target), "{target} does not answer without the filter either");
    }
    down(&hosts.client);
}

/// A strict reverse path filter looks up the route to the endpoint, which without the mark leads
/// into the tunnel. The second half shows that it is strict.
#[test]
fn answers_to_our_datagrams_get_their_mark() {
    for lines in ["", "FwMark = 0x100\nFwMask = 0xff00"] {
        let hosts = Hosts::new();
        hosts
            .client
            .run("for f in all eth0; do echo 1 >/proc/sys/net/ipv4/conf/$f/rp_filter; done");
        hosts.exit_up(EXIT_LINES, "10.9.0.1/32, fd09::1/128");
        hosts.client_up(Family::V4, lines, "0.0.0.0/0, ::/0");
        // A lost answer is noticed: a handshake is retried after five seconds.
        let soon = Duration::from_secs(4);
        eventually("the exit answers", soon, || answers(&hosts.client, WORLD[0]));
        assert!(answers(&hosts.client, WORLD[1]));
        hosts.client.run(format!("nft delete table inet linerate-{INTERFACE}"));
        assert!(!answers(&hosts.client, WORLD[0]), "the reverse path filter passes everything");
        down(&hosts.client);
    }
}
