//! A default route through the tunnel, and its exceptions.

use netns::{INTERFACE, Status};

use crate::quick::{INNER, Quick, WORLD};

/// Copies all programs of this machine except nft(8) to a folder before wg-quick.
fn without_nft(quick: &Quick) -> &'static str {
    quick.left.run(
        "mkdir /run/rig/tools && cd /run/rig/tools && \
         ln -sf /bin/* /usr/bin/* /sbin/* /usr/sbin/* . && rm nft",
    );
    "PATH=/run/rig/tools"
}

#[test]
fn a_default_route_uses_the_tunnel_with_a_filter_of_nft_or_iptables() {
    for filter in ["nft", "iptables"] {
        let quick = Quick::new();
        let behind = if filter == "nft" { "" } else { without_nft(&quick) };
        let file = quick.conf("", "0.0.0.0/0, ::/0");
        let outcome = quick.quick(behind, &format!("up {file}"));
        assert!(outcome.ok, "{}", outcome.stderr);
        assert_ne!(Status::of(&quick.left, INTERFACE).fwmark, "off");
        quick.reaches(&INNER);
        quick.reaches(&WORLD);
        // The cable itself remains reachable: its route is more specific.
        quick.reaches(&["10.1.0.2", "fd01::2"]);
        let wg_quicks_own = match filter {
            "nft" => "nft list tables | grep -c wg-quick-wg0",
            _ => "{ iptables-save; ip6tables-save; } | grep -c 'wg-quick(8) rule for wg0'",
        };
        let rules: u32 = quick.left.run(wg_quicks_own).trim().parse().expect("a count");
        assert!(rules >= 2, "{rules} of {filter}");
        let outcome = quick.quick(behind, &format!("down {file}"));
        assert!(outcome.ok, "{}", outcome.stderr);
        quick.is_as_before();
    }
}

#[test]
fn table_off_adds_no_route_and_a_number_adds_all_to_that_table() {
    let quick = Quick::new();
    let file = quick.conf("Table = off", "0.0.0.0/0, ::/0");
    quick.up(&file);
    let routes = quick.left.run("ip -4 route show table all; ip -6 route show table all; ip rule");
    assert!(!routes.contains("default dev wg0") && !routes.contains("fwmark"), "{routes}");
    quick.reaches(&INNER);
    quick.down(&file);

    let file = quick.conf("Table = 1234", "0.0.0.0/0, ::/0");
    quick.up(&file);
    for family in ["-4", "-6"] {
        let routes = quick.left.run(format!("ip {family} route show table 1234"));
        assert!(routes.contains("default dev wg0"), "{routes}");
    }
    quick.down(&file);
}
