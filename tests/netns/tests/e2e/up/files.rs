//! Files as other programs write them.

use netns::{INTERFACE, Key, linerate, wg_quick};

use crate::up::{World, world};

/// Prints the settings of a file by `wg` and `ip`, in their order and spelling.
const SHOWN: &str = "wg showconf wg0 | grep -v ListenPort; ip -brief -4 address show wg0; \
                     ip link show wg0 | grep -o 'mtu [0-9]*'; \
                     ip -4 route show dev wg0 | cut -d ' ' -f 1";

/// Brings the file up by linerate and by wg-quick, and checks that both have the same settings.
/// Returns these, and the output of linerate.
fn both(world: &World, quick: &str, text: &[u8]) -> (String, String) {
    let file = world.left.write_secret("wg0.conf", "");
    std::fs::write(world.left.outside(&file), text).expect("the file was made");
    let outcome = world.linerate("up", &file);
    assert!(outcome.ok, "{}: {}", text.escape_ascii(), outcome.stderr);
    let shown = world.left.run(SHOWN);
    world.down(&file);
    world.left.run(format!("{quick} up {file} </dev/null >/run/rig/quick.log 2>&1"));
    assert_eq!(sorted(&shown), sorted(&world.left.run(SHOWN)), "{}", text.escape_ascii());
    world.left.run(format!("{quick} down {file} </dev/null >/run/rig/quick.log 2>&1"));
    (shown, outcome.stderr)
}

/// The lines, sorted: the order of peers differs from start to start.
fn sorted(shown: &str) -> Vec<&str> {
    let mut lines: Vec<_> = shown.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn files_with_duplicates_empty_values_and_odd_bytes_are_read_as_by_wg_quick() {
    let world = world();
    let quick = wg_quick(&world.left);
    let key = &world.key.private;
    let [one, two] = [&world.right.key.public, &Key::generate().public];
    let start = format!("[Interface]\nPrivateKey = {key}\nAddress = 10.77.0.1/24\n");
    let peer = format!("[Peer]\nPublicKey = {one}\n");
    for (text, expected, warning) in [
        (
            format!(
                "{start}{peer}AllowedIPs = 10.77.0.0/24\nPersistentKeepalive = 15\n\n\
                 PersistentKeepalive = 25\n[Peer]\nPublicKey = {two}\nAllowedIPs = 10.78.0.3/32\n"
            ),
            "PersistentKeepalive = 25",
            "wg0.conf:9: PersistentKeepalive: replaces the value in line 7",
        ),
        (
            format!(
                "{start}{peer}Endpoint = 10.1.0.2:1\nAllowedIPs = 10.79.0.0/24\n\
                 {peer}AllowedIPs = 10.78.0.0/24\n"
            ),
            "AllowedIPs = 10.78.0.0/24\nEndpoint = 10.1.0.2:1",
            "wg0.conf:9: PublicKey: the same peer as in line 5",
        ),
        (
            format!("{start}MTU = 1300\nMTU =\n{peer}"),
            "mtu 1420",
            "MTU: replaces the value in line 4",
        ),
        (format!("{start}MTU =\nTable =\n{peer}AllowedIPs = 10.5.0.0/16\n"), "10.5.0.0/16", ""),
        (
            format!("{start}{peer}Endpoint = 2001:db8:1::2:51820\n"),
            "Endpoint = [2001:db8:1::2]:51820",
            "Endpoint: without brackets, taken as [2001:db8:1::2]:51820",
        ),
        (
            format!("{start}{peer}Allowed IPs = 10.5.0.0 /16 , 10.6.0.0/1 6\n"),
            "AllowedIPs = 10.5.0.0/16, 10.6.0.0/16",
            "",
        ),
        (format!("{start}{peer}Endpoint = 10.1.0.2:domain\n"), "Endpoint = 10.1.0.2:53", ""),
        (
            format!("[Interface]\nPrivateKey={key}\nAddress=10.77.0.1/255.255.255.0\nMTU=0x578\n"),
            "mtu 1400",
            "",
        ),
        (format!("{start}Address = 10.8.1/24\n{peer}"), "10.8.1.0/24", "taken as 10.8.1.0/24"),
    ] {
        let (shown, printed) = both(&world, &quick, text.as_bytes());
        assert!(shown.contains(expected), "{text}\n{shown}");
        assert!(printed.contains(warning), "{text}\n{printed}");
        assert_eq!(printed.is_empty(), warning.is_empty(), "{text}\n{printed}");
    }
    both(&world, &quick, &[b"# M\xfcnchen\n", start.as_bytes(), b"# \xff\n"].concat());
    let (_, printed) = both(&world, &quick, &[start.as_bytes(), &[0; 4096]].concat());
    assert!(printed.contains("wg0.conf: zero bytes are left out"), "{printed}");
}

#[test]
fn a_table_is_found_by_its_name_in_the_files_of_iproute2() {
    let world = world();
    world.left.run(
        "mount -t tmpfs tmpfs /etc/iproute2; mkdir /etc/iproute2/rt_tables.d; \
         echo '100 vpn' >/etc/iproute2/rt_tables; \
         echo '0x65 other' >/etc/iproute2/rt_tables.d/more.conf",
    );
    for (name, number) in [("vpn", 100), ("other", 101), ("0x66", 102)] {
        let file = world.conf(&format!("Table = {name}"), "10.5.0.0/16, 0.0.0.0/0");
        world.up(&file);
        let routes = world.left.run(format!("ip -4 route show table {number}"));
        assert!(routes.contains("default dev wg0") && routes.contains("10.5.0.0/16"), "{routes}");
        world.down(&file);
    }
    let file = world.conf("Table = nosuch", "10.5.0.0/16");
    let outcome = world.linerate("up", &file);
    let wanted = ":4: Table: \"nosuch\" is not a routing table";
    assert!(!outcome.ok && outcome.stderr.contains(wanted), "{}", outcome.stderr);
}

#[test]
fn down_of_an_interface_of_wg_quick_is_refused_without_effect() {
    let world = world();
    let quick = wg_quick(&world.left);
    let file = world.conf("", "0.0.0.0/0");
    world.left.run(format!("{quick} up {file} </dev/null >/run/rig/quick.log 2>&1"));
    let rules = world.left.run("ip rule");
    let outcome = linerate(&world.left, &format!("down {INTERFACE}"));
    let wanted = "wg-quick brought wg0 up: use `wg-quick down wg0`";
    assert!(!outcome.ok && outcome.stderr.contains(wanted), "{}", outcome.stderr);
    assert!(world.left.has_device(INTERFACE));
    assert_eq!(world.left.run("ip rule"), rules);
    world.left.run(format!("{quick} down {file} </dev/null >/run/rig/quick.log 2>&1"));
    // A peer without wg-quick still goes down.
    assert!(linerate(&world.left, INTERFACE).ok);
    assert!(linerate(&world.left, &format!("down {INTERFACE}")).ok);
    assert!(!world.left.has_device(INTERFACE));
}
