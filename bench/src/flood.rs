//! The UDP generator: a sender at the full speed of one thread or paced, and a socket that receives
//! the flood.

use std::fmt;
use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use netns::Stopwatch;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, UdpGsoSegment};
use nix::sys::socket::{MsgFlags, MultiHeaders, sendmmsg, setsockopt};

/// Datagrams per system call. With this many the cost of a call is negligible, and the bursts of a
/// paced sender stay short.
const BATCH: usize = 64;

/// Limits of one send with `UDP_SEGMENT`: segments (kernels before 6.9), and bytes.
const MAX_SEGMENTS: usize = 64;
const MAX_BYTES: usize = 65507;

/// Sleep of a paced sender that is early; a shorter sleep costs more than it waits.
const NAP: Duration = Duration::from_micros(50);

/// Parameters of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Destination.
    pub to: SocketAddr,
    /// Payload bytes of a datagram.
    pub size: usize,
    /// Duration.
    pub seconds: f64,
    /// Datagrams a second, or `None` for as many as possible.
    pub rate: Option<f64>,
    /// Whether to send runs with `UDP_SEGMENT` instead of single datagrams.
    pub segment: bool,
}

/// Result of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    /// Datagrams that the kernel accepted.
    pub datagrams: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Flood {
    /// Sends until the time has elapsed.
    pub fn send(&self) -> std::io::Result<Sent> {
        let socket = UdpSocket::bind(match self.to {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        })?;
        socket.connect(self.to)?;
        let segments = match self.segment {
            true => (MAX_BYTES / self.size).min(MAX_SEGMENTS),
            false => 1,
        };
        if self.segment {
            setsockopt(&socket, UdpGsoSegment, &(self.size as i32))?;
        }
        let payload = vec![0; self.size * segments];
        let slices = [[IoSlice::new(&payload)]; BATCH];
        let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
        let watch = Stopwatch::start();
        let mut datagrams = 0;
        loop {
            let seconds = watch.elapsed().as_secs_f64();
            if seconds >= self.seconds {
                return Ok(Sent { datagrams, seconds });
            }
            let due = self.rate.map_or(u64::MAX, |rate| (rate * seconds) as u64);
            let messages = (due.saturating_sub(datagrams) / segments as u64).min(BATCH as u64);
            if messages == 0 {
                thread::sleep(NAP);
                continue;
            }
            let batch = &slices[..messages as usize];
            let nowhere = [None; BATCH];
            let flags = MsgFlags::empty();
            match sendmmsg(socket.as_raw_fd(), &mut headers, batch, nowhere, [], flags) {
                Ok(taken) => datagrams += taken.count() as u64 * segments as u64,
                // An ICMP error of the far host for an earlier datagram.
                Err(Errno::ECONNREFUSED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.datagrams, self.seconds)
    }
}

impl Sent {
    /// Parses the output of [`Sent`]'s `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (datagrams, seconds) = text.trim().split_once(' ')?;
        Some(Self { datagrams: datagrams.parse().ok()?, seconds: seconds.parse().ok()? })
    }
}

/// Keeps a socket with the smallest buffer open and reads nothing, until the process ends. The
/// kernel counts each datagram that reaches the host as a drop of this socket, and no reader takes
/// processor time from the tunnel.
pub fn sink(port: u16) -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    setsockopt(&socket, RcvBuf, &0)?;
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::{Flood, Sent};

    fn received(socket: &UdpSocket) -> Vec<usize> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 65536];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok()).collect()
    }

    #[test]
    fn a_paced_sender_keeps_its_rate_and_its_size() {
        for segment in [false, true] {
            let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = sink.local_addr().unwrap();
            let flood = Flood { to, size: 20, seconds: 0.1, rate: Some(1000.0), segment };
            let sent = flood.send().unwrap();
            assert!((30..=100).contains(&sent.datagrams), "{sent:?}");
            assert_eq!(received(&sink), vec![20; sent.datagrams as usize], "segment: {segment}");
        }
    }

    #[test]
    fn a_senders_result_is_printed_and_parsed() {
        let sent = Sent { datagrams: 12, seconds: 0.25 };
        assert_eq!(Sent::parse(&format!("{sent}\n")), Some(sent));
        assert_eq!(Sent::parse(""), None);
    }
}
