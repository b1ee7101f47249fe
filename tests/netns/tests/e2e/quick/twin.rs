//! Compares wg-quick(8) and `linerate up` of the same file on two hosts: while each hook runs,
//! after a failed hook, and in the saved file.

use netns::{Host, INTERFACE, Key, Outcome, linerate, logged, newer_wg_quick};

/// A program that prints the state of an interface: NAME HOOK FILE.
const PROBE: &str = "#!/bin/bash\n\
    exec 2>/dev/null\n\
    is() { \"$@\" >/dev/null && echo yes || echo no; }\n\
    all() { sort | tr '\\n' ' '; }\n\
    echo \"$2 of $1 in $3: link $(is ip link show $1), socket $(is test -S /run/wireguard/$1.sock), \
    key $(wg show $1 public-key), mark $(wg show $1 fwmark), peers $(wg show $1 peers | all), \
    address $(ip -o address show dev $1 | grep -v fe80: | awk '{print $4}' | all), \
    up $(ip link show $1 up | grep -c mtu), mtu $(ip -o link show $1 | grep -o 'mtu [0-9]*'), \
    routes $(ip route show table all dev $1 | grep -v -e ^local -e ^broadcast | awk '{print $1}' | all), \
    dns $(grep nameserver /etc/resolv.conf | all)\" | tr -s ' '";

/// The two programs.
const PROGRAMS: [&str; 2] = ["wg-quick", "linerate"];

/// A host with `resolvconf` and, first in its PATH, wg-quick as since 1.0.20250521: PreUp runs
/// after the interface is created, and its settings remain.
struct Twin {
    host: Host,
    program: &'static str,
    quick: String,
}

impl Twin {
    fn new(program: &'static str) -> Self {
        let host = Host::new(program);
        host.run("chmod 700 /run/rig; mkdir -p /run/wireguard");
        host.write_program(
            "resolvconf",
            "#!/bin/sh\ncase $1 in\n-a) cat >/etc/resolv.conf ;;\n-d) : >/etc/resolv.conf ;;\n\
             -l) cat /etc/resolv.conf ;;\nesac\n",
        );
        host.write_program("probe", PROBE);
        let quick = newer_wg_quick(&host);
        Self { host, program, quick }
    }

    fn both() -> [Self; 2] {
        PROGRAMS.map(Self::new)
    }

    fn does(&self, verb: &str, file: &str) -> Outcome {
        if self.program == "linerate" {
            return linerate(&self.host, &format!("{verb} {file}"));
        }
        logged(&self.host, &format!("{} {verb} {file}", self.quick))
    }

    fn up(&self, file: &str) {
        let outcome = self.does("up", file);
        assert!(outcome.ok, "{}: {}", self.program, outcome.stderr);
    }
}

/// A file without a private key, with these lines and a peer.
fn conf(host: &Host, peer: &str, lines: &str) -> String {
    let text = format!(
        "[Interface]\nAddress = 10.9.0.1/24, fd09::1/64\n{lines}\n\
         [Peer]\nPublicKey = {peer}\nEndpoint = 192.0.2.1:51820\nAllowedIPs = 10.9.0.0/16, 198.51.100.0/24\n"
    );
    host.write_secret("wg0.conf", &text)
}

#[test]
fn each_hook_sees_the_same_state_as_with_wg_quick() {
    let [own, peer, other] = [(); 3].map(|()| Key::generate());
    let probe = |key: &str| {
        format!("{key} = probe %i {key} \"$INTERFACE $CONFIG_FILE\" >>/run/rig/table\n")
    };
    let probes = ["PreUp", "PostUp", "PreDown", "PostDown"].map(probe).concat();
    let lines = format!(
        "PreUp = wg set %i private-key <(echo {}) fwmark 7 peer {} allowed-ips 203.0.113.0/24\n\
         MTU = 1380\nDNS = 10.9.0.53\n{probes}",
        own.private, other.public
    );
    let [quick, linerate] = Twin::both().map(|twin| {
        let file = conf(&twin.host, &peer.public, &lines);
        twin.up(&file);
        let down = twin.does("down", &file);
        assert!(down.ok, "{}: {}", twin.program, down.stderr);
        twin.host.read("/run/rig/table")
    });
    assert_eq!(linerate, quick);
    let lines: Vec<_> = linerate.lines().collect();
    let [pre_up, post_up, pre_down, post_down] = lines[..] else { panic!("{linerate}") };
    let heading = |key: &str| format!("{key} of wg0 in wg0 /run/rig/wg0.conf: ");
    assert!(
        pre_up.starts_with(&format!(
            "{}link yes, socket yes, key {}, mark 0x7, peers {} , address , up 0, mtu mtu",
            heading("PreUp"),
            own.public,
            other.public
        )),
        "{pre_up}"
    );
    assert!(pre_up.ends_with(", routes , dns "), "{pre_up}");
    for (key, line) in [("PostUp", post_up), ("PreDown", pre_down)] {
        let mut peers = [&*peer.public, &*other.public];
        peers.sort_unstable();
        let all =
            format!("peers {} {} , address 10.9.0.1/24 fd09::1/64 , up 1", peers[0], peers[1]);
        assert!(line.starts_with(&heading(key)) && line.contains(&all), "{line}");
        for net in ["10.9.0.0/16", "198.51.100.0/24", "203.0.113.0/24"] {
            assert!(line.contains(net), "no {net}: {line}");
        }
        assert!(line.ends_with("dns nameserver 10.9.0.53 "), "{line}");
    }
    assert!(
        post_down.starts_with(&format!(
            "{}link no, socket no, key , mark , peers ",
            heading("PostDown")
        )),
        "{post_down}"
    );
}

