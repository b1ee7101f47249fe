use std::{future::Future, net::SocketAddr, time::Duration};

use tunnel::{Config, Peer, PrivateKey, Tunnel};

pub(crate) const A: [&str; 2] = ["10.7.0.1", "fd07::1"];
pub(crate) const B: [&str; 2] = ["10.7.0.2", "fd07::2"];
/// An address in the allowed IPs of a's peer that no host uses.
pub(crate) const UNUSED: &str = "10.7.0.9";
pub(crate) const MTU: u16 = 1420;

/// Two tunnels that are each other's peers.
pub(crate) struct Pair {
    pub a: Tunnel,
    pub b: Tunnel,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// Starts both, with additional settings for a.
    pub(crate) async fn with(more: impl FnOnce(Config) -> Config) -> Self {
        let b = Tunnel::start(&config(1, B).peer(peer(0, A))).await.unwrap();
        let to_b = peer(1, ["10.7.0.0/24", "fd07::/64"]).endpoint("127.0.0.1", b.listen_port());
        let a = Tunnel::start(&more(config(0, A).peer(to_b))).await.unwrap();
        Self { a, b }
    }
}

/// The private key of tunnel 0 or 1.
pub(crate) fn key(of: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[of + 1; 32])
}

pub(crate) fn config(of: u8, addresses: [&str; 2]) -> Config {
    let config = Config::new(key(of)).mtu(MTU);
    addresses.iter().fold(config, |config, address| config.address(address.parse().unwrap()))
}

/// A peer with these allowed IPs, given as addresses or networks.
pub(crate) fn peer(of: u8, allowed: [&str; 2]) -> Peer {
    let net = |text: &str| match text.parse() {
        Ok(net) => net,
        Err(_) => text.parse::<std::net::IpAddr>().unwrap().into(),
    };
    Peer::new(key(of).public_key()).allowed_ips(allowed.map(net))
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Limits the time of a step, so that a test cannot hang.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

/// A sequence of bytes without repetitions, different for every `seed`.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let word = |n: u32| n.wrapping_add(seed << 20).wrapping_mul(0x9e37_79b1);
    (0..len as u32).map(|n| (word(n) >> 23) as u8).collect()
}
