//! Control datagrams between data, over loopback.

use std::io::IoSliceMut;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use packet::ControlSend as _;

use super::*;

/// The default hop limit (`net.ipv4.ip_default_ttl` and the setting of IPv6).
const DEFAULT_HOPS: i32 = 64;

/// A socket that receives the remaining hops of datagrams.
fn socket_with_hops(address: &str) -> std::net::UdpSocket {
    let socket = plain_socket(address);
    if address.contains('.') {
        setsockopt(&socket, sockopt::Ipv4RecvTtl, &true).unwrap();
    } else {
        setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true).unwrap();
    }
    socket
}

/// Receives a datagram: its payload, sender, and remaining hops.
fn receive_with_hops(socket: &std::net::UdpSocket) -> (Vec<u8>, SocketAddr, i32) {
    let mut buffer = [0; 64];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let mut room = nix::cmsg_space!(i32);
    let flags = MsgFlags::empty();
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut room), flags).unwrap();
    let hops = message.cmsgs().unwrap().find_map(|control| match control {
        ControlMessageOwned::Ipv4Ttl(hops) | ControlMessageOwned::Ipv6HopLimit(hops) => Some(hops),
        _ => None,
    });
    let from = message.address.unwrap();
    let from = from
        .as_sockaddr_in()
        .map(|from| SocketAddr::from((from.ip(), from.port())))
        .or(from.as_sockaddr_in6().map(|from| (from.ip(), from.port()).into()));
    let bytes = message.iovs().next().unwrap().to_vec();
    (bytes, from.unwrap(), hops.unwrap())
}

#[test]
fn control_datagram_has_its_source_and_hops_and_data_the_defaults() {
    in_namespace(|netlink| {
        netlink.add_address(LOOPBACK, "fd00::7/128".parse().unwrap()).unwrap();
        let (socket, _receiver, port) = bound();
        let mut sender = socket.sender();
        for (theirs, ours, default) in
            [("127.0.0.9", "127.0.0.5", "127.0.0.1"), ("::1", "fd00::7", "::1")]
        {
            let [ours, default]: [IpAddr; 2] =
                [ours, default].map(|address| address.parse().unwrap());
            let peer = socket_with_hops(&SocketAddr::new(theirs.parse().unwrap(), 0).to_string());
            let to_peer = Endpoint::new(peer.local_addr().unwrap());
            let from_ours = Local { addr: ours, interface: LOOPBACK };
            for (local, hops, source, left) in [
                (Some(from_ours), Some(4), ours, 4),
                (Some(from_ours), None, ours, DEFAULT_HOPS),
                (None, Some(1), default, 1),
                (None, Some(255), default, 255),
                (None, None, default, DEFAULT_HOPS),
            ] {
                let handle = socket.clone();
                let endpoint = Endpoint { local, ..to_peer };
                let sent = std::thread::scope(|scope| {
                    scope.spawn(|| handle.send_control(b"control", endpoint, hops)).join().unwrap()
                });
                assert_eq!(sent, Ok(()));
                assert_eq!(send(&mut sender, to_peer, &[b"data"]), []);
                assert_eq!(
                    receive_with_hops(&peer),
                    (b"control".to_vec(), (source, port).into(), left)
                );
                assert_eq!(
                    receive_with_hops(&peer),
                    (b"data".to_vec(), (default, port).into(), DEFAULT_HOPS)
                );
            }
        }
    });
}

#[test]
fn failed_control_datagram_returns_the_reason() {
    in_namespace(|_| {
        let (socket, _receiver, port) = bound();
        let here = to(Ipv4Addr::LOCALHOST, port);
        let not_ours = from(here, "192.0.2.1", 0);
        assert!(socket.send_control(b"x", not_ours, None).is_err(), "from a foreign address");
        let nowhere = to([192, 0, 2, 1], port);
        assert_eq!(socket.send_control(b"x", nowhere, Some(4)), Err(SendError::Unreachable));
        let long = vec![0; 65_508];
        assert_eq!(socket.send_control(&long, here, None), Err(SendError::TooBig));
        socket.close();
        assert_eq!(socket.send_control(b"x", here, None), Err(SendError::NoSocket));
    });
}
