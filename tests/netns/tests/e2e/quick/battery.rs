//! Runs the same files by wg-quick(8) and by `linerate up`, on two identical hosts, and compares
//! the changes to the hosts.
//!
//! ```text
//!   one:   wg-quick up wg0.conf      eth0 10.1.0.1/24  fd01::1/64 ---- another host
//!   other: linerate up wg0.conf      eth0 10.1.0.1/24  fd01::1/64 ---- another host
//! ```
//!
//! The files are in `tests/netns/battery`, and others are random. Intended differences are in
//! `tests/netns/battery/differences.txt`, each with its reason.

use std::{collections::BTreeMap, env, fs, path::Path, thread};

use netns::{Host, Outcome, Pair, Random, announce, eventually, linerate, logged, newer_wg_quick};

use crate::quick::PATIENCE;

/// Number of random files; `make test-all` has more.
const RANDOM: usize = 60;

/// Everything that a file decides, by the name of the aspect. Routes of linerate have the protocol
/// `static`, which stands for an administrator's routes. Those of `ip route add` have `boot`, which
/// ip(8) does not show.
const ASPECTS: [(&str, &str); 6] = [
    ("addresses", "ip -o address show dev wg0 | awk '{print $3, $4}' | grep -v ^inet6.fe80"),
    ("mtu", "cat /sys/class/net/wg0/mtu"),
    (
        "routes",
        "for family in -4 -6; do ip $family route show table all; done | grep 'dev wg0' | grep -v 'table local' | grep -v 'fe80::\\|ff00::' | sed 's/ proto static//' | sort",
    ),
    ("rules", "ip -4 rule; ip -6 rule"),
    ("dns", "cat /etc/resolv.conf"),
    // Without values that a file does not decide: ports, handshakes, counters.
    (
        "peers",
        "wg show wg0 dump | awk -F'\\t' 'NR == 1 {print $1, $4; next} {print $1, $2, $3, $4, $8}' | sort",
    ),
];

/// A host for one of the two programs.
struct Twin {
    host: Host,
    _world: Host,
    /// The command line for wg-quick, if that is the program.
    quick: Option<String>,
    before: String,
}

/// Result of a program for a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct RunResult {
    up: bool,
    aspects: BTreeMap<&'static str, String>,
    down: bool,
    /// Whether the interface still exists afterwards.
    stays: bool,
    /// The remaining changes.
    left: String,
    output: String,
}

impl Twin {
    fn new(is_quick: bool) -> Self {
        let (host, world) = Pair::hosts(1500);
        host.run("chmod 700 /run/rig; mkdir -p /run/wireguard");
        // Both tools set DNS by it in the same way.
        let script = "#!/bin/sh\ncase $1 in\n-a) shift 2; echo \"$@\" >/etc/resolv.conf; \
                      cat >>/etc/resolv.conf ;;\n-d) : >/etc/resolv.conf ;;\nesac\n";
        host.write_program("resolvconf", script);
        host.run("mkdir -p /etc/iproute2/rt_tables.d && echo 77 home >/etc/iproute2/rt_tables.d/home.conf || true");
        let quick = is_quick.then(|| newer_wg_quick(&host));
        let before = state(&host);
        Self { host, _world: world, quick, before }
    }

    fn run(&self, verb: &str) -> Outcome {
        let arguments = format!("{verb} /run/rig/wg0.conf");
        match &self.quick {
            Some(quick) => logged(&self.host, &format!("{quick} {arguments}")),
            None => linerate(&self.host, &arguments),
        }
    }

    /// Runs a file from `up` to `down`.
    fn does(&self, text: &[u8]) -> RunResult {
        let path = self.host.write_secret("wg0.conf", "");
        fs::write(self.host.outside(path), text).expect("the folder is there");
        let up = self.run("up");
        let mut did = RunResult { up: up.ok, output: up.stderr, ..RunResult::default() };
        if up.ok {
            for (aspect, line) in ASPECTS {
                did.aspects.insert(aspect, self.host.attempt(line).stdout);
            }
            let down = self.run("down");
            did.down = down.ok;
            did.output += &down.stderr;
        }
        // After a failed hook wg-quick stops, and the interface remains.
        did.stays = did.up && !did.down && self.host.has_device("wg0");
        if did.stays {
            return did;
        }
        let is_gone = || !self.host.has_device("wg0") && self.host.daemon_of("wg0").is_none();
        eventually("the interface is gone", PATIENCE, is_gone);
        let after = state(&self.host);
        let lines = after.lines().filter(|line| !self.before.lines().any(|it| it == *line));
        did.left = lines.collect::<Vec<_>>().join("\n");
        did
    }
}

