//! Name servers by openresolv, for wg-quick and for `linerate up`.

use netns::{eventually, linerate, openresolv};

use crate::quick::{PATIENCE, Quick, state};

/// The host's own name server.
const OWN: &str = "192.0.2.53";

#[test]
fn openresolv_has_only_the_tunnels_servers_while_it_is_up() {
    let mut quick = Quick::new();
    if !openresolv(&quick.left, OWN) {
        return;
    }
    quick.before = state(&quick.left);
    let resolv = || quick.left.read("/run/rig/resolv.conf");
    assert!(resolv().contains(OWN), "{}", resolv());
    let file = quick.conf("DNS = 10.9.0.2, fd09::2, example.test", "10.9.0.0/24");
    let is_ours = || {
        let text = resolv();
        ["nameserver 10.9.0.2", "nameserver fd09::2", "search example.test"]
            .iter()
            .for_each(|line| assert!(text.contains(line), "no {line} in {text}"));
        assert!(!text.contains(OWN), "{text}");
    };
    quick.up(&file);
    is_ours();
    quick.down(&file);

    let outcome = linerate(&quick.left, &format!("up {file}"));
    assert!(outcome.ok, "{}", outcome.stderr);
    is_ours();
    let outcome = linerate(&quick.left, &format!("down {file}"));
    assert!(outcome.ok, "{}", outcome.stderr);
    eventually("the interface is gone", PATIENCE, || !quick.left.has_device("wg0"));
    quick.is_as_before();
}
