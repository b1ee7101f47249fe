//! `linerate proxy`: access to hosts behind a tunnel, without root and without an interface.
//!
//! ```text
//!   left: linerate proxy wg0.conf                            right
//!   (no wg0; 10.9.0.1, fd09::1 in a private namespace) . .   wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//!   lo   SOCKS5 :1080, HTTP :8080, forwards                  wg0  files :80, names :53,
//!        services of left                                         echo :7
//! ```
//!
//! `LINERATE_NETNS_STACK=in-process` runs it with the stack in the process instead.

mod clients;
mod crowd;
mod http;
mod idle;
mod sandbox;
pub(crate) mod services;

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{
    Addresses, Host, Implementation, Key, Outcome, Pair, Side, announce, eventually, in_background,
    lacks_users, serve_names, skip,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// Services of every proxy.
const SERVICES: &str = "Socks5 = 127.0.0.1:1080\nHttpProxy = 127.0.0.1:8080\nDNS = 10.9.0.2\n";

/// Its log.
const LOG: &str = "/run/rig/proxy.log";

/// Removes all rights, including root's.
const POWERLESS: &str = "setpriv --bounding-set=-all --inh-caps=-all";

/// Runtime folder of a user without rights.
const RUNTIME: &str = "/run/rig/nobody";

struct World {
    left: Host,
    right: Side,
    key: Key,
    proxy: Option<Child>,
}

/// Both hosts; right has left's key, and nothing runs on left yet.
fn world() -> World {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    let key = Key::generate();
    right.host.run(format!("wg set wg0 peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public));
    World { left, right, key, proxy: None }
}

/// The same with a proxy with these services in addition to [`SERVICES`], and files on right.
fn with_proxy(lines: &str) -> World {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(&format!("{SERVICES}{lines}"));
    world.start("", &conf);
    world
}

fn stack() -> String {
    env::var("LINERATE_NETNS_STACK").unwrap_or_else(|_| "namespace".to_owned())
}

fn linerate() -> String {
    Implementation::Linerate.path().display().to_string()
}

impl World {
    fn conf(&self, interface_lines: &str) -> String {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24, fd09::1/64\n{interface_lines}\n\
             [Peer]\nPublicKey = {}\nEndpoint = 10.1.0.2:51820\n\
             AllowedIPs = 10.9.0.0/24, fd09::/64\nPersistentKeepalive = 25\n",
            self.key.private, self.right.key.public
        );
        self.left.write("wg0.conf", &text)
    }

    fn serve_files(&self) {
        self.right.host.run("mkdir -p /run/rig/www && printf hello >/run/rig/www/page");
        services::files(&self.right.host, "[::]:80", "/run/rig/www");
    }

    /// Starts the proxy by a wrapper such as `setpriv`, and waits until it listens.
    fn start(&mut self, behind: &str, conf: &str) {
        self.start_on(&stack(), behind, conf);
    }

    fn start_on(&mut self, stack: &str, behind: &str, conf: &str) {
        let program = linerate();
        let line = format!(
            "echo $$ >/run/rig/proxy.pid; \
             exec {behind} {program} proxy --stack {stack} {conf} </dev/null >{LOG} 2>&1"
        );
        let child = self.left.command("bash").args(["-c", &line]).stdin(Stdio::null()).spawn();
        self.proxy = Some(child.expect("nsenter is installed (make deps)"));
        eventually("the proxy listens", PATIENCE, || self.is_ready());
    }

    fn is_ready(&mut self) -> bool {
        let child = self.proxy.as_mut().expect("it was started");
        if let Ok(Some(status)) = child.try_wait() {
            panic!("the proxy ended: {status}\n{}", self.left.read(LOG));
        }
        self.left.listens(1080)
    }

    /// Starts a proxy that must fail, by a wrapper, and returns its output.
    fn fails(&self, behind: &str, conf: &str) -> String {
        let program = linerate();
        let line =
            format!("{behind} {program} proxy --stack namespace {conf} </dev/null >{LOG} 2>&1");
        let outcome = self.left.attempt(line);
        let output = self.left.read(LOG);
        assert!(!outcome.ok, "it runs: {output}");
        assert!(!output.contains("panicked"), "{output}");
        output
    }

    /// The wrapper to run a command as a user without rights, who may read this file.
    fn unprivileged_user(&self, conf: &str) -> String {
        self.left.run(format!("mkdir -p {RUNTIME} && chown nobody {RUNTIME} && chmod 644 {conf}"));
        self.left.open_tun();
        format!(
            "env XDG_RUNTIME_DIR={RUNTIME} setpriv --reuid=nobody --regid=nogroup --clear-groups"
        )
    }

    fn curl(&self, arguments: &str) -> Outcome {
        self.left.attempt(format!("curl --silent --show-error --fail --max-time 20 {arguments}"))
    }

    /// The output of curl through the SOCKS5 proxy.
    fn by_socks(&self, arguments: &str) -> String {
        let outcome = self.curl(&format!("--socks5-hostname 127.0.0.1:1080 {arguments}"));
        assert!(outcome.ok, "{}\n{}", outcome.stderr, self.left.read(LOG));
        outcome.stdout
    }

    fn ends(&mut self) {
        self.left.run("kill -TERM $(cat /run/rig/proxy.pid)");
        let child = self.proxy.as_mut().expect("it was started");
        let status = child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}: {}", self.left.read(LOG));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && self.left.has(LOG) {
            eprintln!("--- the proxy's log ---\n{}", self.left.read(LOG));
        }
    }
}

