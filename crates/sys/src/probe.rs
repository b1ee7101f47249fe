//! Tests offloads by using them, because a kernel may refuse an advertised offload. Those of the
//! TUN are tested in a private namespace, those of UDP between two sockets on loopback.

use std::{
    io::{self, IoSlice},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg},
};
use packet::{ChecksumAt, Offload, SegmentProtocol};

use crate::{
    namespace::{Namespace, NamespaceError, Plan},
    tun::{
        SuperPackets,
        device::{Calls, TunDevice},
    },
    udp,
};

/// The name of an offload, and the result of its test.
pub type ProbeResult = (&'static str, io::Result<()>);

/// Payload bytes of a segment.
const SEGMENT: usize = 100;
/// How long to wait for a datagram on loopback.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Tests the offloads of a TUN, except that of super-packets in UDP tunnels, which few kernels
/// support and few users need. Call it before any thread is started ([`Namespace::open`]).
///
/// # Errors
/// No TUN could be created.
pub fn tun() -> Result<[ProbeResult; 4], NamespaceError> {
    let plan = Plan { name: "probe".into(), mtu: 1420, ..Plan::default() };
    let (_namespace, fd, _) = Namespace::open(&plan, || {})?;
    Ok(test_tun(fd))
}

fn test_tun(fd: OwnedFd) -> [ProbeResult; 4] {
    let device = TunDevice::from_fd(fd);
    let answer = |result: Result<(), Errno>| result.map_err(io::Error::from);
    let write = |protocol| {
        let (header, packet) = super_packet(protocol);
        device.write(&[IoSlice::new(&header), IoSlice::new(&packet)]).map(drop)
    };
    let read = |udp| device.set_offload(SuperPackets { tcp: true, udp, tunnel: false });
    [
        ("tun-tso", answer(read(false))),
        ("tun-uso", answer(read(true))),
        ("tun-tcp-gro", answer(write(SegmentProtocol::Tcp4))),
        ("tun-udp-gro", answer(write(SegmentProtocol::Udp))),
    ]
}

/// The virtio-net header and the packet with two segments over IPv4, between addresses for
/// documentation. The kernel checks the headers before it routes the packet.
fn super_packet(protocol: SegmentProtocol) -> ([u8; packet::VNET_HEADER_LEN], Vec<u8>) {
    let (number, header_len, offset) = match protocol {
        SegmentProtocol::Udp => (17, 8, 6),
        _ => (6, 20, 16),
    };
    let len = 20 + header_len + 2 * SEGMENT;
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[8..10].copy_from_slice(&[64, number]);
    packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    match protocol {
        SegmentProtocol::Udp => {
            packet[24..26].copy_from_slice(&((len - 20) as u16).to_be_bytes());
        }
        // Data offset and the flag ACK.
        _ => packet[32..34].copy_from_slice(&[5 << 4, 0x10]),
    }
    let checksum = ChecksumAt { start: 20, offset };
    let offload = Offload::Segment { protocol, size: SEGMENT as u16, checksum, tunnel: None };
    (offload.encode(20 + header_len), packet)
}

/// Tests the offloads of a UDP socket.
///
/// # Errors
/// Loopback does not work.
pub fn udp() -> io::Result<[ProbeResult; 2]> {
    Ok([("udp-gso", test_gso()?), ("udp-gro", test_gro()?)])
}

/// Sends two segments as one message. They must arrive as two datagrams.
fn test_gso() -> io::Result<io::Result<()>> {
    let (from, to) = pair()?;
    if let Err(errno) = send_segments(&from, to.local_addr()?) {
        return Ok(Err(errno.into()));
    }
    let mut room = [0; 2 * SEGMENT];
    let lens = [to.recv(&mut room)?, to.recv(&mut room)?];
    Ok(expect(lens == [SEGMENT; 2]))
}

/// Sends two segments as one message. They must arrive as one message.
fn test_gro() -> io::Result<io::Result<()>> {
    let (from, to) = pair()?;
    if let Err(errno) = udp::enable_gro(to.as_fd()) {
        return Ok(Err(errno.into()));
    }
    if send_segments(&from, to.local_addr()?).is_err() {
        // The option exists. Without GSO it cannot be tested further.
        return Ok(Ok(()));
    }
    let mut room = [0; 2 * SEGMENT];
    Ok(expect(to.recv(&mut room)? == 2 * SEGMENT))
}

fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (from, to) = (bind()?, bind()?);
    to.set_read_timeout(Some(TIMEOUT))?;
    Ok((from, to))
}

fn send_segments(from: &UdpSocket, to: SocketAddr) -> Result<(), Errno> {
    let payload = [0; 2 * SEGMENT];
    let segments = [ControlMessage::UdpGsoSegments(&(SEGMENT as u16))];
    let to = SockaddrStorage::from(to);
    let slices = [IoSlice::new(&payload)];
    sendmsg(from.as_raw_fd(), &slices, &segments, MsgFlags::empty(), Some(&to)).map(drop)
}

fn expect(worked: bool) -> io::Result<()> {
    if worked { Ok(()) } else { Err(io::Error::other("accepted without effect")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_namespace;

    fn refused(tried: &[ProbeResult]) -> Vec<&'static str> {
        tried.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| *name).collect()
    }

    /// The kernel of the tests is 6.2 or newer (CONTRIBUTING.md).
    #[test]
    fn kernel_with_all_offloads_passes_each_test() {
        in_namespace(|netlink| {
            let (fd, _) = crate::tun::device::create("lr0").unwrap();
            let index = netlink.link_by_name("lr0").unwrap().unwrap().index;
            netlink.set_up(index).unwrap();
            let lo = netlink.link_by_name("lo").unwrap().unwrap().index;
            netlink.set_up(lo).unwrap();
            assert_eq!(refused(&test_tun(fd.into_fd())), [""; 0]);
            assert_eq!(refused(&udp().unwrap()), [""; 0]);
        });
    }

    #[test]
    fn refused_offloads_are_reported() {
        // First a file that is not a TUN, then a TUN that is down, which refuses packets.
        let null = std::fs::File::open("/dev/null").unwrap();
        let all = ["tun-tso", "tun-uso", "tun-tcp-gro", "tun-udp-gro"];
        assert_eq!(refused(&test_tun(null.into())), all);
        in_namespace(|_| {
            let (device, _) = crate::tun::device::create("lr0").unwrap();
            assert_eq!(refused(&test_tun(device.into_fd())), ["tun-tcp-gro", "tun-udp-gro"]);
        });
    }
}