fn state(host: &Host) -> String {
    host.run(
        "for family in -4 -6; do ip $family route show table all; ip $family rule; done | \
         grep -v 'fe80::\\|ff00::'; cat /etc/resolv.conf; \
         nft list tables | grep -vE ' (raw|mangle|filter|nat)$'; true",
    )
}

/// The intended differences: the aspects, by file.
fn intended_differences() -> BTreeMap<String, Vec<String>> {
    let text = include_str!("../../../battery/differences.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let difference = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let [file, aspects, reason] = [(); 3].map(|()| parts.next().unwrap_or_default().to_owned());
        assert!(!reason.trim().is_empty(), "{line}: a difference has a reason");
        (file, aspects.split(',').map(str::to_owned).collect())
    };
    lines.map(difference).collect()
}

/// The names of the aspects in which both differ.
fn differences(quick: &RunResult, ours: &RunResult) -> Vec<String> {
    let mut different = Vec::new();
    if quick.up != ours.up {
        different.push("up".to_owned());
    } else if quick.down != ours.down {
        different.push("down".to_owned());
    }
    if quick.up && ours.up {
        let aspects = ASPECTS.iter().map(|(aspect, _)| *aspect);
        let unlike = aspects.filter(|aspect| quick.aspects[aspect] != ours.aspects[aspect]);
        different.extend(unlike.map(str::to_owned));
    }
    if quick.stays != ours.stays {
        different.push("stays".to_owned());
    }
    if !ours.left.is_empty() {
        different.push("left".to_owned());
    }
    different
}

/// Runs both programs on each file, and panics after unexpected differences. Returns the number of
/// files.
fn compare(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> usize {
    let twins = || (Twin::new(true), Twin::new(false));
    let (mut quick, mut ours) = twins();
    let intended_differences = intended_differences();
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, text) in files {
        let (by_quick, by_us) = thread::scope(|scope| {
            let by_quick = scope.spawn(|| quick.does(&text));
            let by_us = ours.does(&text);
            (by_quick.join().expect("wg-quick's host answers"), by_us)
        });
        let found = differences(&by_quick, &by_us);
        let expected = intended_differences.get(&name).cloned().unwrap_or_default();
        if found != expected {
            let text = String::from_utf8_lossy(&text);
            wrong.push(format!(
                "{name}: {found:?} instead of {expected:?}\n{text}\nwg-quick: {by_quick:#?}\nlinerate: {by_us:#?}"
            ));
        }
        count += 1;
        if by_quick.stays || by_us.stays {
            (quick, ours) = twins();
        }
    }
    assert!(wrong.is_empty(), "{} of {count} files:\n{}", wrong.len(), wrong.join("\n"));
    count
}

#[test]
fn files_of_generators_and_users_have_the_same_effect_as_with_wg_quick() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("battery");
    let entries = fs::read_dir(folder).expect("the battery is there");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "conf")).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("it can be read"))
    };
    let count = compare(paths.iter().map(read));
    assert!(count >= 40, "{count} files");
}

#[test]
fn random_files_have_the_same_effect_as_with_wg_quick() {
    let wanted = env::var("LINERATE_RANDOM_FILES").ok().and_then(|it| it.parse().ok());
    let count = wanted.unwrap_or(RANDOM);
    let seed = env::var("LINERATE_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    let files = (0..count as u64).map(|number| {
        let seed = seed * 1_000_000 + number;
        (format!("random-{seed}"), grammar::file(&mut Random::new(seed + 1)).into_bytes())
    });
    announce(&format!("BATTERY {} random files", compare(files)));
}

/// Files as people and programs write them: odd spacing and case, comments, keys twice. They omit
/// cases that versions of wg and wg-quick read differently: a `#` in a hook, and an empty
/// `AllowedIPs`.
mod grammar {
    use netns::Random;

    const PRIVATE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEA=";
    const PEERS: [&str; 3] = [
        "pOCSkrZRwni5dyxWn1+puxPZBrRqtoyd+dwrRAn4ogk=",
        "zo060cy2M+x7cMF4FKXHbs0CloUFDTRHRboFhw5YfVk=",
        "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
    ];
    const PRESHARED: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