#[test]
fn curl_reaches_both_families_and_names_through_both_proxies() {
    let world = with_proxy("");
    services::names(&world.right.host, &["10.9.0.2"]);
    for host in ["10.9.0.2", "[fd09::2]", services::NAME] {
        let url = format!("http://{host}/page");
        assert_eq!(world.by_socks(&url), "hello");
        for through in ["--proxy http://127.0.0.1:8080", "--proxytunnel -x 127.0.0.1:8080"] {
            let outcome = world.curl(&format!("{through} {url}"));
            assert_eq!(outcome.stdout, "hello", "{through} {url}: {}", outcome.stderr);
        }
    }
    let seen = world.curl("--proxy http://127.0.0.1:8080 http://10.9.0.2/request").stdout;
    assert!(seen.starts_with("GET /request HTTP/1.1\nHost: 10.9.0.2\n"), "{seen}");
    assert!(seen.ends_with("\nVia: 1.1 linerate"), "{seen}");
    assert!(!seen.to_lowercase().contains("proxy"), "{seen}");
    assert!(!world.left.has_device("wg0"), "the interface is the machine's");
    assert!(!world.curl("--max-time 1 http://10.9.0.2/page").ok);
}

#[test]
fn a_long_dns_answer_is_requested_by_tcp() {
    let world = with_proxy("");
    let right = &world.right.host;
    // 40 addresses do not fit in a datagram of 512 bytes.
    right.run(format!(
        "for number in {{100..139}}; do ip address add 10.9.0.$number/32 dev wg0; \
         echo 10.9.0.$number {}; done >/run/rig/hosts",
        services::NAME
    ));
    serve_names(right, &["10.9.0.2"], "--addn-hosts=/run/rig/hosts");
    assert_eq!(world.by_socks(&format!("http://{}/page", services::NAME)), "hello");
    let accepted = right.run("nstat -asz TcpPassiveOpens | awk '/^Tcp/ { print $2 }'");
    assert_eq!(accepted.trim(), "2", "the question and the page");
}

#[test]
fn an_unreachable_name_server_is_reported_at_once() {
    let world = with_proxy("");
    let url = format!("http://{}/page", services::NAME);
    let outcome = world.curl(&format!("--max-time 5 --socks5-hostname 127.0.0.1:1080 {url}"));
    assert!(!outcome.ok && outcome.stderr.contains("(4)"), "{outcome:?}");
    let outcome = world.curl(&format!("--max-time 5 --no-fail -x http://127.0.0.1:8080 {url}"));
    assert!(outcome.stdout.contains("name server 10.9.0.2"), "{outcome:?}");
}

