//! A paced flow of numbered UDP datagrams in one direction.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use crate::background::in_background;
use crate::host::Host;
use crate::pattern::{MOST, Pattern};
use crate::wait::Stopwatch;

/// A datagram starts with its number.
const NUMBER: usize = size_of::<u64>();

/// Receive buffer for datagrams that arrive while a loaded machine does not run the reader.
const BUFFER: usize = 16 << 20;

/// Time without a datagram after which the receiver stops.
const LATE: Duration = Duration::from_secs(2);

/// Datagrams that are sent at once.
#[derive(Clone, Copy, Debug)]
pub struct Train {
    /// Number of datagrams.
    pub count: usize,
    /// Bytes of each.
    pub size: usize,
    /// Whether the kernel segments them (`UDP_SEGMENT`).
    pub segmented: bool,
    /// Pause after each train.
    pub rest: Duration,
}

/// A running flow.
pub struct Datagrams {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Arrived>,
}

/// Result of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that arrived unchanged, each counted once.
    pub received: u64,
    /// Datagrams that arrived again.
    pub doubled: u64,
    /// Datagrams that arrived after one that was sent later.
    pub overtaken: u64,
}

impl Arrived {
    /// The fraction that was lost.
    pub fn lost(&self) -> f64 {
        1.0 - self.received as f64 / self.sent.max(1) as f64
    }
}

impl Datagrams {
    /// Sends trains from one host to an address of the other until it is stopped.
    pub fn start(from: &Host, to: &Host, address: SocketAddr, train: Train) -> Self {
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let receiving = to.inside(|| UdpSocket::bind((any, address.port())));
        let receiving = receiving.expect("the port is free");
        let sending = from.inside(|| UdpSocket::bind((any, 0)).expect("a port is free"));
        sending.connect(address).expect("there is a route");
        if train.segmented {
            let size = train.size as i32;
            setsockopt(&sending, sockopt::UdpGsoSegment, &size).expect("Linux 4.18");
        }
        // Without the right to force the size, the buffer is smaller.
        let _ = setsockopt(&receiving, sockopt::RcvBufForce, &BUFFER)
            .or_else(|_| setsockopt(&receiving, sockopt::RcvBuf, &BUFFER));
        receiving.set_read_timeout(Some(LATE)).expect("a time is given");

        let stop = Arc::new(AtomicBool::new(false));
        let seed = u64::from(address.port());
        let stopped = stop.clone();
        let sender = in_background("datagrams out", move || {
            send(&sending, &Pattern::new(seed), train, &stopped)
        });
        let stopped = stop.clone();
        let receiver = in_background("datagrams in", move || {
            receive(&receiving, &Pattern::new(seed), &stopped)
        });
        Self { stop, sender, receiver }
    }

    /// Ends the flow and returns its result.
    ///
    /// # Panics
    /// If a datagram arrived with other bytes.
    pub fn finish(self) -> Arrived {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("datagrams are sent");
        Arrived { sent, ..self.receiver.join().expect("datagrams arrive") }
    }
}

fn send(socket: &UdpSocket, pattern: &Pattern, train: Train, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    let mut bytes = Vec::with_capacity(train.count * train.size);
    while !stop.load(Ordering::Relaxed) {
        bytes.clear();
        for number in sent..sent + train.count as u64 {
            bytes.extend(number.to_be_bytes());
            bytes.extend(pattern.at(number, train.size - NUMBER));
        }
        let piece = if train.segmented { bytes.len() } else { train.size };
        for piece in bytes.chunks(piece) {
            // A datagram is lost if the route is absent for a moment, as on any network.
            let _ = socket.send(piece);
        }
        sent += train.count as u64;
        thread::sleep(train.rest);
    }
    sent
}

fn receive(socket: &UdpSocket, pattern: &Pattern, stop: &AtomicBool) -> Arrived {
    let mut arrived = Arrived::default();
    let mut seen: Vec<bool> = Vec::new();
    let mut buffer = vec![0; MOST];
    let mut watch = Stopwatch::start();
    loop {
        let Ok(len) = socket.recv(&mut buffer) else {
            if stop.load(Ordering::Relaxed) && watch.elapsed() >= LATE {
                return arrived;
            }
            continue;
        };
        watch = Stopwatch::start();
        let (number, rest) = buffer[..len].split_at(NUMBER);
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        assert!(*rest == *pattern.at(number, rest.len()), "datagram {number} has other bytes");
        let place = number as usize;
        if place >= seen.len() {
            seen.resize(place + 1, false);
        } else if seen[place] {
            arrived.doubled += 1;
            continue;
        } else {
            arrived.overtaken += 1;
        }
        seen[place] = true;
        arrived.received += 1;
    }
}