#[test]
fn a_failed_hook_ends_the_command_as_with_wg_quick() {
    let [own, peer] = [(); 2].map(|()| Key::generate());
    let lines = |hooks: &str| format!("PrivateKey = {}\n{hooks}", own.private);
    for (hooks, up, down, stays) in [
        ("PreUp = echo said >&2; false", false, None, false),
        ("PreUp = false; true", false, None, false),
        ("PostUp = false | cat", false, None, false),
        ("PreDown = echo said >&2; false", true, Some(false), true),
        ("PreDown = false; true\nPreDown = touch /run/rig/second", true, Some(false), true),
        ("PostDown = echo said >&2; exit 3", true, Some(false), false),
        ("PreDown = echo said; ! true; true\nPostDown = false || true", true, Some(true), false),
    ] {
        for twin in Twin::both() {
            let file = conf(&twin.host, &peer.public, &lines(hooks));
            let done = twin.does("up", &file);
            assert_eq!(done.ok, up, "{}: {hooks}: {}", twin.program, done.stderr);
            let last = match down {
                None => done,
                Some(wanted) => {
                    let done = twin.does("down", &file);
                    assert_eq!(done.ok, wanted, "{}: {hooks}: {}", twin.program, done.stderr);
                    done
                }
            };
            if hooks.contains("echo said") {
                assert!(last.stderr.contains("said"), "{}: {hooks}: {}", twin.program, last.stderr);
            }
            assert_eq!(twin.host.has_device(INTERFACE), stays, "{}: {hooks}", twin.program);
            assert!(!twin.host.has("/run/rig/second"), "{}: {hooks}", twin.program);
        }
    }
}

#[test]
fn the_current_addresses_mtu_and_name_servers_are_saved() {
    let [own, peer] = [(); 2].map(|()| Key::generate());
    for mtu in ["MTU = 1400", ""] {
        let lines =
            format!("PrivateKey = {}\n{mtu}\nDNS = 10.9.0.53\nSaveConfig = true", own.private);
        let saved = Twin::both().map(|twin| {
            let file = conf(&twin.host, &peer.public, &lines);
            twin.up(&file);
            twin.host.run(
                "ip address add 10.9.5.1/24 dev wg0; ip address add fd05::1/64 dev wg0; \
                 ip address del 10.9.0.1/24 dev wg0; ip link set wg0 mtu 1300; \
                 echo nameserver 10.9.0.54 >/etc/resolv.conf",
            );
            let down = twin.does("down", &file);
            assert!(down.ok, "{}: {}", twin.program, down.stderr);
            let saved = twin.host.read(&file);
            // The kernel's own addresses are not the user's.
            let is_wanted = |line: &&str| {
                ["Address", "DNS", "MTU"].iter().any(|key| line.starts_with(key))
                    && !line.contains("fe80:")
            };
            let mut lines: Vec<_> = saved.lines().filter(is_wanted).map(str::to_owned).collect();
            lines.sort();
            lines
        });
        let [quick, linerate] = &saved;
        assert_eq!(linerate, quick);
        let mut wanted = vec![
            "Address = 10.9.5.1/24",
            "Address = fd05::1/64",
            "Address = fd09::1/64",
            "DNS = 10.9.0.54",
        ];
        wanted.extend((!mtu.is_empty()).then_some("MTU = 1300"));
        assert_eq!(*linerate, wanted);
    }
}
