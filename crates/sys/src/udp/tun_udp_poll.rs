//! Waits for a TUN device and a UDP socket at once.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags},
};
use packet::{Poll, Ready};

use super::{Shared, UdpSocket};
use crate::{poll, tun::TunSource};

/// The event sources of both receiving halves.
#[derive(Debug)]
pub struct TunUdpPoll {
    tun: TunSource,
    udp: Arc<Shared>,
}

impl TunUdpPoll {
    /// While this waits, other threads must not wait for one of the halves.
    pub fn new(tun: TunSource, udp: &UdpSocket) -> Self {
        Self { tun, udp: udp.shared.clone() }
    }
}

impl Poll for TunUdpPoll {
    fn poll(&mut self, at_most: Option<Duration>) -> io::Result<Ready> {
        // The socket is held only during this wait. Replacing it ends the wait, so its port
        // becomes free.
        let socket = self.udp.socket();
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let wakes = [&self.tun.wake, &self.udp.wake];
        let [ip_wake, udp_wake] = wakes.map(|wake| readable(wake.as_fd()));
        let device = readable(self.tun.device.as_fd());
        // Without a socket, only its wake is polled.
        let udp = socket.as_ref().map_or(udp_wake.clone(), |socket| readable(socket.as_fd()));
        let mut fds = [device, udp, ip_wake, udp_wake];
        poll::wait(&mut fds, at_most)?;
        let [device, udp, ip_wake, udp_wake] =
            fds.map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        if !device.is_empty() && !device.contains(PollFlags::POLLIN) {
            return Err(Errno::EBADFD.into());
        }
        let woken = |flag: PollFlags, wake: usize| !flag.is_empty() && wakes[wake].clear();
        Ok(Ready {
            ip: woken(ip_wake, 0) || !device.is_empty(),
            udp: woken(udp_wake, 1) || !udp.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::OwnedFd, unix::net::UnixDatagram};

    use super::*;
    use crate::{Offloads, Wake, tun::device::TunDevice};

    const BRIEF: Option<Duration> = Some(Duration::from_millis(1));
    const NONE: Ready = Ready { ip: false, udp: false };
    const IP: Ready = Ready { ip: true, udp: false };
    const UDP: Ready = Ready { ip: false, udp: true };

    #[test]
    fn ready_halves_are_reported_by_data_and_wakers() {
        let (device, kernel) = UnixDatagram::pair().unwrap();
        let wake = Wake::new().unwrap();
        let source = TunSource {
            device: Arc::new(TunDevice::from_fd(OwnedFd::from(device.try_clone().unwrap()))),
            wake: wake.clone(),
        };
        let (udp, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
        let mut both = TunUdpPoll::new(source, &udp);
        assert_eq!(both.poll(BRIEF).unwrap(), NONE);
        // A new socket sets the wake once.
        let port = udp.bind(0, 0).unwrap();
        assert_eq!(both.poll(None).unwrap(), UDP);
        assert_eq!(both.poll(BRIEF).unwrap(), NONE);

        kernel.send(b"packet").unwrap();
        assert_eq!(both.poll(None).unwrap(), IP);
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.send_to(b"datagram", ("127.0.0.1", port)).unwrap();
        assert_eq!(both.poll(None).unwrap(), Ready { ip: true, udp: true });
        device.recv(&mut [0; 16]).unwrap();
        assert_eq!(both.poll(None).unwrap(), UDP);

        udp.close();
        assert_eq!(both.poll(None).unwrap(), UDP);
        wake.wake();
        assert_eq!(both.poll(None).unwrap(), IP);
        assert_eq!(both.poll(BRIEF).unwrap(), NONE);
    }
}
