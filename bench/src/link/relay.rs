//! The link's sockets: datagrams received on one side leave by the other at their time.
//!
//! It must not be the bottleneck, so it receives and sends runs of equal datagrams at once, as the
//! daemons do: `UDP_GRO` and `UDP_SEGMENT`.
//!
//! ```text
//!   socket of one side --> Link --> socket of the other
//!   `socket`               `lost`   `refused`             where a datagram can be dropped
//!                          `queue`
//! ```

use std::error::Error;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use netns::Stopwatch;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::sockopt::{IpRecvTos, RcvBuf, RcvBufForce, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt,
};
use nix::sys::time::TimeSpec;

use super::{Datagram, Link, Shape};
use crate::lifetime::end_with_stdin_after;

/// Bytes of the sockets' receive buffers: a burst while the relay waits for a core.
const BUFFER: usize = 8 << 20;

/// Limits of one send with `UDP_SEGMENT`: segments (kernels before 6.9), and bytes.
const MAX_SEGMENTS: usize = 64;
const MAX_BYTES: usize = 65507;

/// One end of the cable to a host: the relay's own address and that of the host's daemon.
pub(super) struct End {
    socket: UdpSocket,
    buffer: Vec<u8>,
    refused: u64,
}

/// The ECN bits of the type of service.
const ECN: u8 = 0b11;

/// Datagrams that did not leave the link, by cause, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// At random.
    pub lost: u64,
    /// By the queue in front of the rate.
    pub queue: u64,
    /// Because the kernel refused to send them.
    pub refused: u64,
}

impl End {
    fn open(own: SocketAddr, daemon: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let socket = UdpSocket::bind(own)?;
        socket.connect(daemon)?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        setsockopt(&socket, IpRecvTos, &true)?;
        // Exceeds the system's limit if that is allowed.
        let _ = setsockopt(&socket, RcvBuf, &BUFFER);
        let _ = setsockopt(&socket, RcvBufForce, &BUFFER);
        Ok(Self { socket, buffer: vec![0; 1 << 16], refused: 0 })
    }

    /// The datagrams of the next receive, if any.
    fn receive(&mut self) -> nix::Result<Vec<Datagram>> {
        let mut control = cmsg_space!(i32, u8);
        let (len, segment, ecn) = {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let fd = self.socket.as_raw_fd();
            let got = recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
            let (mut segment, mut ecn) = (got.bytes, 0);
            for message in got.cmsgs()? {
                match message {
                    ControlMessageOwned::UdpGroSegments(size) => segment = size as usize,
                    ControlMessageOwned::Ipv4Tos(service) => ecn = service & ECN,
                    _ => {}
                }
            }
            (got.bytes, segment, ecn)
        };
        let whole = Bytes::copy_from_slice(&self.buffer[..len]);
        let starts = (0..len).step_by(segment.max(1));
        let piece = |start: usize| whole.slice(start..(start + segment).min(len));
        Ok(starts.map(|start| Datagram { bytes: piece(start), ecn }).collect())
    }

    /// Sends a run: one ECN mark, equal lengths; only the last may be shorter.
    fn send(&mut self, run: &[Datagram]) {
        let parts: Vec<IoSlice<'_>> =
            run.iter().map(|datagram| IoSlice::new(&datagram.bytes)).collect();
        let (size, ecn) = (run[0].bytes.len() as u16, run[0].ecn);
        let all = [ControlMessage::Ipv4Tos(&ecn), ControlMessage::UdpGsoSegments(&size)];
        let control = if run.len() > 1 { &all[..] } else { &all[..1] };
        let sent = sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::empty(), None);
        // Datagrams that the kernel refuses are lost, as on any link.
        self.refused += if sent.is_err() { run.len() as u64 } else { 0 };
    }
}

/// Relays between two hosts until stdin ends. Each end is the link's own address and a daemon's.
/// Prints [`Dropped`] at the end.
pub fn relay(shape: Shape, ends: [(SocketAddr, SocketAddr); 2]) -> Result<(), Box<dyn Error>> {
    let [left, right] = ends;
    let mut ends = [End::open(left.0, left.1)?, End::open(right.0, right.1)?];
    // The losses of both directions are independent.
    let back = Shape { seed: shape.seed.wrapping_add(1), ..shape };
    let mut links = [Link::new(shape), Link::new(back)];
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let shared = counts.clone();
    end_with_stdin_after(move || {
        let [lost, queue, refused] = shared.each_ref().map(|count| count.load(Ordering::Relaxed));
        println!("{}", Dropped { lost, queue, refused });
    })?;
    let watch = Stopwatch::start();
    loop {
        for (from, link) in links.iter_mut().enumerate() {
            take(&mut ends[from], link, &watch)?;
            deliver(&mut ends[1 - from], link, watch.elapsed());
        }
        let of_links = |of: fn(&Link) -> u64| links.iter().map(of).sum::<u64>();
        let refused = ends.iter().map(|end| end.refused).sum();
        let now = [of_links(|link| link.lost), of_links(|link| link.queue_drops), refused];
        counts.iter().zip(now).for_each(|(count, now)| count.store(now, Ordering::Relaxed));
        let next = links.iter().filter_map(Link::poll_timeout).min();
        wait(&ends, next.map(|next| next.saturating_sub(watch.elapsed())))?;
    }
}

