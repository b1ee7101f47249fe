//! Several sockets that send the same datagram to one address. One that gets an answer stays open.
//!
//! ```text
//!   open(count) -> send on each -> poll(2) on all: answers from that address ->
//! into_socket(index)
//! ```
//!
//! They have the options of the socket of a [`super::UdpSocket`], and are created by its helper,
//! if it has one.

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

use super::{
    BindError, Shared, UdpReceiver, UdpSocket, control_datagrams::send_by, socket::Socket,
};
use crate::{poll, wake::Wake};

/// The maximum length of a datagram in bytes. Longer ones are truncated.
const MAX_LEN: usize = 2048;
/// The maximum number of datagrams that are received from one socket at once.
const MAX_PER_SOCKET: usize = 4;

/// Sockets with different ports.
#[derive(Debug)]
pub struct ProbeSockets {
    sockets: Vec<Socket>,
    wake: Wake,
    /// The socket with the same options.
    model: Arc<Shared>,
}

/// A datagram that one of the sockets received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDatagram {
    /// The index of the socket.
    pub index: u16,
    /// The sender.
    pub from: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

impl UdpSocket {
    /// Opens `count` additional sockets with the same options and this mark, or fewer if the file
    /// descriptors are exhausted.
    ///
    /// # Errors
    /// The first socket could not be opened.
    pub fn open_probe_sockets(&self, count: u16, fwmark: u32) -> Result<ProbeSockets, BindError> {
        let wake = Wake::new()?;
        let mut sockets = vec![Socket::bind(0, fwmark, self.shared.helper())?];
        for _ in 1..count {
            match Socket::bind(0, fwmark, self.shared.helper()) {
                Ok(socket) => sockets.push(socket),
                Err(_) => break,
            }
        }
        Ok(ProbeSockets { sockets, wake, model: self.shared.clone() })
    }
}

impl ProbeSockets {
    /// The number of sockets.
    pub fn count(&self) -> u16 {
        u16::try_from(self.sockets.len()).unwrap_or(u16::MAX)
    }

    /// Ends the current or the next wait.
    pub fn waker(&self) -> packet::Waker {
        self.wake.waker()
    }

    /// Sends a datagram over the socket with this index, with an optional hop limit.
    ///
    /// # Errors
    /// The datagram was not sent, or the index is invalid.
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

    /// Waits until datagrams arrive, a waker is called, or the time has passed. Returns the
    /// datagrams.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn receive(&self, at_most: Duration) -> io::Result<Vec<ProbeDatagram>> {
        let all = self.sockets.iter().map(|socket| socket.as_fd());
        let fds = std::iter::once(self.wake.as_fd()).chain(all);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll::wait(&mut fds, Some(at_most))?;
        self.wake.clear();
        let mut datagrams = Vec::new();
        for (index, (fd, socket)) in (0..).zip(fds[1..].iter().zip(&self.sockets)) {
            if fd.any().unwrap_or(true) {
                datagrams.extend((0..MAX_PER_SOCKET).map_while(|_| take(index, socket)));
            }
        }
        Ok(datagrams)
    }

    /// Turns one into a separate socket, and closes all others.
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
            offloads: self.model.offloads.clone(),
            helper: self.model.helper.clone(),
        });
        Some((UdpSocket { shared: shared.clone() }, UdpReceiver::new(shared)))
    }
}

/// The next datagram of a socket. Errors, such as ICMP errors of earlier datagrams, are ignored.
fn take(index: u16, socket: &Socket) -> Option<ProbeDatagram> {
    let mut bytes = vec![0; MAX_LEN];
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
    fn one_of_many_sockets_gets_the_answer_and_stays_open() {
        let (model, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
        let sockets = model.open_probe_sockets(40, 0).unwrap();
        assert_eq!(sockets.count(), 40);
        let far = Plain::bind("127.0.0.1:0").unwrap();
        let to = Endpoint::new(far.local_addr().unwrap());
        for index in 0..sockets.count() {
            sockets.send(index, &index.to_be_bytes(), to, None).unwrap();
        }
        assert_eq!(sockets.send(40, b"x", to, None), Err(SendError::NoSocket));
        let (mut text, mut from) = ([0; 9], None);
        for _ in 0..40 {
            let (len, sender) = far.recv_from(&mut text).unwrap();
            if text[..len] == 7_u16.to_be_bytes() {
                from = Some(sender);
            }
        }
        far.send_to(b"answer", from.unwrap()).unwrap();
        let received = sockets.receive(BRIEF).unwrap();
        let expected =
            ProbeDatagram { index: 7, from: far.local_addr().unwrap(), bytes: b"answer".to_vec() };
        assert_eq!(received, [expected]);

        let (socket, mut receiver) = sockets.into_socket(7).unwrap();
        assert_eq!(socket.port(), from.map(|from| from.port()));
        let mut batch = SendBatch::default();
        batch.push(4, to, packet::Ecn::NotEct).copy_from_slice(b"data");
        socket.sender().send(&mut batch);
        assert!(batch.failures().is_empty());
        assert_eq!(far.recv_from(&mut text).unwrap(), (4, from.unwrap()));
        far.send_to(b"back", from.unwrap()).unwrap();
        let mut batch = RecvBatch::new(2);
        receiver.recv(&mut batch, false, true).unwrap();
        let (span, _) = batch.datagrams().next().unwrap();
        assert_eq!(batch.get(span), b"back");
    }

    #[test]
    fn waker_ends_the_wait_and_an_invalid_index_is_rejected() {
        let (model, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
        let sockets = model.open_probe_sockets(2, 0).unwrap();
        sockets.waker()();
        assert_eq!(sockets.receive(BRIEF).unwrap(), []);
        assert!(sockets.into_socket(2).is_none());
    }
}
