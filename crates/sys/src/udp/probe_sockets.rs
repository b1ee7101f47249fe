//! Several sockets that send the same to one address, of which one that is answered is kept.
//!
//! ```text
//!   open(count) -> send by each -> poll(2) on all: what comes from that address -> keep(index)
//! ```
//!
//! Each has the options of the one socket of a [`super::UdpSocket`], and its helper makes them where
//! there is one.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Arc, Mutex, RwLock, atomic::AtomicU64},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags},
    sys::socket::{SockaddrStorage, recvfrom},
};
use packet::{Endpoint, SendError};

use super::{BindError, Shared, UdpReceiver, UdpSocket, control::send_by, socket::Socket};
use crate::{poll, wake::Wake};

/// Bytes of a datagram that is looked at; a longer one is cut off.
const LONGEST: usize = 2048;
/// Datagrams that are taken of one socket at once.
const AT_ONCE: usize = 4;

/// Sockets, each at a port of its own.
#[derive(Debug)]
pub struct ProbeSockets {
    sockets: Vec<Socket>,
    wake: Wake,
    /// As the socket beside which they are has it.
    like: Arc<Shared>,
}

/// A datagram that came to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDatagram {
    /// To which.
    pub index: u16,
    /// From where.
    pub from: SocketAddr,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl UdpSocket {
    /// Opens so many sockets beside this one, with the same options and this mark; fewer if no
    /// descriptor is left.
    ///
    /// # Errors
    /// There is not even one.
    pub fn open_probe_sockets(&self, count: u16, fwmark: u32) -> Result<ProbeSockets, BindError> {
        let wake = Wake::new()?;
        let mut sockets = vec![Socket::bind(0, fwmark, self.shared.helper())?];
        for _ in 1..count {
            match Socket::bind(0, fwmark, self.shared.helper()) {
                Ok(socket) => sockets.push(socket),
                Err(_) => break,
            }
        }
        Ok(ProbeSockets { sockets, wake, like: self.shared.clone() })
    }
}

impl ProbeSockets {
    /// How many there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.sockets.len()).unwrap_or(u16::MAX)
    }

    /// Ends the current or the next wait.
    pub fn waker(&self) -> packet::Waker {
        self.wake.waker()
    }

    /// Sends a datagram by one of them, past as many routers as `hops` says.
    ///
    /// # Errors
    /// It did not go, or there is no such socket.
    pub fn send(
        &self,
        index: u16,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError> {
        let socket = self.sockets.get(usize::from(index)).ok_or(SendError::NoSocket)?;
        send_by(socket, datagram, to, hops)
    }

    /// Waits until some have datagrams, which it returns, or it is woken, or that time is over.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn receive(&self, at_most: Duration) -> io::Result<Vec<ProbeDatagram>> {
        let all = self.sockets.iter().map(|socket| socket.as_fd());
        let fds = std::iter::once(self.wake.as_fd()).chain(all);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll::wait(&mut fds, Some(at_most))?;
        self.wake.clear();
        let mut came = Vec::new();
        for (index, (fd, socket)) in (0..).zip(fds[1..].iter().zip(&self.sockets)) {
            if fd.any().unwrap_or(true) {
                came.extend((0..AT_ONCE).map_while(|_| take(index, socket)));
            }
        }
        Ok(came)
    }

    /// Keeps one as a socket of its own, and closes all others.
    pub fn into_socket(mut self, index: u16) -> Option<(UdpSocket, UdpReceiver)> {
        let index = usize::from(index);
        if index >= self.sockets.len() {
            return None;
        }
        let socket = self.sockets.swap_remove(index);
        let shared = Arc::new(Shared {
            socket: RwLock::new(Some(Arc::new(socket))),
            changing: Mutex::new(()),
            wake: self.wake,
            overflow: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            offloads: self.like.offloads.clone(),
            helper: self.like.helper.clone(),
        });
        Some((UdpSocket { shared: shared.clone() }, UdpReceiver::new(shared)))
    }
}

/// The next datagram of a socket. What an earlier one met, as an error of ICMP, is passed over.
fn take(index: u16, socket: &Socket) -> Option<ProbeDatagram> {
    let mut bytes = vec![0; LONGEST];
    let (len, from) = recvfrom::<SockaddrStorage>(socket.as_fd().as_raw_fd(), &mut bytes).ok()?;
    bytes.truncate(len);
    let from = from?;
    let v4 = from.as_sockaddr_in().map(|at| SocketAddr::from((at.ip(), at.port())));
    let v6 = || from.as_sockaddr_in6().map(|at| SocketAddr::from((at.ip(), at.port())));
    let from = v4.or_else(v6)?;
    Some(ProbeDatagram {
        index,
        from: SocketAddr::new(from.ip().to_canonical(), from.port()),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as Plain;

    use packet::{RecvBatch, SendBatch, UdpRecv as _, UdpSend as _};

    use super::*;
    use crate::Offloads;

    const BRIEF: Duration = Duration::from_secs(5);

    #[test]
    fn of_many_sockets_the_one_that_is_answered_is_kept() {
        let (beside, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
        let flows = beside.open_probe_sockets(40, 0).unwrap();
        assert_eq!(flows.count(), 40);
        let far = Plain::bind("127.0.0.1:0").unwrap();
        let to = Endpoint::new(far.local_addr().unwrap());
        for index in 0..flows.count() {
            flows.send(index, &index.to_be_bytes(), to, None).unwrap();
        }
        assert_eq!(flows.send(40, b"x", to, None), Err(SendError::NoSocket));
        let (mut text, mut from) = ([0; 9], None);
        for _ in 0..40 {
            let (len, sender) = far.recv_from(&mut text).unwrap();
            if text[..len] == 7_u16.to_be_bytes() {
                from = Some(sender);
            }
        }
        far.send_to(b"met", from.unwrap()).unwrap();
        let came = flows.receive(BRIEF).unwrap();
        let expected =
            ProbeDatagram { index: 7, from: far.local_addr().unwrap(), bytes: b"met".to_vec() };
        assert_eq!(came, [expected]);

        let (kept, mut receiver) = flows.into_socket(7).unwrap();
        assert_eq!(kept.port(), from.map(|from| from.port()));
        let mut batch = SendBatch::default();
        batch.push(4, to, packet::Ecn::NotEct).copy_from_slice(b"data");
        kept.sender().send(&mut batch);
        assert!(batch.failures().is_empty());
        assert_eq!(far.recv_from(&mut text).unwrap(), (4, from.unwrap()));
        far.send_to(b"back", from.unwrap()).unwrap();
        let mut batch = RecvBatch::new(2);
        receiver.recv(&mut batch, false, true).unwrap();
        let (span, _) = batch.datagrams().next().unwrap();
        assert_eq!(batch.get(span), b"back");
    }

    #[test]
    fn a_wait_for_all_is_ended_and_none_is_kept_that_is_not_there() {
        let (beside, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
        let flows = beside.open_probe_sockets(2, 0).unwrap();
        flows.waker()();
        assert_eq!(flows.receive(BRIEF).unwrap(), []);
        assert!(flows.into_socket(2).is_none());
    }
}
