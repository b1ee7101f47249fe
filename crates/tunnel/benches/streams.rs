//! Measures the cost of tokio: the throughput of a stream between two tunnels over loopback, in one
//! process. The two ends are driven by tasks of tokio's multi-threaded runtime, and for comparison by
//! one thread each that only polls and parks. The sockets are the same.
//!
//! ```text
//! cargo bench -p linerate-tunnel            # seconds a turn, rounds: 1 9
//! ```
#![expect(clippy::unwrap_used, reason = "a bench ends at the first error")]

#[path = "../tests/tunnels/block_on.rs"]
mod block_on;

use std::{env, net::SocketAddr, thread, time::Duration};

use block_on::block_on;
use sys::clock::boottime_nanos;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Builder,
};
use tunnel::{Config, Peer, PrivateKey, TcpStream, Tunnel};

/// Bytes of a read and of a write.
const BUFFER: usize = 64 * 1024;

fn main() {
    let numbers: Vec<u64> = env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (seconds, rounds) = match numbers[..] {
        [seconds, rounds] => (seconds, rounds),
        _ => (1, 9),
    };
    let turn = Duration::from_secs(seconds);
    let (a, b) = block_on(tunnels());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let (near, far) = block_on(connected(&a, &b));
        let sending = runtime.spawn(send(near));
        let tokio = runtime.block_on(runtime.spawn(receive(far, turn))).unwrap();
        runtime.block_on(sending).unwrap();

        let (near, far) = block_on(connected(&a, &b));
        let sending = thread::Builder::new().spawn(|| block_on(send(near))).unwrap();
        let threads = block_on(receive(far, turn));
        sending.join().unwrap();

        println!("tokio {tokio:.2} Gbit/s, threads {threads:.2} Gbit/s, {:.3}", tokio / threads);
        ratios.push(tokio / threads);
    }
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    println!("tokio to threads: {:.3} ({least:.3} to {most:.3})", ratios[ratios.len() / 2]);
}

async fn tunnels() -> (Tunnel, Tunnel) {
    let keys = [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]));
    let config = |own: usize, peer: Peer| {
        let address = format!("10.7.0.{own}").parse().unwrap();
        Config::new(keys[own].clone()).mtu(1420).address(address).peer(peer)
    };
    let peer =
        |of: usize| Peer::new(keys[of].public_key()).allowed_ips(["10.7.0.0/24".parse().unwrap()]);
    let b = Tunnel::start(&config(1, peer(0))).await.unwrap();
    let to_b = peer(1).endpoint("127.0.0.1", b.listen_port());
    (Tunnel::start(&config(0, to_b)).await.unwrap(), b)
}

async fn connected(a: &Tunnel, b: &Tunnel) -> (TcpStream, TcpStream) {
    let at: SocketAddr = "10.7.0.1:80".parse().unwrap();
    let listener = b.listen(at).unwrap();
    let near = a.connect(at).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// Sends until the other end is closed.
async fn send(mut stream: TcpStream) {
    let bytes = vec![7; BUFFER];
    while stream.write_all(&bytes).await.is_ok() {}
}

/// Receives for this time, after the first 64 MiB. Returns Gbit/s.
async fn receive(mut stream: TcpStream, turn: Duration) -> f64 {
    let mut bytes = vec![0; BUFFER];
    let mut received = 0;
    while received < 64 << 20 {
        received += stream.read(&mut bytes).await.unwrap();
    }
    let (begun, mut counted) = (boottime_nanos(), 0);
    loop {
        counted += stream.read(&mut bytes).await.unwrap();
        let took = boottime_nanos() - begun;
        if took >= turn.as_nanos() as u64 {
            return counted as f64 * 8.0 / took as f64;
        }
    }
}
