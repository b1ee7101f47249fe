//! Sends single control datagrams over the socket of a sending half. Their source and hop limit
//! are in control messages, so that the socket's options, which apply to data, do not change.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd as _, AsRawFd as _},
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg},
};
use packet::{ControlSend, Endpoint, Local, SendError};

use super::{
    UdpSocket,
    address::Family,
    cmsg::scope,
    refusal::{Cause, send_error},
    socket::Socket,
};

/// The maximum number of signals, and errors of earlier datagrams, that are ignored for one
/// datagram.
const MAX_REFUSED: u32 = 16;

impl ControlSend for UdpSocket {
    fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError> {
        let socket = self.shared.socket().ok_or(SendError::NoSocket)?;
        send_by(&socket, datagram, to, hops)
    }
}

/// Sends a control datagram over a socket.
pub(super) fn send_by(
    socket: &Socket,
    datagram: &[u8],
    to: Endpoint,
    hops: Option<u8>,
) -> Result<(), SendError> {
    let remote = to.remote.direct().filter(|remote| socket.family().reaches(*remote));
    let remote = remote.ok_or(SendError::Unreachable)?;
    let mut refused = 0;
    loop {
        match send(socket, datagram, remote, to.local, hops) {
            Ok(()) => return Ok(()),
            Err(errno)
                if matches!(Cause::of(errno), Cause::Signal | Cause::Earlier)
                    && refused < MAX_REFUSED =>
            {
                refused += 1;
            }
            Err(errno) => return Err(send_error(errno)),
        }
    }
}

fn send(
    socket: &Socket,
    datagram: &[u8],
    remote: SocketAddr,
    local: Option<Local>,
    hops: Option<u8>,
) -> Result<(), Errno> {
    let (v4, v6);
    let hops = hops.map(i32::from);
    let mut messages = Vec::with_capacity(2);
    match local.map(|local| (local.addr, scope(&local))) {
        Some((IpAddr::V4(addr), interface)) if remote.is_ipv4() => {
            let any = libc::in_addr { s_addr: 0 };
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(addr.octets()) };
            v4 = libc::in_pktinfo {
                ipi_ifindex: interface as i32,
                ipi_spec_dst: source,
                ipi_addr: any,
            };
            messages.push(ControlMessage::Ipv4PacketInfo(&v4));
        }
        Some((IpAddr::V6(addr), interface)) if remote.is_ipv6() => {
            let source = libc::in6_addr { s6_addr: addr.octets() };
            v6 = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: interface };
            messages.push(ControlMessage::Ipv6PacketInfo(&v6));
        }
        _ => {}
    }
    if let Some(hops) = &hops {
        messages.push(match remote {
            SocketAddr::V4(_) => ControlMessage::Ipv4Ttl(hops),
            SocketAddr::V6(_) => ControlMessage::Ipv6HopLimit(hops),
        });
    }
    let name = SockaddrStorage::from(in_family(remote, socket.family()));
    let payload = [IoSlice::new(datagram)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg(socket.as_fd().as_raw_fd(), &payload, &messages, flags, Some(&name)).map(drop)
}

/// Converts an address for a socket of this family.
fn in_family(remote: SocketAddr, family: Family) -> SocketAddr {
    match (remote, family) {
        (SocketAddr::V4(v4), Family::Dual) => {
            SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
        }
        _ => remote,
    }
}
