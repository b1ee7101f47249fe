//! Clients that use up all connections of a proxy with few file descriptors.

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt},
};

use super::*;

/// File descriptors of the proxy.
const FILES: usize = 512;
/// More connections than the proxy can have.
const CROWD: usize = 700;

/// A proxy with few descriptors that exposes files.
fn with_few_files() -> World {
    let mut world = world();
    world.serve_files();
    world.left.run("mkdir -p /run/rig/here && printf here >/run/rig/here/page");
    services::files(&world.left, "127.0.0.1:8003", "/run/rig/here");
    let conf = world.conf(&format!("{SERVICES}Expose = tcp 10.9.0.1:80 -> 127.0.0.1:8003\n"));
    world.start(&format!("prlimit --nofile={FILES}:{FILES}"), &conf);
    world
}

/// Opens connections from inside a host that send a few bytes.
fn crowd(count: usize, host: &Host, to: &str, text: &[u8]) -> Vec<TcpStream> {
    let to: SocketAddr = to.parse().expect("an address");
    let come = || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
        stream.write_all(text).ok()?;
        Some(stream)
    };
    host.inside(|| (0..count).filter_map(|_| come()).collect())
}

/// The number of open connections after each was served or refused.
fn settled(crowds: &[Vec<TcpStream>]) -> usize {
    let held = || crowds.iter().map(|crowd| alive(crowd)).sum::<usize>();
    eventually("each is served or refused", PATIENCE, || held() < FILES / 4);
    held()
}

/// The number of connections that are still open.
fn alive(crowd: &[TcpStream]) -> usize {
    crowd.iter().filter(|stream| is_alive(stream)).count()
}

fn is_alive(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket can be non-blocking");
    stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Concurrent clients; the proxy allows 1024 to wait for their requests.
const BURST: usize = 2000;

#[test]
fn two_thousand_concurrent_clients_are_all_served() {
    let world = with_proxy("");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("it has a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit");
    // The first handshake of the tunnel is not part of the measurement.
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    let connect = |_| TcpStream::connect("127.0.0.1:1080").expect("the queue has room");
    let clients: Vec<_> = world.left.inside(|| (0..BURST).map(connect).collect());
    let served = std::thread::scope(|scope| {
        let thread = || std::thread::Builder::new().stack_size(64 * 1024);
        let start = |client| thread().spawn_scoped(scope, move || is_served(client));
        let talks: Vec<_> = clients.into_iter().map(start).collect();
        let is_served = |talk: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| {
            talk.expect("a thread starts").join().expect("it returns the result")
        };
        talks.into_iter().map(is_served).filter(|is_served| *is_served).count()
    });
    assert_eq!((served, world.dropped("proxy evicted asking")), (BURST, 0));
}

/// Whether a client of the SOCKS5 proxy gets a page.
fn is_served(mut client: TcpStream) -> bool {
    let request = [5, 1, 0, 1, 10, 9, 0, 2, 0, 80];
    for (say, answered) in [(&[5, 1, 0][..], 2), (&request, 10), (b"GET /page HTTP/1.0\r\n\r\n", 0)]
    {
        let answer = &mut [0; 10][..answered];
        if client.write_all(say).and_then(|()| client.read_exact(answer)).is_err() {
            return false;
        }
    }
    let mut page = Vec::new();
    client.read_to_end(&mut page).is_ok_and(|_| page.ends_with(b"hello"))
}

impl World {
    fn files(&self) -> usize {
        let count = self.left.run("ls /proc/$(cat /run/rig/proxy.pid)/fd | wc -l");
        count.trim().parse().expect("a number")
    }

    /// The number of connections dropped for a reason, from `linerate show`.
    fn dropped(&self, reason: &str) -> usize {
        let shown = self.left.run(format!("{} show", linerate()));
        let line = shown.lines().find_map(|line| line.trim().strip_prefix(reason));
        line.map_or(0, |rest| rest.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a count"))
    }

    /// The answer of left's service to right.
    fn exposed(&self) -> String {
        self.right.host.attempt("curl --silent --max-time 2 http://10.9.0.1/page").stdout
    }
}

#[test]
fn one_client_in_the_tunnel_gets_its_share_and_its_idle_connections_are_evicted() {
    let world = with_few_files();
    assert_eq!(world.exposed(), "here");
    let all = [crowd(CROWD, &world.right.host, "10.9.0.1:80", b"?")];
    let (held, files) = (settled(&all), world.files());
    announce(&format!("{held} of {CROWD} connections are open, with {files} of {FILES} files"));
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    assert!((10..FILES / 4).contains(&held) && files < FILES / 2);
    assert!(world.dropped("proxy refused source") >= CROWD - 2 * held);
    // The client vanishes without a notification.
    let right = &world.right.host;
    right.run("ip route add blackhole 10.9.0.1/32");
    for stream in all.into_iter().flatten() {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, sockopt::Linger, &linger).expect("a socket can linger");
    }
    right.run("ip route del blackhole 10.9.0.1/32");
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    // A slot may become free by itself, so newcomers take free slots and stay.
    let mut newcomers = Vec::new();
    eventually("idle connections of the client are evicted", 2 * PATIENCE, || {
        newcomers.extend(crowd(1, right, "10.9.0.1:80", b"?"));
        newcomers.retain(is_alive);
        world.dropped("proxy evicted idle") > 0
    });
    drop(newcomers);
    eventually("a newcomer is served", PATIENCE, || world.exposed() == "here");
    assert!(world.files() <= files + 8, "{} of {files} files", world.files());
}

#[test]
fn clients_without_a_request_do_not_block_others() {
    let world = with_few_files();
    let silent: Vec<_> =
        ["127.0.0.1:1080", "127.0.0.1:8080"].map(|to| crowd(CROWD, &world.left, to, b"")).into();
    let (held, files) = (settled(&silent), world.files());
    announce(&format!("{held} silent clients are open, with {files} of {FILES} files"));
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    let by_http = world.curl("--proxy http://127.0.0.1:8080 http://10.9.0.2/page");
    assert_eq!(by_http.stdout, "hello", "{by_http:?}");
    assert_eq!(world.exposed(), "here");
    assert!(held < FILES / 4 && files < FILES / 2);
    assert!(world.dropped("proxy evicted asking") >= 2 * CROWD - held);
}

#[test]
fn silent_peers_in_the_tunnel_are_probed_by_keepalives() {
    if stack() != "namespace" {
        return netns::skip("the stack of the kernel");
    }
    let world = with_proxy("Expose = tcp 10.9.0.1:80 -> 127.0.0.1:8003");
    world.left.run("mkdir -p /run/rig/here");
    services::files(&world.left, "127.0.0.1:8003", "/run/rig/here");
    let _exposed = world.right.host.inside(|| TcpStream::connect("10.9.0.1:80").expect("exposed"));
    let mut dialled =
        world.left.inside(|| TcpStream::connect("127.0.0.1:1080").expect("it listens"));
    let ask = [5, 1, 0, 5, 1, 0, 1, 10, 9, 0, 2, 0, 80];
    dialled.write_all(&ask).expect("the proxy reads");
    dialled.read_exact(&mut [0; 12]).expect("the proxy answers");
    let inside = "nsenter --net --target $(pgrep -P $(cat /run/rig/proxy.pid)) ss -tnoH";
    for connection in ["10.9.0.1:80 ", "10.9.0.2:80 "] {
        eventually("both have a timer", PATIENCE, || {
            let shown = world.left.run(inside);
            let query = |line: &&str| line.contains("timer:(keepalive,9min");
            shown.lines().filter(query).any(|line| line.contains(connection))
        });
    }
}