#[test]
fn unreachable_destinations_are_reported_by_each_protocol_at_once() {
    let world = with_proxy("");
    services::names(&world.right.host, &["10.9.0.2"]);
    for (url, socks, http) in [
        ("http://10.9.0.2:81/", "(5)", "502"),
        ("http://10.99.0.1/", "(3)", "502"),
        ("http://nowhere.example/", "(4)", "502"),
    ] {
        let outcome = world.curl(&format!("--max-time 5 --socks5-hostname 127.0.0.1:1080 {url}"));
        assert!(!outcome.ok && outcome.stderr.contains(socks), "{url}: {outcome:?}");
        let outcome = world.curl(&format!("--max-time 5 -x http://127.0.0.1:8080 {url}"));
        assert!(!outcome.ok && outcome.stderr.contains(http), "{url}: {outcome:?}");
    }
}

#[test]
fn changes_of_allowed_ips_apply_to_a_running_proxy() {
    let world = with_proxy("Expose = tcp 10.9.0.1:80 -> 127.0.0.1:8003");
    world.left.run("mkdir -p /run/rig/here && printf here >/run/rig/here/page");
    services::files(&world.left, "127.0.0.1:8003", "/run/rig/here");
    world.right.host.run("ip address add 10.44.0.1/32 dev lo && ip address add fd44::1/128 dev lo");
    let allow = |networks: &str| {
        let peer = &world.right.key.public;
        world
            .left
            .run(format!("wg set wg0 peer {peer} allowed-ips 10.9.0.0/24,fd09::/64{networks}"));
    };
    let (v4, v6) = ("http://10.44.0.1/page", "http://[fd44::1]/page");
    let is_refused = |url: &str| {
        let line = format!("--max-time 5 --socks5-hostname 127.0.0.1:1080 {url}");
        let outcome = world.curl(&line);
        assert!(!outcome.ok && outcome.stderr.contains("(3)"), "{url}: {outcome:?}");
    };
    is_refused(v4);
    is_refused(v6);
    allow(",10.44.0.0/24,fd44::/64");
    assert_eq!(world.by_socks(v4), "hello");
    assert_eq!(world.by_socks(v6), "hello");
    let from_there = "curl --silent --max-time 5 --interface 10.44.0.1 http://10.9.0.1/page";
    assert_eq!(world.right.host.attempt(from_there).stdout, "here");
    allow("");
    is_refused(v4);
    is_refused(v6);
}

#[test]
fn a_proxys_file_is_reloaded() {
    let mut world = world();
    world.serve_files();
    let lines = "DNS = 10.9.0.2\nSocks5 = 127.0.0.1:1080\nHttpProxy = 127.0.0.1:8080";
    let wrong = world.conf(lines);
    let text = world.left.read(&wrong);
    world.left.write("wg0.conf", &text.replace("10.1.0.2", "10.1.0.9"));
    world.start("", &wrong);
    let fetch = || world.curl("--max-time 3 --socks5-hostname 127.0.0.1:1080 http://10.9.0.2/page");
    assert!(!fetch().ok, "no peer is at that endpoint");
    world.left.write("wg0.conf", &text);
    let reload = |arguments: &str| netns::linerate(&world.left, &format!("reload {arguments}"));
    let outcome = reload(&wrong);
    assert!(outcome.ok, "{}", outcome.stderr);
    eventually("the new endpoint is used", PATIENCE, || fetch().ok);

    world.left.write("wg0.conf", &format!("{text}Colour = red\n"));
    let outcome = reload(&wrong);
    assert!(!outcome.ok && outcome.stderr.contains("Colour"), "{}", outcome.stderr);
    assert!(fetch().ok);
}

#[test]
fn an_endpoint_of_a_proxy_that_is_a_name_is_resolved_again() {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(SERVICES);
    let text = world.left.read(&conf).replace("10.1.0.2:", "vpn.example:");
    let conf = world.left.write("wg0.conf", &text);
    world.left.write("resolv.conf", "nameserver 10.1.0.2\n");
    let name = |at: &str| format!("--host-record=vpn.example,{at}");
    serve_names(&world.right.host, &["10.1.0.2"], &name("10.1.0.9"));
    world.start("", &conf);
    world.right.host.run("pkill -x dnsmasq");
    eventually("the previous server ended", PATIENCE, || !world.right.host.listens(53));
    serve_names(&world.right.host, &["10.1.0.2"], &name("10.1.0.2"));
    let url = "http://10.9.0.2/page";
    let fetch = || world.curl(&format!("--max-time 3 --socks5-hostname 127.0.0.1:1080 {url}"));
    eventually("the new address is used", 4 * PATIENCE, || fetch().ok);
}

