//! `linerate capture`: its output for tcpdump(1), and its effect on the traffic.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpListener,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use netns::{
    Addresses, Family, Host, INTERFACE, Implementation, Key, Pace, Pair, Side, Stream, announce,
    deadline, eventually, forced_off, ping,
};

use super::PATIENCE;

/// Upper limit of memory for packets that wait for a reader, in bytes.
const WAITING: u64 = 4 << 20;

/// A running capture; its output is in a file.
struct Capturing {
    host: Host,
    name: String,
    child: Child,
}

impl Capturing {
    /// Starts one, and waits until it captures.
    fn start(host: &Host, name: &str, arguments: &str, stdout: Stdio) -> Self {
        let program = Implementation::Linerate.path();
        let line = format!(
            "echo $$ >/run/rig/{name}.pid; exec {} capture {arguments} 2>/run/rig/{name}.output",
            program.display()
        );
        let mut command = host.command("bash");
        command.args(["-c", &line]).stdin(Stdio::null()).stdout(stdout);
        let child = command.spawn().expect("nsenter is installed (make deps)");
        let capturing = Self { host: host.clone(), name: name.to_owned(), child };
        let began = || capturing.output().contains("capturing inside");
        eventually("the capture begins", PATIENCE, began);
        capturing
    }

    fn output(&self) -> String {
        let path = format!("/run/rig/{}.output", self.name);
        if self.host.has(&path) { self.host.read(&path) } else { String::new() }
    }

    fn signal(&self, signal: &str) {
        self.host.run(format!("kill -{signal} $(cat /run/rig/{}.pid)", self.name));
    }

    /// Ends it as ctrl-C does; returns the number of captured and of lost packets.
    fn finish(mut self) -> (u64, u64) {
        self.signal("INT");
        self.ended()
    }

    fn ended(&mut self) -> (u64, u64) {
        let status = self.child.wait().expect("a child can be waited for");
        let output = self.output();
        assert!(status.success(), "{status}: {output}");
        let words: Vec<&str> = output.lines().last().unwrap_or("").split(' ').collect();
        match words[..] {
            ["linerate:", packets, "packets", "captured,", dropped, "dropped", ..] => {
                (packets.parse().expect("a number"), dropped.parse().expect("a number"))
            }
            _ => panic!("{output}"),
        }
    }
}

/// Each packet of a file, as tcpdump prints it.
fn packets_of(host: &Host, file: &str) -> Vec<String> {
    let text = host.run(format!("tcpdump -n -r {file} 2>/dev/null"));
    text.lines().map(str::to_owned).collect()
}

fn count(packets: &[String], words: &[&str]) -> usize {
    packets.iter().filter(|packet| words.iter().all(|word| packet.contains(word))).count()
}

/// The bytes of TCP to this address.
fn payload(packets: &[String], to: &str) -> u64 {
    let to = format!(" > {to}.");
    let tcp = packets.iter().filter(|packet| packet.contains(&to) && packet.contains("Flags"));
    let lens = tcp.filter_map(|packet| packet.rsplit_once("length ")?.1.parse::<u64>().ok());
    lens.sum()
}