    pub(super) fn file(random: &mut Random) -> String {
        let mut lines = Vec::new();
        comment(random, &mut lines);
        lines.push(header(random, "Interface"));
        line(random, &mut lines, "PrivateKey", PRIVATE);
        for _ in 0..random.below(3) {
            let address = one_of(
                random,
                &["10.77.0.1/24", "10.77.0.1", "fd77::1/64", "10.78.0.1/32", "fd77::5"],
            );
            line(random, &mut lines, "Address", address);
        }
        for (key, values, odds) in [
            ("ListenPort", &["51820", "0", "40000"][..], 3),
            ("MTU", &["1380", "1280", "", "9000"], 3),
            ("Table", &["auto", "off", "1234", "main", "", "0x20"], 4),
            ("FwMark", &["0", "off", "0x77", "51"], 5),
            ("DNS", &["10.77.0.2", "10.77.0.2, corp.example", "fd77::2"], 3),
            ("SaveConfig", &["false"], 8),
            ("PostUp", &["true", "ip route add 10.200.0.0/16 dev %i", ""], 5),
            ("PreUp", &["true", ""], 8),
        ] {
            if random.below(odds) == 0 {
                let value = one_of(random, values);
                line(random, &mut lines, key, value);
            }
        }
        for peer in PEERS.iter().take(random.below(4)) {
            comment(random, &mut lines);
            lines.push(header(random, "Peer"));
            line(random, &mut lines, "PublicKey", peer);
            for _ in 0..random.below(3) {
                let networks = one_of(
                    random,
                    &[
                        "0.0.0.0/0",
                        "::/0",
                        "0.0.0.0/0, ::/0",
                        "10.77.0.0/24",
                        "10.0.0.0/8,172.16.0.0/12",
                        "10.77.0.9",
                        "fd77::9/128",
                        "10.77.3.4/16",
                        "0.0.0.0/1, 128.0.0.0/1",
                    ],
                );
                line(random, &mut lines, "AllowedIPs", networks);
            }
            for (key, values, odds) in [
                ("PresharedKey", &[PRESHARED][..], 4),
                ("PersistentKeepalive", &["25", "off", "0", "65535"], 2),
                ("Endpoint", &["10.1.0.2:51820", "[fd01::2]:51820", "10.1.0.2:1"], 2),
            ] {
                if random.below(odds) == 0 {
                    let value = one_of(random, values);
                    line(random, &mut lines, key, value);
                }
            }
        }
        let end = one_of(random, &["\n", "\n", "\r\n"]);
        lines.join(end) + one_of(random, &["", end])
    }

    fn one_of<'a>(random: &mut Random, words: &[&'a str]) -> &'a str {
        words[random.below(words.len())]
    }

    fn cased(random: &mut Random, word: &str) -> String {
        match random.below(4) {
            0 => word.to_lowercase(),
            1 => word.to_uppercase(),
            _ => word.to_owned(),
        }
    }

    fn header(random: &mut Random, name: &str) -> String {
        let name = cased(random, name);
        let blank = one_of(random, &["", "", " ", "\t"]);
        format!("{blank}[{name}]{}", one_of(random, &["", "", "  ", " # here"]))
    }

    /// The line of a key, sometimes twice.
    fn line(random: &mut Random, lines: &mut Vec<String>, key: &str, value: &str) {
        for _ in 0..=usize::from(random.below(12) == 0) {
            let key = cased(random, key);
            let equals = one_of(random, &[" = ", "=", " =", "= ", "\t=\t", "  =  "]);
            let before = one_of(random, &["", "", " ", "\t"]);
            let is_hook = ["PREUP", "POSTUP"].contains(&key.to_uppercase().as_str());
            let after = one_of(random, &["", "", "", " ", "\t", " # why", "# why"]);
            let after = if is_hook { "" } else { after };
            lines.push(format!("{before}{key}{equals}{value}{after}"));
        }
        comment(random, lines);
    }

    fn comment(random: &mut Random, lines: &mut Vec<String>) {
        if random.below(6) == 0 {
            lines.push(
                one_of(random, &["", "# a comment", "  ", "#[Peer]", "# Name = x"]).to_owned(),
            );
        }
    }
}