/// Receives the waiting datagrams.
fn take(end: &mut End, link: &mut Link, watch: &Stopwatch) -> Result<(), Box<dyn Error>> {
    loop {
        match end.receive() {
            Ok(datagrams) => {
                let now = watch.elapsed();
                datagrams.into_iter().for_each(|datagram| link.handle_datagram(now, datagram));
            }
            Err(Errno::EAGAIN) => return Ok(()),
            // The daemon is not running yet or any more.
            Err(Errno::ECONNREFUSED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends datagrams that have arrived.
fn deliver(end: &mut End, link: &mut Link, now: Duration) {
    let mut run: Vec<Datagram> = Vec::with_capacity(MAX_SEGMENTS);
    while let Some(datagram) = link.poll_datagram(now) {
        if !run.is_empty() && !fits(&run, &datagram) {
            end.send(&run);
            run.clear();
        }
        run.push(datagram);
    }
    if !run.is_empty() {
        end.send(&run);
    }
}

/// Whether this datagram can be appended to a run.
fn fits(run: &[Datagram], datagram: &Datagram) -> bool {
    let (first, last) = (run[0].bytes.len(), run[run.len() - 1].bytes.len());
    let bytes = first * run.len() + datagram.bytes.len();
    let is_equal = last == first && datagram.bytes.len() <= first && datagram.ecn == run[0].ecn;
    is_equal && run.len() < MAX_SEGMENTS && bytes <= MAX_BYTES
}

/// Waits for a datagram, at most for this time.
fn wait(ends: &[End; 2], time: Option<Duration>) -> nix::Result<()> {
    let mut polled = ends.each_ref().map(|end| PollFd::new(end.socket.as_fd(), PollFlags::POLLIN));
    match ppoll(&mut polled, time.map(TimeSpec::from), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Dropped {
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let counts: Option<Vec<u64>> =
            text.split_whitespace().map(|word| word.parse().ok()).collect();
        let [lost, queue, refused] = counts?.try_into().ok()?;
        Some(Self { lost, queue, refused })
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.lost, self.queue, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use bytes::Bytes;
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::Ipv4Tos;

    use super::{Datagram, Dropped, End, fits};

    #[test]
    fn ecn_marks_are_relayed() {
        let [left, right, near, far] = [(); 4].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let own = [&near, &far].map(|socket| socket.local_addr().unwrap());
        drop((near, far));
        let mut near = End::open(own[0], left.local_addr().unwrap()).unwrap();
        let mut far = End::open(own[1], right.local_addr().unwrap()).unwrap();
        let mut right = End { socket: right, buffer: vec![0; 1 << 16], refused: 0 };
        setsockopt(&right.socket, super::IpRecvTos, &true).unwrap();
        for ecn in 0..4 {
            setsockopt(&left, Ipv4Tos, &ecn).unwrap();
            left.send_to(b"x", own[0]).unwrap();
            let datagrams = near.receive().unwrap();
            far.send(&datagrams);
            assert_eq!(right.receive().unwrap()[0].ecn, ecn as u8);
        }
        assert_eq!(far.refused, 0);
    }

    #[test]
    fn drop_counts_are_printed_and_parsed() {
        let dropped = Dropped { lost: 1, queue: 2, refused: 3 };
        assert_eq!(Dropped::parse(&format!("{dropped}\n")), Some(dropped));
        assert_eq!(Dropped::parse(""), None);
    }

    #[test]
    fn a_run_has_equal_lengths_and_a_shorter_one_ends_it() {
        let marked = |len: usize, ecn| Datagram { bytes: Bytes::from(vec![0; len]), ecn };
        let datagram = |len| marked(len, 0);
        assert!(!fits(&[datagram(10)], &marked(10, 1)));
        assert!(fits(&[datagram(10)], &datagram(10)));
        assert!(fits(&[datagram(10)], &datagram(4)));
        assert!(!fits(&[datagram(10)], &datagram(11)));
        assert!(!fits(&[datagram(10), datagram(4)], &datagram(4)));
        assert!(!fits(&vec![datagram(10); 64], &datagram(10)));
        assert!(!fits(&vec![datagram(1452); 45], &datagram(1452)));
        assert!(fits(&vec![datagram(1452); 44], &datagram(1452)));
    }
}
