//! Memory of idle connections with the stack in the process.

use std::net::TcpListener;

use nix::sys::socket::{Backlog, listen};

use super::*;

/// Memory limit of a proxy with all of them, in bytes.
const MOST: u64 = 256 << 20;
/// Connections requested before the first answer is read.
const AT_ONCE: usize = 500;

const CONNECTIONS: usize = 10_000;

#[test]
fn ten_thousand_idle_connections_fit_in_memory_and_carry_bytes_afterwards() {
    if stack() != "in-process" {
        skip("the stack in the process");
        return;
    }
    let world = with_proxy("");
    let right = &world.right.host;
    right.run("sysctl -q net.core.somaxconn=16384 net.ipv4.tcp_max_syn_backlog=16384");
    // They wait to be accepted, and need no file.
    let listener = right.inside(|| TcpListener::bind("10.9.0.2:9")).expect("the port is free");
    listen(&listener, Backlog::MAXALLOWABLE).expect("it listens already");
    let before = resident(&world);
    let mut streams = Vec::with_capacity(CONNECTIONS);
    world.left.inside(|| {
        while streams.len() < CONNECTIONS {
            let new: Vec<_> = (0..AT_ONCE).map(|_| request_connection()).collect();
            streams.extend(new.into_iter().map(connected));
        }
    });
    let all = resident(&world);
    let each = (all - before) / CONNECTIONS as u64;
    announce(&format!("{CONNECTIONS} idle connections: {} MiB, {each} bytes each", all >> 20));
    assert!(all < MOST, "{} MiB", all >> 20);
    // The proxy chooses their order.
    streams.iter_mut().for_each(|stream| stream.write_all(b"hello").expect("the proxy reads"));
    for _ in 0..CONNECTIONS / 10 {
        let (mut there, _) = listener.accept().expect("they wait");
        there.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let mut output = [0; 5];
        there.read_exact(&mut output).expect("it comes");
        assert_eq!(&output, b"hello");
    }
}

/// Requests a connection from the SOCKS5 proxy, all at once.
fn request_connection() -> TcpStream {
    let mut stream = TcpStream::connect("127.0.0.1:1080").expect("the proxy listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 10, 9, 0, 2, 0, 9]).expect("the proxy reads");
    stream
}

fn connected(mut stream: TcpStream) -> TcpStream {
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("the proxy answers");
    assert_eq!(answer[..4], [5, 0, 5, 0], "{answer:?}");
    stream
}

/// Resident memory of the proxy in bytes.
fn resident(world: &World) -> u64 {
    let pid = world.left.read("/run/rig/proxy.pid");
    let status = world.left.read(&format!("/proc/{}/status", pid.trim()));
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it lives");
    let kilobytes = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kilobytes.expect("a number") * 1024
}
