//! docs/tutorials/from-wg-quick.md: the host left is the page's laptop, with a tunnel to the host right.

use netns::{Addresses, INTERFACE, Implementation, Key, Pair, Side, conf, wg_quick};

use super::Machines;

const PAGE: &str = include_str!("../../../../../docs/tutorials/from-wg-quick.md");

#[test]
fn tutorial_from_wg_quick_replaces_the_interface_and_goes_back() {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    let key = Key::generate();
    right.host.run(format!("wg set {INTERFACE} peer {} allowed-ips 10.9.0.1/32", key.public));
    left.run("mount -t tmpfs -o mode=700 tmpfs /etc/wireguard");
    let peer = "Endpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.0/24";
    let file = conf(&left, &key, &right.key, "", peer);
    left.run(format!("mv {file} /etc/wireguard/"));
    let program = wg_quick(&left);
    let mut machines = Machines::new(&[("laptop", &left)], Vec::new());
    // wg-quick finds it by its name, as on the page.
    left.run("mv /run/rig/bin/wg-quick /run/rig/bin/wg-quick.real");
    let program = program.replace("wg-quick", "wg-quick.real");
    left.write_program("wg-quick", &format!("#!/bin/sh\nexec {program} \"$@\"\n"));
    left.run("PATH=/run/rig/bin:$PATH wg-quick up wg0 </dev/null >/run/rig/quick.log 2>&1");
    machines.run(PAGE);
}
