//! How a daemon starts and ends; it leaves nothing behind.
//!
//! ```text
//!   alone                         left                                right
//!   wg0 (no links but lo)         wg0  10.9.0.1/24  . . tunnel . .    wg0  10.9.0.2/24
//!                                 eth0 10.1.0.1/24  --- cable ---     eth0 10.1.0.2/24
//! ```

use std::{io::Write, os::unix::net::UnixStream, time::Duration};

use netns::{
    Daemon, Family, Host, INTERFACE, Implementation, Key, Outcome, Pair, Stopwatch, deadline,
    eventually, lacks_users, ping,
};

const PATIENCE: Duration = Duration::from_secs(10);

const SOCKET: &str = "/run/wireguard/wg0.sock";

fn alone() -> (Host, Daemon) {
    let host = Host::new("alone");
    let daemon = Daemon::start(&host, Implementation::Linerate, INTERFACE);
    (host, daemon)
}

fn linerate() -> String {
    let program = Implementation::Linerate.path();
    program.display().to_string()
}

/// Starts a daemon in the background, as a user would. Its output goes to a file, because the
/// daemon would keep a pipe open.
fn in_background(host: &Host, interface: &str) -> Outcome {
    let log = "/run/rig/start.log";
    let mut outcome = host.attempt(format!("{} {interface} </dev/null >{log} 2>&1", linerate()));
    outcome.stderr = host.read(log);
    outcome
}

fn is_gone(host: &Host) {
    eventually("the interface is gone", PATIENCE, || !host.has_device(INTERFACE));
    eventually("the socket is gone", PATIENCE, || !host.has(SOCKET));
}

#[test]
fn sigterm_and_sigint_leave_no_interface_and_no_socket() {
    for signal in ["TERM", "INT"] {
        let (host, mut daemon) = alone();
        assert!(host.has(SOCKET) && host.has_device(INTERFACE));
        daemon.signal(signal);
        let status = daemon.wait_for_end();
        assert!(status.success(), "SIG{signal}: {status}");
        is_gone(&host);
    }
}

#[test]
fn a_mistyped_command_creates_no_interface_unless_it_follows_two_dashes() {
    let host = Host::new("alone");
    for (word, command) in [("stauts", "linerate status"), ("login", "linerate join")] {
        let refused = in_background(&host, word);
        assert!(!refused.ok && refused.stderr.contains(command), "{refused:?}");
        assert!(!host.has_device(word));
    }
    let version = in_background(&host, "version");
    assert!(version.ok && version.stderr.starts_with("linerate 0."), "{version:?}");
    assert!(version.stderr.contains("-linux-") && !host.has_device("version"), "{version:?}");
    let accepted = in_background(&host, "-- stauts");
    assert!(accepted.ok && host.has_device("stauts"), "{accepted:?}");
    host.run("ip link del stauts");
    eventually("its socket is gone", PATIENCE, || !host.has("/run/wireguard/stauts.sock"));
}

#[test]
fn a_command_takes_the_only_interface_and_lists_several() {
    let (host, _daemon) = alone();
    let set = format!("{} set offload udp-gso off", linerate());
    host.run(&set);
    assert!(host.run(format!("{} show", linerate())).contains("udp-gso"));
    assert!(in_background(&host, "wg1").ok);
    let refused = host.attempt(&set);
    assert!(!refused.ok && refused.stderr.contains("--interface with wg0 or wg1"), "{refused:?}");
    host.run(format!("{} set -i wg1 offload udp-gso off", linerate()));
    // An interface of another namespace does not count.
    host.run(format!("ip netns add other && ip netns exec other {} wg2", linerate()));
    host.run(format!("{} down wg1", linerate()));
    host.run(&set);
    host.run(format!("{} down wg2", linerate()));
}

#[test]
fn deleting_the_link_ends_the_daemon_and_its_socket() {
    let (host, mut daemon) = alone();
    host.run("ip link del wg0");
    daemon.wait_for_end();
    is_gone(&host);
}

#[test]
fn removing_the_socket_ends_the_daemon_and_its_link() {
    let (host, mut daemon) = alone();
    host.run(format!("rm {SOCKET}"));
    daemon.wait_for_end();
    is_gone(&host);
}

#[test]
fn a_second_daemon_of_the_same_name_is_refused_and_the_first_unaffected() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    for arguments in ["wg0", "-f wg0"] {
        let log = "/run/rig/second.log";
        let command = format!("{} {arguments} </dev/null >{log} 2>&1", linerate());
        let second = left.host.attempt(command);
        let output = left.host.read(log);
        assert!(!second.ok, "`linerate {arguments}` was accepted");
        assert!(!output.trim().is_empty(), "`linerate {arguments}` did not say why");
        assert!(left.host.has(SOCKET));
        left.reaches(right, Family::V4, PATIENCE);
        assert_eq!(left.status().public_key, left.key.public);
    }
}