#[test]
fn a_proxys_file_may_have_any_name() {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(SERVICES);
    world.left.run(format!("cp -p {conf} '/run/rig/My VPN (Berlin).conf'"));
    let linerate = |world: &World, arguments: &str| {
        let outcome = netns::linerate(&world.left, arguments);
        assert!(outcome.ok, "{arguments}: {}", outcome.stderr);
    };
    let file = "'/run/rig/My VPN (Berlin).conf'";
    for (arguments, name) in [("", "My-VPN--Be-"), ("--name home ", "home")] {
        world.proxy = None;
        world.start("", &format!("{arguments}{file}"));
        assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
        let shown = world.left.run("ls /run/wireguard").replace(".sock", "");
        let shown = shown.trim();
        assert!(shown.starts_with(name), "{shown}");
        linerate(&world, &format!("reload {arguments}{file}"));
        linerate(&world, &format!("down {}", if arguments.is_empty() { file } else { shown }));
    }
}

#[test]
fn only_the_correct_password_is_accepted() {
    let mut world = world();
    world.serve_files();
    let file = world.left.write("password", "secret\n");
    let conf = world.conf(&format!("{SERVICES}ProxyUser = ann:{file}"));
    world.start("", &conf);
    let url = "http://10.9.0.2/page";
    for (user, is_known) in [("ann:secret@", true), ("ann:wrong@", false), ("", false)] {
        for proxy in [format!("socks5h://{user}127.0.0.1:1080"), format!("{user}127.0.0.1:8080")] {
            let outcome = world.curl(&format!("-x {proxy} {url}"));
            assert_eq!(outcome.ok, is_known, "{proxy}: {outcome:?}");
        }
    }
}

#[test]
fn forwards_carry_tcp_unix_sockets_and_datagrams_into_the_tunnel() {
    let mut world = with_proxy(
        "Forward = tcp 127.0.0.1:8001 -> 10.9.0.2:80\nForward = tcp unix:/run/rig/web -> [fd09::2]:80\n\
         Forward = udp 127.0.0.1:8002 -> 10.9.0.2:7",
    );
    services::echo(&world.right.host, "10.9.0.2:7");
    assert_eq!(world.curl("http://127.0.0.1:8001/page").stdout, "hello");
    assert_eq!(world.curl("--unix-socket /run/rig/web http://any/page").stdout, "hello");
    assert_eq!(world.left.run("stat -c %a /run/rig/web").trim(), "600");
    // Two concurrent clients each get their own answers.
    world.left.inside(|| {
        let clients = [1_u8, 2].map(|number| (number, client("127.0.0.1:8002")));
        for (number, socket) in &clients {
            socket.send(&[*number; 100]).expect("left has a loopback");
        }
        for (number, socket) in &clients {
            let mut answer = [0; 200];
            assert_eq!(socket.recv(&mut answer).expect("an echo"), 100);
            assert_eq!(answer[..100], [*number; 100]);
        }
    });
    world.ends();
    assert!(!world.left.has("/run/rig/web"), "the socket remains");
}

#[test]
fn packets_longer_than_the_mtu_pass_both_ways_with_each_stack() {
    for stack in ["namespace", "in-process"] {
        let mut world = world();
        let lines = "Forward = udp 127.0.0.1:8002 -> 10.9.0.2:7\n\
                     Forward = udp 127.0.0.1:8003 -> [fd09::2]:7\n";
        let conf = world.conf(&format!("{SERVICES}{lines}"));
        world.start_on(stack, "", &conf);
        for at in ["10.9.0.2:7", "[fd09::2]:7"] {
            services::echo(&world.right.host, at);
        }
        world.left.inside(|| {
            for to in ["127.0.0.1:8002", "127.0.0.1:8003"] {
                let socket = client(to);
                for len in [1000, 1392, 1393, 4000, 20_000, 65_507] {
                    let sent: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
                    socket.send(&sent).expect("left has a loopback");
                    let mut answer = vec![0; 70_000];
                    let got = socket.recv(&mut answer).expect("an echo");
                    assert!(answer[..got] == sent, "{stack}, {to}: {len} bytes, then {got}");
                }
            }
        });
        for to in ["10.9.0.1", "fd09::1"] {
            world.right.host.run(format!("ping -n -c 3 -i 0.2 -W 5 -s 3000 {to}"));
        }
        world.ends();
    }
}

