//! The library in a program on left, without rights and without a device; right is linerate with the
//! kernel's TCP.
//!
//! ```text
//!   left: this process, linerate-tunnel                      right
//!   (no wg0; 10.9.0.1, fd09::1 in the process) . . . . . .   wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//!                                                            files :80, names :53
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use netns::{Addresses, Implementation, Key, Pair, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tunnel::{Config, Tunnel};

use crate::proxy::services::{self, NAME};

const PATIENCE: Duration = Duration::from_secs(15);

struct World {
    right: Side,
    left: netns::Host,
    tunnel: Tunnel,
    runtime: Runtime,
}

fn world() -> World {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    let key = Key::generate();
    right.host.run(format!("wg set wg0 peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public));
    services::names(&right.host, &["10.9.0.2"]);
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24, fd09::1/64\nDNS = 10.9.0.2\n\
         [Peer]\nPublicKey = {}\nEndpoint = 10.1.0.2:51820\n\
         AllowedIPs = 10.9.0.0/24, fd09::/64\n",
        key.private, right.key.public
    );
    let config = Config::from_text(&text).expect("a configuration");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // Its sockets belong to the network namespace in which it starts.
    let tunnel = left.inside(|| runtime.block_on(Tunnel::start(&config)).expect("a tunnel"));
    World { right, left, tunnel, runtime }
}

impl World {
    /// The answer of a host behind the tunnel to a request for a page.
    fn get(&self, host: &str, page: &str) -> Vec<u8> {
        let request = async {
            let mut stream = self.tunnel.connect_host(host, 80).await.expect("a connection");
            let request = format!("GET /{page} HTTP/1.0\r\nHost: {host}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("it is received");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.expect("it answers");
            answer
        };
        let request = async { tokio::time::timeout(PATIENCE, request).await };
        self.runtime.block_on(request).expect("it answers soon")
    }
}

#[test]
fn a_program_connects_through_the_tunnel_by_name_and_by_both_families() {
    let world = world();
    let bytes = varied_bytes(8_000_000);
    world.right.host.run("mkdir -p /run/rig/www");
    std::fs::write(world.right.host.outside("/run/rig/www/page"), &bytes).expect("a file");
    services::files(&world.right.host, "[::]:80", "/run/rig/www");
    for host in ["10.9.0.2", "fd09::2", NAME] {
        let answer = world.get(host, "page");
        assert!(answer.ends_with(&bytes), "{} bytes of {host}", answer.len());
    }
    assert!(!world.left.has_device("wg0"));
    let received = world.tunnel.peers()[0].rx_bytes;
    assert!(received > 3 * bytes.len() as u64, "{received} bytes came through the tunnel");
}

#[test]
fn a_peer_connects_to_a_programs_listener_and_is_reset_at_its_end() {
    let World { right, tunnel, runtime, .. } = world();
    let listener = tunnel.listen("[::]:7".parse().expect("an address")).expect("a listener");
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut read, mut write) = stream.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
        }
    });
    // The peer learns the tunnel's port from its first packet.
    runtime.block_on(tunnel.ping("10.9.0.2".parse().expect("an address"))).expect("an echo");
    let output = varied_bytes(3_000_000);
    let mut held = Vec::new();
    for to in ["10.9.0.1:7", "[fd09::1]:7"] {
        let mut stream = right.host.inside(|| TcpStream::connect(to)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut input = vec![0; output.len()];
        std::thread::scope(|scope| {
            let mut saying = stream.try_clone().expect("a descriptor");
            let output = &output;
            scope.spawn(move || saying.write_all(output).expect("it is received"));
            stream.read_exact(&mut input).expect("it answers");
        });
        assert!(input == output);
        held.push(stream);
    }
    drop(tunnel);
    for mut stream in held {
        let error = stream.read(&mut [0; 9]).expect_err("it is over");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Bytes without repetition.
fn varied_bytes(len: u32) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}
