//! A daemon as a system service: its notifications to the service manager, and its few rights.
//!
//! ```text
//!   alone:  linerate up -f wg0.conf  -- READY, WATCHDOG, ... , STOPPING -->  NOTIFY_SOCKET
//!           wg0 10.9.0.1/24
//!
//!   left: linerate up, only CAP_NET_ADMIN                    right
//!   wg0  10.9.0.1/24               . . . . tunnel . . . .    wg0  10.9.0.2/24
//!   eth0 10.1.0.1/24               -------- cable --------   eth0 10.1.0.2/24
//! ```

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{
    AS_NOBODY, Addresses, Host, INTERFACE, Implementation, Key, Pair, Side, eventually,
    lacks_users, ping,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// A service manager, and the daemon that it started.
struct Managed {
    host: Host,
    manager: UnixDatagram,
    daemon: Child,
}

impl Managed {
    /// Starts `linerate up -f` for an interface with an address, with a watchdog of `watchdog`
    /// milliseconds.
    fn start(watchdog: u64) -> Self {
        let host = Host::new("alone");
        let manager = UnixDatagram::bind(host.outside("/run/rig/notify"));
        let manager = manager.expect("a host has room for a socket");
        manager.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let private = Key::generate().private;
        let conf = format!("[Interface]\nPrivateKey = {private}\nAddress = 10.9.0.1/24\n");
        let conf = host.write_secret("wg0.conf", &conf);
        let daemon = host
            .command(Implementation::Linerate.path())
            .args(["up", "-f", &conf])
            .env("NOTIFY_SOCKET", "/run/rig/notify")
            .env("WATCHDOG_USEC", (watchdog * 1000).to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("nsenter is installed (make deps)");
        Self { host, manager, daemon }
    }

    fn next_notification(&self) -> std::io::Result<String> {
        let mut text = [0; 256];
        let len = self.manager.recv(&mut text)?;
        Ok(String::from_utf8_lossy(&text[..len]).into_owned())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn the_manager_is_notified_of_start_watchdog_and_stop() {
    let mut managed = Managed::start(300);
    assert_eq!(managed.next_notification().unwrap(), "READY=1");
    // Ready means usable: the test does not wait here.
    assert!(managed.host.run("ip -o address show dev wg0").contains("10.9.0.1/24"));
    assert!(managed.host.attempt("wg show wg0").ok);
    for _ in 0..5 {
        assert_eq!(managed.next_notification().unwrap(), "WATCHDOG=1");
    }
    let pid = managed.host.daemon_of("wg0").unwrap();
    managed.host.run(format!("kill -TERM {pid}"));
    eventually("it announces its stop", PATIENCE, || {
        managed.next_notification().unwrap() == "STOPPING=1"
    });
    assert!(managed.daemon.wait().unwrap().success());
}

/// CAP_NET_ADMIN alone, as a mask of capabilities(7).
const NET_ADMIN_ALONE: &str = "0000000000001000";

/// A configuration for `linerate up` that only its user may read.
fn conf(host: &Host, lines: &str) -> String {
    let private = Key::generate().private;
    host.write_secret("wg0.conf", &format!("[Interface]\nPrivateKey = {private}\n{lines}\n"))
}

/// Runs a shell line that starts a daemon in the background; its output goes to a file.
fn start(host: &Host, line: &str) -> u32 {
    let log = "/run/rig/service.log";
    let outcome = host.attempt(format!("{line} </dev/null >{log} 2>&1"));
    assert!(outcome.ok, "{line}: {}", host.read(log));
    host.daemon_of(INTERFACE).expect("it runs")
}

/// A field of the status of each thread, proc_pid_status(5).
fn of_all_threads(host: &Host, pid: u32, field: &str) -> Vec<String> {
    // A thread that served a client may have ended meanwhile.
    let lines = host.attempt(format!("grep -h ^{field}: /proc/{pid}/task/*/status")).stdout;
    assert!(!lines.is_empty(), "no thread of {pid} has the field {field}");
    lines.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.to_owned())).collect()
}

fn is_gone(host: &Host) {
    eventually("the interface is gone", PATIENCE, || !host.has_device(INTERFACE));
    eventually("the socket is gone", PATIENCE, || !host.has("/run/wireguard/wg0.sock"));
}

#[test]
fn with_cap_net_admin_alone_it_comes_up_works_and_goes_down() {
    let as_root = "setpriv --inh-caps=-all --bounding-set=-all,+net_admin";
    for with in [as_root, AS_NOBODY] {
        if with == AS_NOBODY && lacks_users() {
            continue;
        }
        let (left, right) = Pair::hosts(1500);
        let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
        let peer = format!(
            "Address = 10.9.0.1/24\nClampMss = true\nPreDown = touch /run/wireguard/hook\n[Peer]\n\
             PublicKey = {}\nEndpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.2/32",
            right.key.public
        );
        let file = conf(&left, &peer);
        let program = Implementation::Linerate.path();
        let program = program.display();
        let public = left.run(format!("sed -n 's/^PrivateKey = //p' {file} | {program} pubkey"));
        let public = public.trim();
        right.host.run(format!("wg set wg0 peer {public} allowed-ips 10.9.0.1/32"));
        if with == AS_NOBODY {
            left.run(format!("chown nobody {file} && install -d -o nobody /run/wireguard"));
            left.open_tun();
        }

        let pid = start(&left, &format!("{with} {program} up {file}"));
        let bounds = of_all_threads(&left, pid, "CapBnd");
        assert!(bounds.iter().all(|set| set == NET_ADMIN_ALONE), "{bounds:?}");
        for set in ["CapEff", "CapPrm"] {
            let sets = of_all_threads(&left, pid, set);
            assert!(sets.iter().all(|set| set == NONE), "{set}: {sets:?}");
            let helper = left.run("pgrep -x linerate-helper").trim().parse().expect("one");
            assert_eq!(of_all_threads(&left, helper, set), [NET_ADMIN_ALONE], "{set}");
        }
        let pings = ping(&left, "-c 3 -i 0.1 -W 5 10.9.0.2");
        assert!(pings.is_complete(), "{}", pings.text);
        left.run("wg set wg0 listen-port 40404 fwmark 7");
        let pings = ping(&left, "-c 3 -i 0.1 -W 5 10.9.0.2");
        assert!(pings.is_complete(), "on another port, with a mark: {}", pings.text);
        assert!(left.run("nft list tables").contains("linerate-wg0"));
        left.run(format!("{with} {program} down wg0"));
        is_gone(&left);
        assert_eq!(left.run("nft list tables").trim(), "");
        assert!(left.has("/run/wireguard/hook"));
    }
}

/// CAP_NET_ADMIN and CAP_NET_BIND_SERVICE, for ports below 1024, which the helper has.
const NETWORK: &str = "0000000000001400";

/// No capability.
const NONE: &str = "0000000000000000";

#[test]
fn all_threads_are_sandboxed_unless_the_sandbox_is_off() {
    let program = Implementation::Linerate.path();
    let program = program.display();
    let hook = |key: &str| format!("{key} = touch /run/rig/hook");
    for (arguments, lines, guarded) in [
        ("wg0", String::new(), false),
        ("--sandbox off wg0", String::new(), false),
        ("up FILE", "SaveConfig = true".to_owned(), true),
        ("up --sandbox off FILE", hook("PostDown"), true),
        ("up FILE", hook("PostUp"), false),
        ("up FILE", hook("PreDown"), true),
        ("up FILE", hook("PostDown"), true),
        ("up FILE", "ClampMss = true".to_owned(), true),
        ("up FILE", "DNS = 10.9.0.2".to_owned(), true),
    ] {
        let host = Host::new("alone");
        let file = conf(&host, &format!("Address = 10.9.0.1/24\n{lines}"));
        let arguments = arguments.replace("FILE", &file);
        let pid = start(&host, &format!("LOG_LEVEL=verbose {program} {arguments}"));
        let output = host.read("/run/rig/service.log");
        let confined = !arguments.contains("off");
        let [mode, report] = match confined {
            true => ["2", "sandbox: system calls (seccomp)"],
            false => ["0", "the sandbox is off"],
        };
        eventually("the sandbox is as it should be", PATIENCE, || {
            of_all_threads(&host, pid, "Seccomp").iter().all(|state| state == mode)
        });
        assert!(output.contains(report), "{arguments} {lines}: {output}");
        assert_eq!(output.contains("sandbox: files (landlock)"), confined, "{output}");
        if confined {
            for set in ["CapEff", "CapPrm"] {
                let sets = of_all_threads(&host, pid, set);
                assert!(sets.iter().all(|set| set == NONE), "{lines} {set}: {sets:?}");
                let helper = host.run("pgrep -x linerate-helper").trim().parse().expect("one");
                assert_eq!(of_all_threads(&host, helper, set), [NETWORK], "{lines} {set}");
            }
            assert!(of_all_threads(&host, pid, "NoNewPrivs").iter().all(|set| set == "1"));
        }
        assert_eq!(host.attempt("pgrep linerate-guard").ok, guarded, "{arguments} {lines}");
        assert_eq!(host.has("/run/rig/hook"), lines.starts_with("PostUp"), "{lines}");
        host.run("wg set wg0 listen-port 40405");
        host.run(format!("{program} down wg0"));
        is_gone(&host);
        eventually("the guardian has exited", PATIENCE, || {
            !host.attempt("pgrep linerate-guard").ok
        });
        if lines.starts_with("SaveConfig") {
            assert!(host.read(&file).contains("ListenPort = 40405"), "{}", host.read(&file));
        }
        assert_eq!(host.has("/run/rig/hook"), lines.contains("touch"), "{lines}");
        assert!(!host.read("/run/rig/service.log").contains("ERROR"), "{arguments} {lines}");
        assert_eq!(host.attempt("nft list ruleset").stdout.trim(), "", "{lines}");
        assert!(!host.has("/run/linerate/up/wg0.undo"), "{lines}");
    }
}

/// A hook that prints which objects exist when it runs.
fn witness(key: &str) -> String {
    format!(
        "{key} = (echo {key}; ip link show wg0 >/dev/null 2>&1 && echo interface; \
         grep -q ^ListenPort /run/rig/wg0.conf && echo saved; \
         nft list tables | grep -o linerate || true) >>/run/rig/told"
    )
}

#[test]
fn the_guardian_is_isolated_and_acts_in_wg_quicks_order() {
    let host = Host::new("alone");
    let program = Implementation::Linerate.path();
    let program = program.display();
    let [before, after] = ["PreDown", "PostDown"].map(witness);
    let lines = format!("{before}\n{after}\nClampMss = true\nSaveConfig = true");
    let file = conf(&host, &format!("Address = 10.9.0.1/24\n{lines}"));
    start(&host, &format!("{program} up {file}"));
    let guardian = host.run("pgrep linerate-guard");
    let guardian = guardian.trim();
    let files = host.run(format!("readlink /proc/{guardian}/fd/*"));
    // The line, as standard input and as a copy; the socket for `linerate down`; and signals.
    assert_eq!(files.matches("socket:").count(), 3, "{files}");
    assert_eq!(files.matches("anon_inode:").count(), 1, "{files}");
    assert!(files.contains("signalfd") && !files.contains("tun"), "{files}");
    let arguments = host.run(format!("tr '\\0' ' ' </proc/{guardian}/cmdline"));
    assert_eq!(arguments.trim(), "linerate-guard background");
    host.run(format!("kill -TERM {guardian}"));
    // A peer can do this if its undo log is in the folder of one of its sockets.
    host.run("rm /run/linerate/up/wg0.undo");
    host.run(format!("{program} down wg0"));
    is_gone(&host);
    let report = host.read("/run/rig/told");
    assert_eq!(report, "PreDown\ninterface\nlinerate\nPostDown\nsaved\n");
}

#[test]
fn a_guardian_ends_with_its_peer_and_a_peer_goes_down_without_its_guardian() {
    let program = Implementation::Linerate.path();
    let program = program.display();
    for victim in ["daemon", "guardian"] {
        let host = Host::new("alone");
        let file = conf(&host, "Address = 10.9.0.1/24\nClampMss = true");
        let daemon = start(&host, &format!("{program} up {file}"));
        let guardian = host.run("pgrep linerate-guard");
        let pid = if victim == "daemon" { daemon.to_string() } else { guardian };
        if victim == "daemon" {
            // As above; the guardian has the log's contents.
            host.run("rm /run/linerate/up/wg0.undo");
        }
        host.run(format!("kill -KILL {pid}"));
        if victim == "guardian" {
            let down = host.attempt(format!("{program} down wg0"));
            assert!(!down.ok && down.stderr.contains("the guardian has exited"), "{}", down.stderr);
            is_gone(&host);
        }
        eventually("both are gone", PATIENCE, || {
            let states = host.attempt("ps -o state= -C linerate,linerate-guard").stdout;
            states.split_whitespace().all(|state| state == "Z") && !host.has_device("wg0")
        });
        // No process has reverted the changes; the next command does.
        assert!(host.has("/run/linerate/up/wg0.undo"), "{victim}");
        host.run(format!("{program} down wg0"));
        assert!(!host.has("/run/linerate/up/wg0.undo"), "{victim}");
        assert_eq!(host.attempt("nft list ruleset").stdout.trim(), "", "{victim}");
    }
}

/// The messages of a log, each line of which is JSON.
fn messages(log: &str) -> Vec<String> {
    let lines = log.lines().map(|line| {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{log}"));
        line["message"].as_str().expect("each has a message").to_owned()
    });
    lines.collect()
}

#[test]
fn a_guardian_and_a_failed_start_log_json_if_configured() {
    let host = Host::new("alone");
    let program = Implementation::Linerate.path();
    let program = program.display();
    let file = conf(&host, "Address = 10.9.0.1/24\nPostDown = false");
    let json = "--log-format json";
    start(&host, &format!("LOG_LEVEL=error {program} up {json} {file}"));
    assert!(!host.attempt(format!("{program} down wg0")).ok);
    is_gone(&host);
    let log = host.read("/run/rig/service.log");
    assert!(messages(&log)[0].starts_with("PostDown = false: "), "{log}");

    let file = conf(&host, "Address = 10.9.0.1/24\nPostUp = false");
    for (line, why) in [
        (format!("up {json} {file}"), "PostUp = false: "),
        (format!("up -f {json} {file}"), "PostUp = false: "),
        (format!("up {json} /nowhere/wg0.conf"), "/nowhere/wg0.conf: "),
        (format!("proxy {json} /nowhere/wg0.conf"), "/nowhere/wg0.conf: "),
        (format!("-f {json} --user nobodies wg0"), "becoming nobodies: "),
    ] {
        let outcome = host.attempt(format!("LOG_LEVEL=silent {program} {line}"));
        let output = messages(&outcome.stderr);
        assert!(
            !outcome.ok && output.len() == 1 && output[0].starts_with(why),
            "{line}: {output:?}"
        );
    }
}

#[test]
fn other_processes_of_the_same_user_cannot_read_its_memory() {
    if lacks_users() {
        return;
    }
    let host = Host::new("alone");
    let program = Implementation::Linerate.path();
    let pid = start(&host, &format!("{} --user nobody wg0", program.display()));
    // In proc(5), files of processes that may be dumped and traced belong to their user, others to
    // root.
    assert_eq!(host.run(format!("stat -c %U /proc/{pid}/mem")).trim(), "root");
    let same_user = "setpriv --reuid=nobody --regid=nogroup --clear-groups";
    for file in ["mem", "environ", "maps"] {
        let read = host.attempt(format!("{same_user} head -c 1 /proc/{pid}/{file}"));
        assert!(!read.ok && read.stderr.contains("Permission denied"), "{file}: {read:?}");
    }
    // Without that protection it is readable.
    let read = host.attempt(format!("{same_user} sh -c 'head -c 1 /proc/$$/environ'"));
    assert!(read.ok, "{read:?}");
}