fn client(to: &str) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("left has a loopback");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    socket.connect(to).expect("a UDP socket connects");
    socket
}

#[test]
fn exposed_services_are_reached_from_the_tunnel_also_after_an_outage() {
    let world = with_proxy(
        "Expose = tcp 10.9.0.1:80 -> 127.0.0.1:8003\nExpose = tcp [fd09::1]:80 -> 127.0.0.1:8003\n\
         Expose = udp 10.9.0.1:7 -> 127.0.0.1:8004",
    );
    let fetch = |host: &str| {
        let line = format!("curl --silent --show-error --max-time 20 http://{host}/page");
        world.right.host.attempt(line)
    };
    let refused = fetch("10.9.0.1");
    // If curl is scheduled late, it sees the RST before the connection.
    let is_reported =
        ["reset", "Couldn't connect"].iter().any(|output| refused.stderr.contains(output));
    assert!(!refused.ok && is_reported, "{refused:?}");
    world.left.run("mkdir -p /run/rig/here && printf here >/run/rig/here/page");
    services::files(&world.left, "127.0.0.1:8003", "/run/rig/here");
    for host in ["10.9.0.1", "[fd09::1]"] {
        let outcome = fetch(host);
        assert_eq!(outcome.stdout, "here", "{outcome:?}");
    }
    let ask = || {
        world.right.host.inside(|| {
            let socket = UdpSocket::bind("10.9.0.2:0").expect("an address of right");
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time-out");
            socket.send_to(b"ping", "10.9.0.1:7").expect("there is a tunnel");
            let mut answer = [0; 16];
            socket.recv(&mut answer).map(|len| answer[..len].to_vec()).ok()
        })
    };
    assert_eq!(ask(), None, "no service is running yet");
    services::echo(&world.left, "127.0.0.1:8004");
    assert_eq!(ask().as_deref(), Some(&b"ping"[..]));
}

/// Requests an association, from inside left. It lasts as long as the connection.
fn associate() -> (TcpStream, SocketAddr) {
    let mut stream = TcpStream::connect("127.0.0.1:1080").expect("the proxy listens");
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).expect("the proxy reads");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("the proxy answers");
    assert_eq!(answer[..8], [5, 0, 5, 0, 0, 1, 127, 0], "{answer:?}");
    let port = u16::from_be_bytes([answer[10], answer[11]]);
    (stream, SocketAddr::from(([127, 0, 0, 1], port)))
}

#[test]
fn an_association_carries_datagrams_until_its_connection_ends() {
    let world = with_proxy("");
    services::names(&world.right.host, &["10.9.0.2"]);
    services::echo(&world.right.host, "[::]:7");
    world.left.inside(|| {
        let (connection, relay) = associate();
        let socket = client(&relay.to_string());
        let v6 = [&[0, 0, 0, 4, 0xfd, 9][..], &[0; 13], &[2, 0, 7]].concat();
        let v4 = [0, 0, 0, 1, 10, 9, 0, 2, 0, 7];
        let name = [&[0, 0, 0, 3, 11][..], services::NAME.as_bytes(), &[0, 7]].concat();
        for (header, from) in [(&v4[..], &v4[..]), (&v6, &v6), (&name, &v4)] {
            socket.send(&[header, b"hello"].concat()).expect("the relay is there");
            let mut answer = [0; 64];
            let len = socket.recv(&mut answer).expect("an echo");
            assert_eq!(answer[..len], [from, b"hello"].concat());
        }
        let stranger = client(&relay.to_string());
        stranger.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
        stranger.send(&[&v4[..], b"mine?"].concat()).expect("the relay is there");
        assert!(stranger.recv(&mut [0; 64]).is_err(), "another port of the client is answered");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
        assert!(socket.recv(&mut [0; 64]).is_err(), "another port of the client is accepted");
        drop(connection);
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
        eventually("the association ends", PATIENCE, || {
            let sent = socket.send(&[&v4[..], b"late"].concat());
            sent.is_err()
                || socket
                    .recv(&mut [0; 64])
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
        });
    });
}

