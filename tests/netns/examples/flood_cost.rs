//! TCP throughput during a flood of forged disco and STUN datagrams, in turns: without a flood, with a
//! flood to a closed port, and with a flood to the node's port:
//!
//! ```text
//! cargo build --release -p linerate-cli
//! LINERATE_BIN=target/release/linerate tests/netns/run \
//!   cargo run -p linerate-netns --example flood_cost -- [ROUNDS] [SECONDS] [DATAGRAMS A SECOND]
//! ```
//!
//! The sender shares the machine. The second figure therefore shows the cost of the flood in the
//! kernel, and the third must be compared with it. Then it measures the cost of a forged datagram
//! without other traffic, which depends little on other work of the machine.

#![forbid(unsafe_code)]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netns::{
    Family, Host, Iperf, Member, MemberKind, Path, Stopwatch, Tailnet, Uplink, in_background,
    median,
};

const DISCO: [u8; 6] = *b"TS\xf0\x9f\x92\xac";
const STUN: [u8; 8] = [1, 1, 0, 12, 0x21, 0x12, 0xa4, 0x42];

/// Bytes of a forged ping, and of a forged STUN response.
const LENGTHS: [usize; 2] = [124, 32];

/// A port of the node's host without a listener.
const CLOSED: u16 = 9;

/// Pause between two bursts.
const REST: Duration = Duration::from_millis(1);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u32>().expect("a number"));
    let mut next = |or| arguments.next().unwrap_or(or);
    let (rounds, seconds, rate) = (next(5), next(5), next(100_000));
    let Some(tailnet) = Tailnet::start() else { return };
    let [left, right] = ["left", "right"].map(|name| {
        Member::join(&tailnet, tailnet.host(name, Uplink::Switch), MemberKind::Linerate, "")
    });
    let attacker = tailnet.host("attacker", Uplink::Switch);
    left.wait_until_direct(&right);
    right.wait_until_direct(&left);
    let Path::Direct(at) = left.path_to(&right) else { panic!("the path is direct") };
    let node: SocketAddr = at.parse().expect("an address");
    let targets = [None, Some(SocketAddr::new(node.ip(), CLOSED)), Some(node)];
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..rounds as usize {
        for turn in 0..targets.len() {
            let which = (round + turn) % targets.len();
            let (carried, sent) = carry(&left, &right, &attacker, targets[which], seconds, rate);
            println!("{:?}: {carried:.3} Gbit/s, {sent:.0} forged a second", targets[which]);
            rates[which].push(carried);
        }
    }
    let [alone, concurrent, flooded] = rates.map(median);
    println!("median: alone {alone:.3}, closed port {concurrent:.3}, flooded {flooded:.3} Gbit/s");
    println!(
        "remaining: {:.3} of alone, {:.3} of closed port",
        flooded / alone,
        flooded / concurrent
    );
    for target in targets.into_iter().flatten() {
        let [sender, node] = cost(&right, &attacker, target, seconds, rate);
        println!("{target}: {sender:.0} ns of CPU a datagram at the sender, {node:.0} at the node");
    }
    assert!(matches!(left.path_to(&right), Path::Direct(_)), "the path is lost");
}

/// Cost of a forged datagram without TCP, in nanoseconds of CPU: sending including the kernel, and
/// the processes of the node.
fn cost(node: &Member, attacker: &Host, target: SocketAddr, seconds: u32, rate: u32) -> [f64; 2] {
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, attacker) = (stop.clone(), attacker.clone());
    let flood = in_background("flood", move || {
        let before = on_cpu("/proc/thread-self/schedstat");
        let sent = flood(&attacker, target, rate, &stopped);
        (sent.count, on_cpu("/proc/thread-self/schedstat") - before)
    });
    // The first second is skipped: the node must detect the flood.
    thread::sleep(Duration::from_secs(1));
    let (before, watch) = (used_by(node), Stopwatch::start());
    thread::sleep(Duration::from_secs(seconds.into()));
    let (used, part) = (used_by(node) - before, watch.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    let (sent, sending) = flood.join().expect("the flood ends");
    let sent = f64::from(sent);
    [sending / sent, used / (sent * part / (part + 1.0))]
}

/// Time of all threads of a node's processes on a core, in nanoseconds.
fn used_by(node: &Member) -> f64 {
    let all = node.host.attempt("cat /proc/[0-9]*/task/*/schedstat").stdout;
    all.lines().filter_map(|line| line.split(' ').next()?.parse::<f64>().ok()).sum()
}

fn on_cpu(file: &str) -> f64 {
    let text = fs::read_to_string(file).expect("the kernel counts");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("nanoseconds")
}

/// TCP throughput, and forged datagrams a second during it.
fn carry(
    left: &Member,
    right: &Member,
    attacker: &Host,
    target: Option<SocketAddr>,
    seconds: u32,
    rate: u32,
) -> (f64, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let flood = target.map(|target| {
        let (stop, attacker) = (stop.clone(), attacker.clone());
        in_background("flood", move || flood(&attacker, target, rate, &stop))
    });
    let run = Iperf {
        client: &left.host,
        server: &right.host,
        address: right.addresses.of(Family::V4),
        seconds,
        options: "",
    };
    let carried = run.run().gbps();
    stop.store(true, Ordering::Relaxed);
    (carried, flood.map_or(0.0, |flood| flood.join().expect("the flood ends").rate))
}

/// Result of a flood.
struct Sent {
    count: u32,
    /// Datagrams a second.
    rate: f64,
}

/// Sends forged datagrams, each from another sender.
fn flood(attacker: &Host, to: SocketAddr, rate: u32, stop: &AtomicBool) -> Sent {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = attacker.inside(|| UdpSocket::bind(any).expect("a port is free"));
    let mut forged = [DISCO.to_vec(), STUN.to_vec()];
    for (datagram, len) in forged.iter_mut().zip(LENGTHS) {
        datagram.resize(len, 0x5a);
    }
    let (watch, mut begun, mut sent) = (Stopwatch::start(), 0_u64, 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let due = (watch.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        for number in begun..due {
            let datagram = &mut forged[(number % 2) as usize];
            datagram[8..16].copy_from_slice(&number.to_le_bytes());
            // A datagram without room is lost.
            sent += u32::from(socket.send_to(datagram, to).is_ok());
        }
        begun = due.max(begun);
        thread::sleep(REST);
    }
    Sent { count: sent, rate: f64::from(sent) / watch.elapsed().as_secs_f64() }
}