#[test]
fn tcpdump_reads_both_ways_of_a_ping_and_of_a_stream() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let host = &left.host;
    let whole = Capturing::start(host, "whole", "wg0 -w /run/rig/whole", Stdio::null());
    let cut = Capturing::start(host, "cut", "wg0 -s 60 -w /run/rig/cut", Stdio::null());
    let target = right.inner.of(Family::V4);
    assert!(ping(host, format!("-c 3 -i 0.2 {target}")).is_complete());
    let bytes = 2 << 20;
    let pace = Pace { bytes: Some(bytes), ..Pace::FULL };
    let address = right.inner.endpoint(Family::V4, 5001).parse().expect("an address");
    let carried = Stream::start(host, &right.host, address, pace).finish();
    assert_eq!(carried.received, bytes);
    let ((packets, dropped), (of_cut, _)) = (whole.finish(), cut.finish());

    assert_eq!(host.run("stat -c %a /run/rig/whole").trim(), "600");
    let seen = packets_of(host, "/run/rig/whole");
    assert_eq!((seen.len() as u64, dropped), (packets, 0));
    assert_eq!(packets_of(host, "/run/rig/cut").len() as u64, of_cut);
    let source = left.inner.of(Family::V4);
    for (kind, from, to) in [("request", source, target), ("reply", target, source)] {
        let words = [format!("IP {from} > {to}: ICMP echo {kind}")];
        assert_eq!(count(&seen, &[&words[0]]), 3, "{seen:#?}");
    }
    assert!(payload(&seen, target) >= bytes, "the whole stream");
    assert!(count(&seen, &[&format!("IP {target}.5001 > "), "ack"]) > 3, "and its answers");
    let longest =
        seen.iter().filter_map(|packet| packet.rsplit_once("length ")?.1.parse::<u64>().ok());
    let longest = longest.max().unwrap_or_default();
    assert!(longest > 1420 || forced_off().is_some(), "super-packets are unsplit: {longest}");
    let [all, less] = ["whole", "cut"].map(|name| {
        let size = host.run(format!("stat -c %s /run/rig/{name}"));
        size.trim().parse::<u64>().expect("a size")
    });
    assert!(all > bytes && less < 300 * of_cut, "{all} and {less} bytes");
}

#[test]
fn a_pipe_ends_by_itself_and_an_impossible_capture_is_refused() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let (host, program) = (&left.host, Implementation::Linerate.path());
    let target = right.inner.of(Family::V4);
    let mut pings = host
        .command("ping")
        .args(["-q", "-i", "0.1", target])
        .stdout(Stdio::null())
        .spawn()
        .expect("ping is installed");
    let (capture, peer) = (format!("{} capture {INTERFACE}", program.display()), &right.key.public);
    let seen = host.run(format!("{capture} -c 4 --peer {peer} | tcpdump -n -r - 2>/dev/null"));
    assert_eq!(seen.lines().filter(|line| line.contains("ICMP echo")).count(), 4, "{seen}");
    // A reader that ends before the capture.
    let seen = host.run(format!("{capture} | tcpdump -n -c 2 -r - 2>/dev/null"));
    assert_eq!(seen.lines().count(), 2, "{seen}");
    pings.kill().and_then(|()| pings.wait()).expect("it was started");

    let stranger = Key::generate().public;
    let many: Vec<_> = (0..4)
        .map(|number| Capturing::start(host, &format!("c{number}"), "wg0", Stdio::null()))
        .collect();
    for (arguments, why) in [
        (format!("capture {INTERFACE} --peer {stranger}"), "the interface does not have this peer"),
        (format!("capture {INTERFACE} -w /run/rig/none"), "too many captures"),
        ("capture wg9 -w /run/rig/none".to_owned(), "wg9: no userspace interface"),
    ] {
        let refused = host.attempt(format!("{} {arguments}", program.display()));
        assert!(!refused.ok && refused.stderr.contains(why), "{why}: {refused:?}");
    }
    assert!(!host.has("/run/rig/none"), "a refused capture creates no file");
    for capturing in many {
        assert_eq!(capturing.finish().1, 0);
    }
    host.run(format!(
        "timeout 5 {capture} -s 0 -c 1 -w /run/rig/one & ping -c 20 -i 0.2 {target}; wait $!"
    ));
}

