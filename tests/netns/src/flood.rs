//! Invalid datagrams, as from an attacker.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::background::in_background;
use crate::host::Host;
use crate::pattern::Random;

/// Length of a handshake initiation, and its first bytes.
const INITIATION: (usize, &[u8]) = (148, &[1, 0, 0, 0]);
/// The same for a disco ping.
const DISCO: (usize, &[u8]) = (124, b"TS\xf0\x9f\x92\xac");

/// Pause after each burst.
const REST: Duration = Duration::from_millis(5);

/// A running flood.
pub struct Flood {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
}

/// Sends `count` handshake initiations from a host to an address at once. Each has a valid type and
/// length, and random bytes behind the type.
pub fn burst(from: &Host, to: SocketAddr, count: usize) {
    send(&socket(from, to), INITIATION, &mut Random::new(count as u64), count);
}

impl Flood {
    /// Sends bursts of `burst` handshake initiations from a host to an address, one after the
    /// other.
    pub fn start(from: &Host, to: SocketAddr, burst: usize) -> Self {
        Self::of(INITIATION, from, to, burst)
    }

    /// The same with disco pings.
    pub fn of_disco(from: &Host, to: SocketAddr, burst: usize) -> Self {
        Self::of(DISCO, from, to, burst)
    }

    fn of(kind: (usize, &'static [u8]), from: &Host, to: SocketAddr, burst: usize) -> Self {
        let socket = socket(from, to);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sender = in_background("flood", move || {
            let mut random = Random::new(u64::from(to.port()));
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                sent += send(&socket, kind, &mut random, burst);
                thread::sleep(REST);
            }
            sent
        });
        Self { stop, sender }
    }

    /// Ends the flood and returns the number of datagrams.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().expect("the flood ends")
    }
}

fn socket(from: &Host, to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.inside(|| UdpSocket::bind((any, 0)).expect("a port is free"));
    socket.connect(to).expect("there is a route");
    socket
}

/// Returns the number of datagrams sent; one without room is lost.
fn send(
    socket: &UdpSocket,
    (len, begin): (usize, &[u8]),
    random: &mut Random,
    count: usize,
) -> u64 {
    let messages = (0..count).map(|_| {
        let mut message = begin.to_vec();
        message.resize_with(len, || random.draw() as u8);
        u64::from(socket.send(&message).is_ok())
    });
    messages.sum()
}
