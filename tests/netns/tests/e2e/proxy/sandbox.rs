//! Rights of a running proxy.

use std::os::unix::net::UnixListener;
use std::thread;

use super::*;

/// Services of left, at a port and at a Unix socket.
const AT_PORT: &str = "Expose = tcp 10.9.0.1:80 -> 127.0.0.1:8003\n";
const AT_PATH: &str = "Expose = tcp 10.9.0.1:81 -> unix:/run/rig/service\n";
/// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE` of the helper.
const NETWORK: &str = "0000000000001400";
/// `CAP_DAC_OVERRIDE`
const FILES: &str = "0000000000000002";
const NONE: &str = "0000000000000000";

impl World {
    /// A field of the status of each thread of the proxy.
    fn of_all_threads(&self, field: &str) -> Vec<String> {
        let line = format!("grep -h ^{field}: /proc/$(cat /run/rig/proxy.pid)/task/*/status");
        // A thread that served a client may have ended meanwhile.
        let lines = self.left.attempt(line).stdout;
        assert!(!lines.is_empty(), "no thread has the field {field}");
        lines.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.to_owned())).collect()
    }

    fn all_have(&self, field: &str, value: &str) {
        let values = self.of_all_threads(field);
        assert!(values.len() > 3, "{values:?}");
        assert!(values.iter().all(|found| found == value), "{field}: {values:?}");
    }

    /// Checks the process in the private namespace, if there is one.
    fn child_has(&self, lines: &[&str]) {
        if stack() != "namespace" {
            return;
        }
        let child = "pgrep -x linerate -P $(cat /run/rig/proxy.pid)";
        let status = self.left.run(format!("cat /proc/$({child})/status"));
        for line in lines {
            assert!(status.lines().any(|found| found == *line), "no {line} in {status}");
        }
    }

    /// Serves a Unix socket of left.
    fn serve_at_unix_socket(&self) {
        let listener = UnixListener::bind(self.left.outside("/run/rig/service"));
        let listener = listener.expect("a host has room for a socket");
        self.left.run("chmod 666 /run/rig/service");
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhere");
            }
        };
        thread::Builder::new().spawn(serve).expect("one thread more");
    }
}

#[test]
fn all_threads_and_the_child_are_confined_and_everything_is_carried() {
    for (as_nobody, lines, rights) in [
        (false, AT_PORT.to_owned(), NONE),
        (false, format!("{AT_PORT}FwMark = 7"), NONE),
        (false, format!("{AT_PORT}{AT_PATH}"), FILES),
        (true, format!("{AT_PORT}{AT_PATH}"), NONE),
    ] {
        if as_nobody && lacks_users() {
            continue;
        }
        let mut world = world();
        world.serve_files();
        services::names(&world.right.host, &["10.9.0.2"]);
        world.left.run("mkdir -p /run/rig/here && printf here >/run/rig/here/page");
        services::files(&world.left, "127.0.0.1:8003", "/run/rig/here");
        world.serve_at_unix_socket();
        let conf = world.conf(&format!("{SERVICES}{lines}"));
        let behind = if as_nobody { world.unprivileged_user(&conf) } else { String::new() };
        world.start(&format!("env LOG_LEVEL=verbose {behind}"), &conf);
        let confined = || world.of_all_threads("Seccomp").iter().all(|mode| mode == "2");
        eventually("all threads are confined", PATIENCE, confined);
        world.all_have("NoNewPrivs", "1");
        for set in ["CapEff", "CapPrm"] {
            world.all_have(set, rights);
        }
        let helper = world.left.attempt("grep ^CapEff /proc/$(pgrep -x linerate-helper)/status");
        assert_eq!(
            helper.ok,
            lines.contains("FwMark"),
            "the helper that marks sockets: {helper:?}"
        );
        assert!(!helper.ok || helper.stdout.trim().ends_with(NETWORK), "{helper:?}");
        world.child_has(&["Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"]);
        let output = world.left.read(LOG);
        for what in ["files (landlock)", "system calls (seccomp)"] {
            assert!(output.contains(&format!("sandbox: {what}")), "{output}");
        }

        for host in ["10.9.0.2", "[fd09::2]", services::NAME] {
            assert_eq!(world.by_socks(&format!("http://{host}/page")), "hello");
        }
        for port in [80, 81].into_iter().filter(|port| lines.contains(&format!("10.9.0.1:{port}")))
        {
            let line = format!("curl --silent --max-time 20 http://10.9.0.1:{port}/page");
            assert_eq!(world.right.host.attempt(&line).stdout, "here", "{port}");
        }
        if !as_nobody {
            world.left.run("wg set wg0 listen-port 40404");
            assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello", "on another port");
        }
        world.ends();
        assert!(!world.left.read(LOG).contains("ERROR"), "{}", world.left.read(LOG));
        assert!(!world.left.has("/run/wireguard/wg0.sock"));
    }
}

#[test]
fn a_proxy_without_sandbox_is_unconfined() {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(SERVICES);
    world.start("", &format!("--sandbox off {conf}"));
    world.all_have("Seccomp", "0");
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
}
