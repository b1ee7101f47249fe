//! Datagrams that lead nowhere, as an attacker sends them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::background::in_background;
use crate::host::Host;
use crate::pattern::Random;

/// Bytes of a handshake initiation, and what it begins with.
const INITIATION: (usize, &[u8]) = (148, &[1, 0, 0, 0]);
/// The same of a ping of disco.
const DISCO: (usize, &[u8]) = (124, b"TS\xf0\x9f\x92\xac");

/// Rest after each burst.
const REST: Duration = Duration::from_millis(5);

/// A flood that is under way.
pub struct Flood {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
}

/// Sends so many handshake initiations from a host to an address at once: each is random behind what
/// tells its kind, but of the right length.
pub fn burst(from: &Host, to: SocketAddr, count: usize) {
    send(&socket(from, to), INITIATION, &mut Random::new(count as u64), count);
}

impl Flood {
    /// Sends bursts of so many handshake initiations from a host to an address, one after the other.
    pub fn start(from: &Host, to: SocketAddr, burst: usize) -> Flood {
        Self::of(INITIATION, from, to, burst)
    }

    /// The same of pings of disco.
    pub fn of_disco(from: &Host, to: SocketAddr, burst: usize) -> Flood {
        Self::of(DISCO, from, to, burst)
    }

    fn of(kind: (usize, &'static [u8]), from: &Host, to: SocketAddr, burst: usize) -> Flood {
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
        Flood { stop, sender }
    }

    /// Ends it and tells how many it sent.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().expect("the flood ends")
    }
}

fn socket(from: &Host, to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.inside(|| UdpSocket::bind((any, 0)).expect("a port is free"));
    socket.connect(to).expect("there is a way");
    socket
}

/// Returns how many went: what finds no room is lost, as any flood's.
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
