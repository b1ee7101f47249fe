//! A TCP stream with known content in one direction, at full speed or in paced pieces.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::background::in_background;
use crate::host::Host;
use crate::pattern::{MOST, Pattern};
use crate::wait::Stopwatch;

/// Time without progress after which a stream fails.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Amount and rate of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes of one write.
    pub piece: usize,
    /// Pause after each write.
    pub rest: Duration,
    /// Bytes in all; until stopped if `None`.
    pub bytes: Option<u64>,
}

impl Pace {
    /// At full speed until stopped.
    pub const FULL: Self = Self { piece: MOST, rest: Duration::ZERO, bytes: None };
}

/// A running stream.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Received>,
}

/// Result of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// Bytes accepted by the kernel.
    pub sent: u64,
    /// Bytes read, all correct.
    pub received: u64,
    /// The longest time without a byte.
    pub longest_gap: Duration,
}

struct Received {
    bytes: u64,
    longest_gap: Duration,
}

impl Stream {
    /// Connects from one host to an address of the other and starts the stream.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn start(from: &Host, to: &Host, address: SocketAddr, pace: Pace) -> Self {
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let listener = to.inside(|| TcpListener::bind((any, address.port())));
        let listener = listener.expect("the port is free");
        let sending = from.inside(|| TcpStream::connect_timeout(&address, GIVE_UP));
        let sending = sending.unwrap_or_else(|error| panic!("no stream to {address}: {error}"));
        let (receiving, _) = listener.accept().expect("the stream is connected");
        sending.set_nodelay(true).expect("a TCP option");
        sending.set_write_timeout(Some(GIVE_UP)).expect("a time is given");
        receiving.set_read_timeout(Some(GIVE_UP)).expect("a time is given");

        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, seed) = (stop.clone(), u64::from(address.port()));
        let sender =
            in_background("stream out", move || send(sending, &Pattern::new(seed), pace, &stopped));
        let receiver = in_background("stream in", move || receive(receiving, &Pattern::new(seed)));
        Self { stop, sender, receiver }
    }

    /// Ends an unlimited stream and waits until all bytes have arrived.
    ///
    /// # Panics
    /// If it makes no progress for [`GIVE_UP`], or the bytes read are wrong.
    pub fn finish(self) -> Carried {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("the stream is sent");
        let Received { bytes, longest_gap } = self.receiver.join().expect("the stream arrives");
        Carried { sent, received: bytes, longest_gap }
    }
}

fn send(mut stream: TcpStream, pattern: &Pattern, pace: Pace, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while pace.bytes.is_some() || !stop.load(Ordering::Relaxed) {
        let left = pace.bytes.map_or(u64::MAX, |bytes| bytes - sent);
        let piece = pace.piece.min(usize::try_from(left).unwrap_or(usize::MAX));
        if piece == 0 {
            break;
        }
        stream.write_all(pattern.at(sent, piece)).expect("the stream continues");
        sent += piece as u64;
        thread::sleep(pace.rest);
    }
    stream.shutdown(Shutdown::Write).expect("the stream ends");
    sent
}

fn receive(mut stream: TcpStream, pattern: &Pattern) -> Received {
    let mut buffer = vec![0; MOST];
    let (mut bytes, mut longest_gap) = (0, Duration::ZERO);
    loop {
        let watch = Stopwatch::start();
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Received { bytes, longest_gap },
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("after {bytes} bytes: {error}"),
        };
        longest_gap = longest_gap.max(watch.elapsed());
        assert!(buffer[..len] == *pattern.at(bytes, len), "other bytes arrive at {bytes}");
        bytes += len as u64;
    }
}
