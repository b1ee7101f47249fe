//! The link's sockets: what comes to one side leaves by the other, when its time has come.
//!
//! It must not be the bottleneck, so it takes and sends runs of equal datagrams as one, as the
//! daemons do: `UDP_GRO` and `UDP_SEGMENT`.

use std::error::Error;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bytes::Bytes;
use netns::Stopwatch;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt,
};
use nix::sys::time::TimeSpec;

use super::{Link, Shape};

/// Bytes of the sockets' receive buffers: a burst while the relay waits for a core.
const BUFFER: usize = 8 << 20;

/// The most of one `UDP_SEGMENT` send: segments (kernels before 6.9), and bytes.
const MAX_SEGMENTS: usize = 64;
const MAX_BYTES: usize = 65507;

/// One end of the cable to a host: where the relay listens, and where the host's daemon does.
pub struct End {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl End {
    fn open(own: SocketAddr, daemon: SocketAddr) -> Result<End, Box<dyn Error>> {
        let socket = UdpSocket::bind(own)?;
        socket.connect(daemon)?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        // Past the system's limit where that is allowed.
        let _ = setsockopt(&socket, RcvBuf, &BUFFER);
        let _ = setsockopt(&socket, RcvBufForce, &BUFFER);
        Ok(End { socket, buffer: vec![0; 1 << 16] })
    }

    /// The datagrams of the next receive, if there are any.
    fn receive(&mut self) -> nix::Result<Vec<Bytes>> {
        let mut control = cmsg_space!(i32);
        let (len, segment) = {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let fd = self.socket.as_raw_fd();
            let got = recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
            let segment = got.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
                _ => None,
            });
            (got.bytes, segment.unwrap_or(got.bytes))
        };
        let whole = Bytes::copy_from_slice(&self.buffer[..len]);
        let starts = (0..len).step_by(segment.max(1));
        Ok(starts.map(|start| whole.slice(start..(start + segment).min(len))).collect())
    }

    /// Sends a run: of equal lengths, but for the last, which may be shorter.
    fn send(&self, run: &[Bytes]) {
        let parts: Vec<IoSlice<'_>> = run.iter().map(|datagram| IoSlice::new(datagram)).collect();
        let size = run[0].len() as u16;
        let segments = [ControlMessage::UdpGsoSegments(&size)];
        let control = if run.len() > 1 { &segments[..] } else { &[] };
        // What the kernel refuses is lost, as on any link.
        let _ = sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::empty(), None);
    }
}

/// Relays between two hosts until the process ends; each end is an own address and a daemon's.
pub fn relay(shape: Shape, ends: [(SocketAddr, SocketAddr); 2]) -> Result<(), Box<dyn Error>> {
    let [left, right] = ends;
    let mut ends = [End::open(left.0, left.1)?, End::open(right.0, right.1)?];
    // What one way loses says nothing of the other.
    let back = Shape { seed: shape.seed.wrapping_add(1), ..shape };
    let mut links = [Link::new(shape), Link::new(back)];
    let watch = Stopwatch::start();
    loop {
        for (from, link) in links.iter_mut().enumerate() {
            take(&mut ends[from], link, &watch)?;
            deliver(&ends[1 - from], link, watch.elapsed());
        }
        let next = links.iter().filter_map(Link::poll_timeout).min();
        wait(&ends, next.map(|next| next.saturating_sub(watch.elapsed())))?;
    }
}

/// Receives what is there.
fn take(end: &mut End, link: &mut Link, watch: &Stopwatch) -> Result<(), Box<dyn Error>> {
    loop {
        match end.receive() {
            Ok(datagrams) => {
                let now = watch.elapsed();
                datagrams.into_iter().for_each(|datagram| link.handle_datagram(now, datagram));
            }
            Err(Errno::EAGAIN) => return Ok(()),
            // The daemon is not there yet, or no longer.
            Err(Errno::ECONNREFUSED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends what has arrived.
fn deliver(end: &End, link: &mut Link, now: Duration) {
    let mut run: Vec<Bytes> = Vec::with_capacity(MAX_SEGMENTS);
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

/// Whether a run may grow by this one.
fn fits(run: &[Bytes], datagram: &Bytes) -> bool {
    let (first, last) = (run[0].len(), run[run.len() - 1].len());
    let bytes = first * run.len() + datagram.len();
    last == first && datagram.len() <= first && run.len() < MAX_SEGMENTS && bytes <= MAX_BYTES
}

/// Waits for a datagram, and no longer than said.
fn wait(ends: &[End; 2], time: Option<Duration>) -> nix::Result<()> {
    let mut polled = ends.each_ref().map(|end| PollFd::new(end.socket.as_fd(), PollFlags::POLLIN));
    match ppoll(&mut polled, time.map(TimeSpec::from), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::fits;

    #[test]
    fn a_run_has_equal_lengths_and_ends_with_a_shorter_one() {
        let datagram = |len: usize| Bytes::from(vec![0; len]);
        assert!(fits(&[datagram(10)], &datagram(10)));
        assert!(fits(&[datagram(10)], &datagram(4)));
        assert!(!fits(&[datagram(10)], &datagram(11)));
        assert!(!fits(&[datagram(10), datagram(4)], &datagram(4)));
        assert!(!fits(&vec![datagram(10); 64], &datagram(10)));
        assert!(!fits(&vec![datagram(1452); 45], &datagram(1452)));
        assert!(fits(&vec![datagram(1452); 44], &datagram(1452)));
    }
}