#[test]
fn a_stalled_reader_loses_packets_without_affecting_traffic_or_leaking() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let daemon = left.host.daemon_of(INTERFACE).expect("it runs");
    let stream = |port| {
        let address = right.inner.endpoint(Family::V4, port).parse().expect("an address");
        let pace = Pace { bytes: Some(24 << 20), ..Pace::FULL };
        let carried = Stream::start(&left.host, &right.host, address, pace).finish();
        assert_eq!(carried.received, carried.sent);
        assert!(
            carried.longest_gap < deadline(Duration::from_secs(2)),
            "{:?}",
            carried.longest_gap
        );
    };
    let status = || {
        let text = left.host.read(&format!("/proc/{daemon}/status"));
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            number.unwrap_or_else(|| panic!("no {key} in {text}"))
        };
        (value("VmRSS:") << 10, value("Threads:"))
    };
    // Memory for the first traffic does not belong to a capture.
    stream(5001);
    let (memory, threads) = status();

    // The pipe is not read.
    let mut stalled = Capturing::start(&left.host, "stalled", "wg0", Stdio::piped());
    let mut killed = Capturing::start(&left.host, "killed", "wg0", Stdio::piped());
    stream(5002);
    let (during, _) = status();
    assert!(during < memory + 3 * WAITING, "{memory} bytes, and then {during}");
    killed.signal("KILL");
    assert!(!killed.child.wait().expect("it was started").success());
    stalled.signal("INT");
    let mut pipe = stalled.child.stdout.take().expect("it is piped");
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe");
    let (packets, dropped) = stalled.ended();
    announce(&format!("CAPTURE: {packets} packets of a stalled reader, {dropped} dropped"));
    assert!(packets > 10 && dropped > 10, "{packets} packets, {dropped} dropped");
    assert!((WAITING / 2..WAITING + (2 << 20)).contains(&(bytes.len() as u64)), "{}", bytes.len());
    let file = left.host.outside("/run/rig/late");
    File::create(file).and_then(|mut file| file.write_all(&bytes)).expect("a file");
    assert_eq!(packets_of(&left.host, "/run/rig/late").len() as u64, packets);

    // The allocator may retain a part of the freed memory.
    eventually("threads end and memory is freed", PATIENCE, || {
        let (now, now_threads) = status();
        now_threads == threads && now < memory + WAITING
    });
    announce(&format!(
        "CAPTURE: {memory} bytes resident before, {during} during, {} after",
        status().0
    ));
    stream(5003);
}

#[test]
fn packets_of_a_proxy_with_its_own_stack_are_captured() {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    let key = Key::generate();
    right.host.run(format!("wg set wg0 peer {} allowed-ips 10.9.0.1/32", key.public));
    let conf = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\nSocks5 = 127.0.0.1:1080\n\
         [Peer]\nPublicKey = {}\nEndpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.0/24\n",
        key.private, right.key.public
    );
    let (conf, program) = (left.write("wg0.conf", &conf), Implementation::Linerate.path());
    let mut proxy = left
        .command(&program)
        .args(["proxy", "--stack", "in-process", &conf])
        .stdin(Stdio::null())
        .spawn()
        .expect("nsenter is installed (make deps)");
    eventually("the proxy listens", PATIENCE, || left.listens(1080));

    let listener = right.host.inside(|| TcpListener::bind("10.9.0.2:5001")).expect("it is free");
    let served = thread::Builder::new().spawn(move || {
        let (mut client, _) = listener.accept().expect("a client comes");
        let _ = client.read(&mut [0; 1024]);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nConnection: close\r\n\r\n";
        let sent = client.write_all(head.as_bytes());
        sent.and_then(|()| client.write_all(&[b'x'; 100_000])).expect("it is read");
    });
    let capturing = Capturing::start(&left, "proxy", "wg0 -w /run/rig/proxy", Stdio::null());
    let page = left.run("curl -sS --fail -m 20 --socks5 127.0.0.1:1080 http://10.9.0.2:5001/");
    assert_eq!(page.len(), 100_000);
    left.run(format!("{} ping -c 1 wg0 10.9.0.2", program.display()));
    served.expect("a thread").join().expect("it served");
    assert_eq!(capturing.finish().1, 0);
    let seen = packets_of(&left, "/run/rig/proxy");
    for words in [
        ["IP 10.9.0.1.", "10.9.0.2.5001: Flags [S"],
        ["IP 10.9.0.2.5001", "Flags [S."],
        ["IP 10.9.0.1 > 10.9.0.2", "ICMP echo request"],
        ["IP 10.9.0.2 > 10.9.0.1", "ICMP echo reply"],
    ] {
        assert_eq!(count(&seen, &words), 1, "{words:?} in {seen:#?}");
    }
    assert!(payload(&seen, "10.9.0.1") >= 100_000);

    // A capture of an ended process reports it.
    let mut left_over = Capturing::start(&left, "over", "wg0 -w /run/rig/over", Stdio::null());
    left.run(format!("{} down wg0", program.display()));
    assert!(proxy.wait().expect("it was started").success());
    assert!(!left_over.child.wait().expect("it was started").success());
    assert!(left_over.output().contains("the daemon has exited"), "{}", left_over.output());
}