#[test]
fn an_unresolved_name_does_not_delay_other_datagrams() {
    let mut world = world();
    // No host has this address.
    let conf = world.conf("Socks5 = 127.0.0.1:1080\nDNS = 10.9.0.77");
    world.start("", &conf);
    services::echo(&world.right.host, "10.9.0.2:7");
    world.left.inside(|| {
        let (_connection, relay) = associate();
        let socket = client(&relay.to_string());
        let (v4, name) = ([0, 0, 0, 1, 10, 9, 0, 2, 0, 7], *b"\0\0\0\x03\x09a.example\0\x07");
        socket.set_read_timeout(Some(Duration::from_secs(3))).expect("a time-out");
        socket.send(&[&name[..], b"never"].concat()).expect("the relay is there");
        socket.send(&[&v4[..], b"hello"].concat()).expect("the relay is there");
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer).expect("an echo");
        assert_eq!(answer[..len], [&v4[..], b"hello"].concat());
    });
}

#[test]
fn git_clones_and_iperf3_measures_through_the_tunnel() {
    let world = with_proxy(
        "Forward = tcp 127.0.0.1:5301 -> 10.9.0.2:5201\nExpose = tcp 10.9.0.1:5302 -> 127.0.0.1:5201",
    );
    let git = "git -c user.name=a -c user.email=a@example -c init.defaultBranch=main";
    world.right.host.run(format!(
        "cd /run/rig/www && {git} init -q work && {git} -C work commit -q --allow-empty -m first && \
         {git} clone -q --bare work repository.git && {git} -C repository.git update-server-info"
    ));
    for proxy in ["socks5h://127.0.0.1:1080", "http://127.0.0.1:8080"] {
        let clone = format!("{git} -c http.proxy={proxy} clone -q http://10.9.0.2/repository.git");
        world.left.run(format!("cd /run/rig && rm -rf clone && {clone} clone"));
        assert_eq!(world.left.run("git -C /run/rig/clone log --format=%s").trim(), "first");
    }
    for host in [&world.left, &world.right.host] {
        host.run("iperf3 -s -D >/dev/null 2>&1 </dev/null");
        eventually("iperf3 serves", PATIENCE, || host.listens(5201));
    }
    iperf3(&world.left, "iperf3 -c 127.0.0.1 -p 5301 -t 1 -P 4");
    iperf3(&world.left, "iperf3 -c 127.0.0.1 -p 5301 -t 1 --reverse");
    iperf3(&world.right.host, "iperf3 -c 10.9.0.1 -p 5302 -t 1");
}

/// Runs an iperf3 client to its end. It runs again while its server is busy with the previous run
/// and therefore resets the connection.
fn iperf3(host: &Host, line: &str) -> String {
    let mut output = String::new();
    eventually(line, PATIENCE, || {
        let outcome = host.attempt(line);
        output = outcome.stdout + &outcome.stderr;
        let is_busy =
            output.contains("Connection reset by peer") || output.contains("server is busy");
        assert!(outcome.ok || is_busy, "{line}: {output}");
        !is_busy
    });
    output
}