#[test]
fn the_stale_socket_of_a_killed_daemon_is_replaced() {
    let (host, mut daemon) = alone();
    daemon.signal("KILL");
    daemon.wait_for_end();
    assert!(host.has(SOCKET), "a killed daemon cannot remove its socket");
    eventually("the interface is gone", PATIENCE, || !host.has_device(INTERFACE));
    let outcome = in_background(&host, INTERFACE);
    assert!(outcome.ok, "{}", outcome.stderr);
    host.run("wg show wg0");
}

#[test]
fn a_background_start_returns_once_the_interface_is_usable() {
    for _ in 0..5 {
        let host = Host::new("alone");
        let watch = Stopwatch::start();
        let outcome = in_background(&host, INTERFACE);
        assert!(outcome.ok, "{}", outcome.stderr);
        assert!(watch.elapsed() < deadline(Duration::from_secs(5)), "took {:?}", watch.elapsed());
        // Without waiting: wg-quick continues at once as well.
        host.run("wg set wg0 listen-port 40404 && ip address add 10.9.0.1/24 dev wg0");
        host.run("ip link set wg0 up");
        let pid = host.daemon_of(INTERFACE).expect("the daemon runs");
        let parent = host.read(&format!("/proc/{pid}/stat"));
        let parent = parent.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        assert_eq!(parent, Some("1"), "it is still a child of its starter");
        host.run(format!("kill -TERM {pid}"));
        is_gone(&host);
    }
}

#[test]
fn option_f_keeps_it_in_the_foreground() {
    let (host, mut daemon) = alone();
    assert!(daemon.is_running());
    assert_eq!(host.daemon_of(INTERFACE), Some(daemon.pid()));
}

#[test]
fn two_interfaces_run_together_and_end_separately() {
    let (host, mut first) = alone();
    let mut second = Daemon::start(&host, Implementation::Linerate, "wg1");
    host.run("wg set wg1 listen-port 40405");
    assert_eq!(host.run("wg show interfaces").split_whitespace().count(), 2);
    second.signal("TERM");
    second.wait_for_end();
    eventually("wg1 is gone", PATIENCE, || !host.has_device("wg1"));
    assert!(first.is_running());
    assert_eq!(host.run("wg show interfaces").trim(), "wg0");
}

/// wg(8) removes a socket that refuses a connection, such as one that is bound but not listening
/// yet. strace(1) lengthens that state.
#[test]
fn a_start_succeeds_while_wg_show_runs() {
    const SLOW_LISTEN: [&str; 7] = [
        "-f",
        "-qq",
        "-o/dev/null",
        "-e",
        "trace=listen",
        "-e",
        "inject=listen:delay_enter=200000",
    ];
    let host = Host::new("alone");
    let stop = "/run/rig/stop";
    let look = format!("until [ -e {stop} ]; do wg show interfaces >/dev/null 2>&1; done");
    let mut looking = host.command("bash").args(["-c", &look]).spawn().expect("bash is installed");
    for _ in 0..3 {
        let mut strace = host.command("strace");
        strace.args(SLOW_LISTEN).arg(Implementation::Linerate.path()).args(["-f", "wg0"]);
        let mut daemon = strace.spawn().expect("nsenter is installed");
        eventually("it answers wg(8)", PATIENCE, || {
            assert_eq!(daemon.try_wait().expect("it is a child"), None, "it did not start");
            host.attempt("wg show wg0").ok
        });
        host.run(format!("{} down wg0", linerate()));
        assert!(daemon.wait().expect("it is a child").success());
    }
    assert!(looking.try_wait().expect("it is a child").is_none(), "wg show still runs");
    host.run(format!("touch {stop}"));
    looking.wait().expect("it is a child");
    assert_eq!(host.run("ls -A /run/wireguard"), "", "a start leaves nothing");
}

#[test]
fn idle_clients_do_not_block_others() {
    let (host, _daemon) = alone();
    let mut capture = host
        .command(Implementation::Linerate.path())
        .args(["capture", "wg0", "-w", "/run/rig/capture"])
        .spawn()
        .expect("nsenter is installed");
    eventually("the capture begins", PATIENCE, || host.has("/run/rig/capture"));
    let clients: Vec<_> = (0..200)
        .map(|number| {
            let mut client = UnixStream::connect(host.outside(SOCKET)).expect("it listens");
            if number % 2 == 0 {
                // A client that is being evicted gets an error.
                let _ = client.write_all(b"set=1\nlisten_port=1\n");
            }
            client
        })
        .collect();
    for _ in 0..10 {
        host.run("wg show wg0 && wg set wg0 fwmark 7");
    }
    assert_eq!(host.run("wg show wg0 fwmark").trim(), "0x7");
    assert!(capture.try_wait().expect("it is a child").is_none(), "a capture is not idle");
    drop(clients);
    host.run("pkill -INT -f 'capture wg0 -[w]'");
    assert!(capture.wait().expect("it is a child").success());
}

