//! Hooks of a server as in manuals: they accept and masquerade the peers' packets.
//!
//! ```text
//!   right . . tunnel . .  left  10.12.0.1 ---- 10.12.0.2  world
//!                               eth1            eth0
//! ```

use netns::{Host, INTERFACE, cable, ping};

use crate::quick::{Quick, state};

const IPTABLES: &str = "\
PostUp = iptables -A FORWARD -i %i -j ACCEPT; iptables -A FORWARD -o %i -j ACCEPT; \
iptables -t nat -A POSTROUTING -o eth1 -j MASQUERADE\n\
PostDown = iptables -D FORWARD -i %i -j ACCEPT; iptables -D FORWARD -o %i -j ACCEPT; \
iptables -t nat -D POSTROUTING -o eth1 -j MASQUERADE";

const NFT: &str = "\
PostUp = nft insert rule ip filter FORWARD iifname %i accept; \
nft insert rule ip filter FORWARD oifname %i accept\n\
PostUp = nft add table ip %i-nat; \
nft add chain ip %i-nat post '{ type nat hook postrouting priority 100; }'; \
nft add rule ip %i-nat post oifname eth1 masquerade\n\
PostDown = nft delete table ip %i-nat; nft flush chain ip filter FORWARD";

/// The world has no route to the tunnel, and left forwards nothing without a rule.
#[test]
fn hooks_with_iptables_or_nft_masquerade_the_peers_packets() {
    for hooks in [IPTABLES, NFT] {
        let mut quick = Quick::new();
        let world = Host::new("world");
        cable(&quick.left, "eth1", &world, "eth0", 1500);
        netns::address(&quick.left, "eth1", "10.12.0.1/24");
        netns::address(&world, "eth0", "10.12.0.2/24");
        quick.left.run("echo 1 >/proc/sys/net/ipv4/ip_forward; iptables -P FORWARD DROP");
        let (right, peer) = (&quick.right.host, &quick.key.public);
        right.run("ip route add 10.12.0.0/24 dev wg0");
        right.run(format!("wg set {INTERFACE} peer {peer} allowed-ips 10.9.0.1/32,10.12.0.0/24"));
        // Chains that exist before must exist afterwards.
        quick.left.run("iptables -t nat -S >/dev/null");
        quick.before = state(&quick.left);
        let reaches = || ping(right, "-c 3 -i 0.1 -W 2 10.12.0.2");

        let file = quick.conf("", "10.9.0.0/24");
        quick.up(&file);
        quick.reaches(&["10.9.0.2"]);
        assert_eq!(reaches().received, 0, "packets pass without a hook");
        quick.down(&file);

        let file = quick.conf(hooks, "10.9.0.0/24");
        quick.up(&file);
        quick.reaches(&["10.9.0.2"]);
        assert!(reaches().is_complete(), "{hooks}: {}", reaches().text);
        quick.down(&file);
    }
}