#[test]
fn an_unprivileged_user_runs_it_shows_it_and_pings() {
    if lacks_users() {
        return;
    }
    let mut world = world();
    world.serve_files();
    let conf = world.conf(SERVICES);
    let nobody = world.unprivileged_user(&conf);
    world.start(&nobody, &conf);
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    let shown = world.left.run(format!("{nobody} {} show", linerate()));
    let stack = stack();
    for line in
        ["interface: wg0", &format!("stack: {stack}"), "socks5: 127.0.0.1:1080", "http: 127"]
    {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    for host in ["10.9.0.2", "fd09::2"] {
        let output = world.left.run(format!("{nobody} {} ping -c 1 wg0 {host}", linerate()));
        assert!(output.contains(&format!("answer from {host}: ")), "{output}");
    }
    let nowhere = world.left.attempt(format!("{nobody} {} ping -c 1 wg0 10.9.0.77", linerate()));
    assert!(!nowhere.ok && nowhere.stdout.contains("no answer"), "{nowhere:?}");
    // Right reaches left, too: the kernel in the namespace answers.
    world.right.host.run("ping -n -c 1 -W 5 10.9.0.1 && ping -n -c 1 -W 5 fd09::1");
    let processes = if stack == "namespace" { "2" } else { "1" };
    assert_eq!(world.left.run("pgrep -c -u nobody linerate").trim(), processes);
    world.ends();
    eventually("its child is gone, too", PATIENCE, || {
        world.left.attempt("pgrep -u nobody linerate").stdout.trim().is_empty()
    });
    assert!(!world.left.has(&format!("{RUNTIME}/wireguard/wg0.sock")));
}

#[test]
fn an_unprivileged_user_stops_its_proxy_if_the_socket_folder_is_roots() {
    if lacks_users() {
        return;
    }
    let mut world = world();
    world.left.run("mkdir -p -m 700 /var/run/wireguard && chmod 700 /var/run/wireguard");
    let conf = world.conf(SERVICES);
    let nobody = world.unprivileged_user(&conf);
    world.start(&nobody, &conf);
    let down = world.left.attempt(format!("{nobody} {} down wg0", linerate()));
    assert!(down.ok && down.stderr.is_empty(), "{}", down.stderr);
    let child = world.proxy.as_mut().expect("it was started");
    assert!(child.wait().expect("a child can be waited for").success());
}

#[test]
fn a_killed_proxy_ends_its_namespace() {
    let mut world = with_proxy("");
    world.left.run("kill -KILL $(cat /run/rig/proxy.pid)");
    world.proxy.take().expect("it was started").wait().expect("a child can be waited for");
    eventually("its child is gone, too", PATIENCE, || {
        world.left.attempt("pgrep linerate").stdout.trim().is_empty()
    });
}

/// The wrapper to run a command that may not create a user namespace.
fn forbidden() -> String {
    let forbid = "echo 0 >/proc/sys/user/max_user_namespaces";
    let line = format!("{forbid} && exec {POWERLESS} \"$@\"");
    format!("unshare --user --map-root-user -- sh -c '{line}' sh")
}

#[test]
fn without_user_namespaces_a_clear_message_is_printed() {
    let world = world();
    let conf = world.conf(SERVICES);
    let output = world.fails(&forbidden(), &conf);
    assert!(output.contains("user.max_user_namespaces"), "not clear: {output}");
    assert!(output.contains("No space left on device"), "the kernel's answer is missing: {output}");
}

#[test]
fn without_user_namespaces_the_in_process_stack_is_used() {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(SERVICES);
    world.start_on("auto", &forbidden(), &conf);
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    let shown = world.left.run(format!("{} show", linerate()));
    assert!(shown.contains("stack: in-process"), "{shown}");
    assert_eq!(world.left.run("pgrep -c linerate").trim(), "1", "the failed child remains");
}

#[test]
fn errors_name_their_line_and_up_ignores_keys_of_the_proxy() {
    let world = world();
    let output = world.fails("", &world.conf("Socks5 = 127.0.0.1:1080\nForward = tcp 1 -> 2"));
    assert!(output.contains("/run/rig/wg0.conf:5: Forward: "), "{output}");
    let output = world.fails("", &world.conf("Socks5 = 192.0.2.1:1080"));
    assert!(output.contains("/run/rig/wg0.conf:4: Socks5: 192.0.2.1:1080"), "{output}");
    let output = world.fails("", &world.conf("ProxyUser = ann:/nowhere"));
    assert!(output.contains("/run/rig/wg0.conf:4: ProxyUser: /nowhere"), "{output}");
    let conf = world.conf(SERVICES);
    let up = world.left.attempt(format!("{} up {conf} 2>&1", linerate()));
    assert!(!up.ok && up.stdout.contains("wg0.conf:4: Socks5: only `linerate proxy`"), "{up:?}");
    assert!(!world.left.has_device("wg0"));
}

#[test]
fn hooks_are_not_run_and_one_warning_is_printed() {
    let mut world = world();
    let conf = world.conf(&format!("{SERVICES}PostUp = touch /run/rig/hook\nTable = off"));
    world.start("", &conf);
    let output = world.left.read(LOG);
    assert_eq!(output.matches("apply only to `linerate up`").count(), 1, "{output}");
    assert!(!world.left.has("/run/rig/hook"));
}