#[test]
fn up_refuses_hooks_that_another_user_may_have_written() {
    let host = Host::new("alone");
    let text = format!("[Interface]\nPrivateKey = {}\nPreUp = touch /run/rig/ran\n", {
        Key::generate().private
    });
    host.run("mkdir -m 777 /run/rig/open && ln -s /run/rig/open/wg0.conf /run/rig/wg0.conf");
    host.write("open/wg0.conf", &text);
    let up = |file: &str| netns::linerate(&host, &format!("up {file}"));
    let refusals = [
        ("chmod 664 /run/rig/open/wg0.conf", "a file that other users may write to (mode 664)"),
        ("chmod 600 /run/rig/open/wg0.conf", "a folder that other users may write to (mode 777)"),
    ];
    for (change, why) in refusals {
        host.run(change);
        for path in ["/run/rig/open/wg0.conf", "/run/rig/wg0.conf"] {
            let outcome = up(path);
            assert!(!outcome.ok && outcome.stderr.contains(why), "{path}: {}", outcome.stderr);
            let place = "/run/rig/open/wg0.conf:3: PreUp: ";
            assert!(outcome.stderr.contains(place), "{}", outcome.stderr);
            assert!(!host.has("/run/rig/ran") && !host.has_device(INTERFACE));
        }
    }
    host.run("chmod 1777 /run/rig/open && chmod 604 /run/rig/open/wg0.conf");
    let outcome = up("/run/rig/wg0.conf");
    assert!(outcome.ok && host.has("/run/rig/ran"), "{}", outcome.stderr);
    let warning = "any user may access this file and its keys (mode 604)";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
    assert!(netns::linerate(&host, "down wg0").ok);
}

#[test]
fn traffic_resumes_after_link_down_and_up() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    for _ in 0..3 {
        left.host.run("ip link set wg0 down");
        assert_eq!(ping(&left.host, "-c 1 -W 0.5 10.9.0.2").received, 0);
        left.host.run("wg show wg0");
        left.host.run("ip link set wg0 up");
        left.reaches(right, Family::V4, PATIENCE);
        right.reaches(left, Family::V4, PATIENCE);
    }
}

#[test]
fn a_start_without_rights_fails_with_a_clear_message() {
    let host = Host::new("alone");
    let log = "/run/rig/rights.log";
    for arguments in ["wg0", "-f wg0"] {
        let powerless = "setpriv --bounding-set=-all --inh-caps=-all";
        let line = format!("{powerless} {} {arguments} </dev/null >{log} 2>&1", linerate());
        let outcome = host.attempt(line);
        let output = host.read(log).to_lowercase();
        assert!(!outcome.ok, "it claims to run without rights");
        let clear = output.contains("permi") || output.contains("cap_net_admin");
        assert!(clear, "not clear: {output}");
        assert!(!output.contains("panicked"), "{output}");
        is_gone(&host);
    }
}

#[test]
fn with_user_it_drops_root_but_changes_port_and_mark_and_cleans_up() {
    if lacks_users() {
        return;
    }
    for signal in ["TERM", "KILL"] {
        let host = Host::new("alone");
        let metrics = "/run/rig/metrics.sock";
        let outcome = in_background(&host, &format!("--user nobody --metrics unix:{metrics} wg0"));
        assert!(outcome.ok, "{}", outcome.stderr);
        assert!(host.has(metrics));
        host.run("ip link set wg0 up");
        for (port, mark) in [("900", "0x4d"), ("901", "0x4e")] {
            host.run(format!("wg set wg0 listen-port {port} fwmark {mark}"));
            assert_eq!(host.run("wg show wg0 listen-port").trim(), port);
            assert_eq!(host.run("wg show wg0 fwmark").trim(), mark);
        }
        // Only the helper remains as root.
        let nobody = host.run("pgrep -u nobody linerate");
        let capabilities = host.run(format!("grep CapEff /proc/{}/status", nobody.trim()));
        assert!(capabilities.trim().ends_with("0000000000000000"), "{capabilities}");
        host.run(format!("kill -{signal} {}", nobody.trim()));
        is_gone(&host);
        eventually("the socket of the metrics is gone", PATIENCE, || !host.has(metrics));
    }
}

#[test]
fn a_peer_without_its_helper_continues_logs_it_and_leaves_no_interface() {
    let (host, mut daemon) = alone();
    host.run("ip link set wg0 up && wg set wg0 listen-port 900");
    host.run("pkill -KILL -x linerate-helper");
    assert!(!host.attempt("wg set wg0 listen-port 901").ok);
    let report = "the helper process has exited";
    eventually("it logs the reason", PATIENCE, || daemon.log().contains(report));
    assert_eq!(host.run("wg show wg0 listen-port").trim(), "900", "it is as it was");
    assert!(daemon.is_running());
    daemon.signal("TERM");
    daemon.wait_for_end();
    eventually("the interface is gone", PATIENCE, || !host.has_device(INTERFACE));
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn an_invalid_interface_name_is_refused() {
    let host = Host::new("alone");
    for name in ["sixteen-letters-", "a/b"] {
        let outcome = in_background(&host, name);
        assert!(!outcome.ok && !outcome.stderr.trim().is_empty(), "{name}: {outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{name}: {}", outcome.stderr);
    }
}
