use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::mpsc,
    thread::sleep,
};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use packet::{Ecn, Endpoint, Failure, Local, RecvBatch, RecvMeta, SendBatch, SendError};
use packet::{UdpRecv as _, UdpSend as _};

use super::{address::Family, *};
use crate::{netlink::Netlink, poll, testing::in_namespace};

mod control;
mod faulty;
mod flood_filter;
mod kernel;
mod lost;
mod refused;

/// The loopback interface of a new namespace.
const LOOPBACK: u32 = 1;

fn bound() -> (UdpSocket, UdpReceiver, u16) {
    let (socket, receiver) = UdpSocket::unbound(&Arc::default()).unwrap();
    let port = socket.bind(0, 0).unwrap();
    (socket, receiver, port)
}

/// Receives once. Returns the datagrams and their metadata.
fn receive(receiver: &mut UdpReceiver) -> Vec<(Vec<u8>, RecvMeta)> {
    let mut batch = RecvBatch::new(16);
    // The first wait is ended by the wake of `bind`.
    while batch.is_empty() {
        receiver.recv(&mut batch, false, true).unwrap();
    }
    batch.datagrams().map(|(span, meta)| (batch.get(span).to_vec(), *meta)).collect()
}

/// Sends each payload to the endpoint, in one batch.
fn send(sender: &mut UdpSender, endpoint: Endpoint, payloads: &[&[u8]]) -> Vec<Failure> {
    let mut batch = SendBatch::default();
    for payload in payloads {
        batch.push(payload.len(), endpoint, Ecn::NotEct).copy_from_slice(payload);
    }
    sender.send(&mut batch);
    batch.failures().to_vec()
}

fn to(address: impl Into<IpAddr>, port: u16) -> Endpoint {
    Endpoint::new((address.into(), port).into())
}

fn from(endpoint: Endpoint, addr: &str, interface: u32) -> Endpoint {
    Endpoint { local: Some(Local { addr: addr.parse().unwrap(), interface }), ..endpoint }
}

fn plain_socket(address: &str) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

#[test]
fn one_socket_receives_both_families_with_our_address_interface_and_ecn() {
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        for (source, ours) in [("127.0.0.9", "127.0.0.5"), ("::1", "::1")] {
            let peer = plain_socket(&SocketAddr::new(source.parse().unwrap(), 0).to_string());
            for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let tos = i32::from(ecn.bits());
                if source.contains('.') {
                    setsockopt(&peer, sockopt::Ipv4Tos, &tos).unwrap();
                } else {
                    setsockopt(&peer, sockopt::Ipv6TClass, &tos).unwrap();
                }
                let ours: IpAddr = ours.parse().unwrap();
                peer.send_to(b"hello", (ours, port)).unwrap();
                let received = receive(&mut receiver);
                let [(payload, meta)] = received.as_slice() else { panic!("{received:?}") };
                assert_eq!(payload, b"hello");
                assert_eq!(meta.endpoint.remote.direct(), peer.local_addr().ok());
                assert_eq!(
                    meta.endpoint.local,
                    Some(Local { addr: ours, interface: LOOPBACK }),
                    "{source}"
                );
                assert_eq!((meta.ecn, meta.len, meta.stride), (ecn, 5, 5));
            }
        }
    });
}

#[test]
fn waiting_time_is_reported_for_full_batches() {
    const PAUSE: Duration = Duration::from_millis(20);
    in_namespace(|_| {
        let (_socket, mut receiver, port) = bound();
        let peer = plain_socket("127.0.0.1:0");
        let mut waited_in = |slots| {
            peer.send_to(b"x", ("127.0.0.1", port)).unwrap();
            sleep(PAUSE);
            let mut batch = RecvBatch::new(slots);
            while batch.is_empty() {
                receiver.recv(&mut batch, false, true).unwrap();
            }
            batch.waited()
        };
        // The kernel starts to add timestamps after a work queue has run.
        assert!((0..100).any(|_| waited_in(1) >= PAUSE));
        assert_eq!(waited_in(2), Duration::ZERO);
    });
}

#[test]
fn ipv4_datagram_on_a_dual_socket_has_control_messages_of_both_levels() {
    in_namespace(|_| {
        let socket = Socket::bind(0, 0, None).unwrap();
        let peer = plain_socket("127.0.0.1:0");
        peer.send_to(b"x", ("127.0.0.5", socket.port())).unwrap();
        let mut buffer = [0; 16];
        let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
        let mut room = nix::cmsg_space!([u8; 128]);
        let got = nix::sys::socket::recvmsg::<nix::sys::socket::SockaddrStorage>(
            socket.as_fd().as_raw_fd(),
            &mut parts,
            Some(&mut room),
            nix::sys::socket::MsgFlags::empty(),
        )
        .unwrap();
        let kinds: Vec<_> = got.cmsgs().unwrap().map(|c| format!("{c:?}")).collect();
        let has = |kind: &str| kinds.iter().any(|k| k.starts_with(kind));
        assert!(has("Ipv4PacketInfo") && has("Ipv6PacketInfo"), "{kinds:?}");
        assert!(has("Ipv4Tos") && !has("Ipv6TClass"), "{kinds:?}");
    });
}

#[test]
fn link_local_peer_has_its_scope_and_can_be_answered() {
    in_namespace(|netlink| {
        netlink.add_address(LOOPBACK, "fe80::1/64".parse().unwrap()).unwrap();
        let (socket, mut receiver, port) = bound();
        let ours = SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, LOOPBACK);
        let peer = plain_socket("[fe80::1%1]:0");
        // Pings are lost until the kernel's work queue has made the address local.
        let fd = socket.shared.socket().unwrap();
        let received = (0..500).any(|_| {
            peer.send_to(b"ping", ours).unwrap();
            poll::readable([fd.as_fd()], Some(Duration::from_millis(10))).unwrap()[0]
        });
        assert!(received);
        let endpoint = receive(&mut receiver)[0].1.endpoint;
        let Some(SocketAddr::V6(remote)) = endpoint.remote.direct() else { panic!("{endpoint:?}") };
        assert_eq!((remote.scope_id(), remote.flowinfo()), (LOOPBACK, 0));
        assert_eq!(send(&mut socket.sender(), endpoint, &[b"pong"]), []);
        let mut buffer = [0; 16];
        let (len, source) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], source), (&b"pong"[..], SocketAddr::V6(ours)));
    });
}

#[test]
fn sent_datagrams_have_the_sticky_source_and_the_ecn_mark() {
    in_namespace(|_| {
        let (socket, _receiver, port) = bound();
        let (peer, mut at_peer, peer_port) = bound();
        for ours in ["127.0.0.77", "::1"] {
            let address: IpAddr = ours.parse().unwrap();
            let endpoint = from(to(address, peer_port), ours, LOOPBACK);
            for ecn in [Ecn::Ect0, Ecn::Ce] {
                let mut batch = SendBatch::default();
                batch.push(3, endpoint, ecn);
                socket.sender().send(&mut batch);
                assert_eq!(batch.failures(), []);
                let meta = receive(&mut at_peer)[0].1;
                assert_eq!(meta.endpoint.remote.direct(), Some(SocketAddr::new(address, port)));
                assert_eq!(meta.ecn, ecn);
            }
        }
        drop(peer);
    });
}

#[test]
fn stale_source_is_omitted_and_the_run_arrives() {
    in_namespace(|_| {
        let (socket, _receiver, port) = bound();
        let (_peer, mut at_peer, peer_port) = bound();
        let v4 = to(Ipv4Addr::LOCALHOST, peer_port);
        let v6 = to(Ipv6Addr::LOCALHOST, peer_port);
        for (stale, good) in [
            (from(v4, "192.0.2.1", LOOPBACK), from(v4, "127.0.0.3", LOOPBACK)),
            (from(v6, "2001:db8::1", LOOPBACK), from(v6, "::1", LOOPBACK)),
        ] {
            let mut batch = SendBatch::default();
            batch.push(1, good, Ecn::NotEct);
            batch.push(2, stale, Ecn::NotEct);
            batch.push(2, stale, Ecn::NotEct);
            batch.push(1, good, Ecn::NotEct);
            socket.sender().send(&mut batch);
            let expected = Failure { transmit: 1, datagrams: 2, error: SendError::StaleSource };
            assert_eq!(batch.failures(), [expected], "{stale:?}");
            let received: Vec<_> = receive(&mut at_peer)
                .iter()
                .map(|(payload, meta)| (payload.len(), meta.endpoint.remote.direct().unwrap()))
                .collect();
            let good = SocketAddr::new(good.local.unwrap().addr, port);
            let chosen = SocketAddr::new(stale.remote.direct().unwrap().ip(), port);
            assert_eq!(received, [(1, good), (2, chosen), (2, chosen), (1, good)]);
        }
    });
}

#[test]
fn run_of_many_datagrams_is_sent_in_order_in_several_calls() {
    in_namespace(|_| {
        let (socket, _receiver, _) = bound();
        let (_peer, mut at_peer, peer_port) = bound();
        let count = 2 * mmsg::MAX_MESSAGES + 5;
        let payloads: Vec<_> = (0..count).map(|i| vec![i as u8; 100]).collect();
        let slices: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
        let endpoint = to(Ipv4Addr::LOCALHOST, peer_port);
        assert_eq!(send(&mut socket.sender(), endpoint, &slices), []);
        let mut arrived = Vec::new();
        while arrived.len() < count {
            arrived.extend(receive(&mut at_peer).into_iter().map(|(payload, _)| payload));
        }
        assert_eq!(arrived, payloads);
    });
}

#[test]
fn only_datagrams_that_cannot_be_sent_are_reported_and_the_rest_arrives() {
    in_namespace(|_| {
        let (socket, _receiver, _) = bound();
        let (_peer, mut at_peer, peer_port) = bound();
        let good = to(Ipv4Addr::LOCALHOST, peer_port);
        let nowhere = to([192, 0, 2, 1], peer_port);
        let nowhere_sticky = from(to(Ipv6Addr::from_bits(1 << 125), 9), "::1", LOOPBACK);
        let mut batch = SendBatch::default();
        for (len, endpoint) in
            [(65_508, good), (10, good), (11, nowhere), (11, nowhere), (12, good)]
        {
            batch.push(len, endpoint, Ecn::NotEct);
        }
        batch.push(1, to([255, 255, 255, 255], peer_port), Ecn::NotEct);
        batch.push(13, good, Ecn::NotEct);
        socket.sender().send(&mut batch);
        let failure = |transmit, datagrams, error| Failure { transmit, datagrams, error };
        assert_eq!(
            batch.failures(),
            [
                failure(0, 1, SendError::TooBig),
                failure(1, 2, SendError::Unreachable),
                failure(3, 1, SendError::Unreachable),
            ]
        );
        let lens: Vec<_> = receive(&mut at_peer).iter().map(|(payload, _)| payload.len()).collect();
        assert_eq!(lens, [10, 12, 13]);
        let failures = send(&mut socket.sender(), nowhere_sticky, &[b"x"]);
        assert!(
            matches!(failures[..], [Failure { error: SendError::Unreachable, .. }]),
            "{failures:?}"
        );
    });
}

#[test]
fn datagram_with_a_source_follows_the_routing_table() {
    in_namespace(|_| {
        let (socket, _receiver, port) = bound();
        let endpoint = from(to([192, 0, 2, 1], port), "127.0.0.1", LOOPBACK);
        let failures = send(&mut socket.sender(), endpoint, &[b"nowhere"]);
        let expected = Failure { transmit: 0, datagrams: 1, error: SendError::Unreachable };
        assert_eq!(failures, [expected]);
    });
}

#[test]
fn icmp_error_of_an_earlier_datagram_does_not_lose_later_ones() {
    in_namespace(|_| {
        let (socket, mut receiver, port) = bound();
        let (_peer, mut at_peer, peer_port) = bound();
        // Without this option Linux does not report ICMP errors to unconnected sockets.
        let fd = socket.shared.socket().unwrap();
        setsockopt(&*fd, sockopt::Ipv4RecvErr, &true).unwrap();
        drop(fd);
        let mut sender = socket.sender();
        let closed = plain_socket("127.0.0.1:0").local_addr().unwrap();
        send(&mut sender, Endpoint::new(closed), &[b"refused"]);
        let good = to(Ipv4Addr::LOCALHOST, peer_port);
        assert_eq!(send(&mut sender, good, &[b"one", b"two"]), []);
        let received: Vec<_> =
            receive(&mut at_peer).into_iter().map(|(payload, _)| payload).collect();
        assert_eq!(received, [b"one", b"two"]);
        send(&mut sender, Endpoint::new(closed), &[b"refused"]);
        plain_socket("127.0.0.1:0").send_to(b"in", ("127.0.0.1", port)).unwrap();
        assert_eq!(receive(&mut receiver)[0].0, b"in");
    });
}

#[test]
fn waiting_receiver_continues_with_the_new_socket_and_the_old_port_is_free() {
    in_namespace(|_| {
        let (socket, mut receiver, first) = bound();
        let (sent, arrived) = mpsc::channel();
        let next = || arrived.recv_timeout(Duration::from_secs(5)).ok();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut is_last = false;
                while !is_last {
                    for (payload, _) in receive(&mut receiver) {
                        is_last = payload == b"last";
                        sent.send(payload).unwrap();
                    }
                }
            });
            let peer = plain_socket("127.0.0.1:0");
            let second = socket.bind(0, 0).unwrap();
            plain_socket(&format!("0.0.0.0:{first}"));
            peer.send_to(b"new", ("127.0.0.1", second)).unwrap();
            assert_eq!(next().as_deref(), Some(&b"new"[..]));
            assert_eq!(socket.bind(second, 0).unwrap(), second, "the same port again");
            for _ in 0..50 {
                socket.close();
                assert_eq!((socket.port(), socket.buffers()), (None, None));
                assert_eq!(socket.bind(second, 0).unwrap(), second);
            }
            peer.send_to(b"last", ("127.0.0.1", second)).unwrap();
            assert_eq!(next().as_deref(), Some(&b"last"[..]));
        });
    });
}

#[test]
fn socket_is_unchanged_if_the_new_port_is_in_use() {
    in_namespace(|_| {
        let taken = plain_socket("0.0.0.0:0").local_addr().map(|_| plain_socket("0.0.0.0:0"));
        let taken = taken.unwrap();
        let (socket, mut receiver, port) = bound();
        let refused = socket.bind(taken.local_addr().unwrap().port(), 0);
        assert!(matches!(refused, Err(BindError::InUse)), "{refused:?}");
        assert_eq!(socket.port(), Some(port));
        taken.send_to(b"still", ("127.0.0.1", port)).unwrap();
        assert_eq!(receive(&mut receiver)[0].0, b"still");
    });
}

#[test]
fn sends_without_a_socket_fail_and_a_waker_ends_the_wait() {
    let (socket, mut receiver) = UdpSocket::unbound(&Arc::default()).unwrap();
    let failures = send(&mut socket.sender(), to([127, 0, 0, 1], 9), &[b"a", b"b"]);
    assert_eq!(failures, [Failure { transmit: 0, datagrams: 2, error: SendError::NoSocket }]);
    let waker = receiver.waker();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut batch = RecvBatch::new(1);
            receiver.recv(&mut batch, false, true).unwrap();
            batch.is_empty()
        });
        waker();
        assert!(waiting.join().unwrap());
    });
    socket.bind(0, 0).unwrap();
    let mut batch = RecvBatch::new(1);
    receiver.recv(&mut batch, false, true).unwrap();
    waker();
    receiver.recv(&mut batch, false, true).unwrap();
    assert!(batch.is_empty());
}

#[test]
fn drops_of_full_receive_buffers_are_counted_over_all_sockets() {
    in_namespace(|_| {
        let (socket, mut receiver, mut port) = bound();
        let peer = plain_socket("127.0.0.1:0");
        let mut lost = 0;
        for _ in 0..2 {
            let fd = socket.shared.socket().unwrap();
            setsockopt(&*fd, sockopt::RcvBuf, &4096).unwrap();
            drop(fd);
            for _ in 0..200 {
                peer.send_to(&[0; 1000], ("127.0.0.1", port)).unwrap();
            }
            let received = receive(&mut receiver).len() as u64;
            peer.send_to(b"with the drop counter", ("127.0.0.1", port)).unwrap();
            assert_eq!(receive(&mut receiver).len(), 1);
            lost += 200 - received;
            assert!(received < 200);
            assert_eq!(socket.overflow(), lost);
            port = socket.bind(0, 0).unwrap();
        }
    });
}

#[test]
fn too_long_datagram_is_dropped_and_later_ones_move_up() {
    in_namespace(|_| {
        let (socket, mut receiver, port) = bound();
        let peer = plain_socket("127.0.0.1:0");
        for payload in [&b"first"[..], &[7; 101], b"second", &[7; 101], b"", b"third"] {
            peer.send_to(payload, ("127.0.0.1", port)).unwrap();
        }
        let mut batch = RecvBatch::new(8);
        let fd = socket.shared.socket().unwrap();
        receiver.receive(&fd, &mut batch, 100).unwrap();
        let received: Vec<_> = batch.datagrams().map(|(span, _)| batch.get(span)).collect();
        assert_eq!(received, [&b"first"[..], b"second", b"", b"third"]);
        assert_eq!(socket.truncated(), 2);
    });
}

#[test]
fn ipv4_socket_sends_only_to_ipv4() {
    in_namespace(|_| {
        let (socket, mut receiver) = UdpSocket::unbound(&Arc::default()).unwrap();
        let v4 = Socket::bind_family(Family::V4, 0, 0).unwrap();
        let port = v4.port();
        socket.shared.replace(Some(Arc::new(v4)));
        let mut batch = SendBatch::default();
        let good = from(to([127, 0, 0, 2], port), "127.0.0.8", LOOPBACK);
        batch.push(1, good, Ecn::Ce);
        batch.push(1, to(Ipv6Addr::LOCALHOST, port), Ecn::NotEct);
        batch.push(2, good, Ecn::NotEct);
        socket.sender().send(&mut batch);
        let expected = Failure { transmit: 1, datagrams: 1, error: SendError::Unreachable };
        assert_eq!(batch.failures(), [expected]);
        let received = receive(&mut receiver);
        assert_eq!(received.len(), 2);
        let expected = from(to([127, 0, 0, 8], port), "127.0.0.2", LOOPBACK);
        assert_eq!((received[0].1.endpoint, received[0].1.ecn), (expected, Ecn::Ce));
    });
}

#[test]
fn ipv4_works_with_ipv6_disabled_in_the_namespace() {
    in_namespace(|_| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        let (socket, mut receiver, port) = bound();
        assert_eq!(send(&mut socket.sender(), to([127, 0, 0, 1], port), &[b"x"]), []);
        assert_eq!(receive(&mut receiver)[0].0, b"x");
        let failures = send(&mut socket.sender(), to(Ipv6Addr::LOCALHOST, port), &[b"x"]);
        assert_eq!(failures[0].error, SendError::Unreachable);
    });
}

#[test]
fn buffers_and_mark_are_as_requested() {
    in_namespace(|_: &Netlink| {
        let (socket, _receiver) = UdpSocket::unbound(&Arc::default()).unwrap();
        socket.bind(0, 0x51).unwrap();
        let mark =
            |socket: &UdpSocket| getsockopt(&*socket.shared.socket().unwrap(), sockopt::Mark);
        assert_eq!(mark(&socket), Ok(0x51));
        socket.set_fwmark(0x52).unwrap();
        assert_eq!(mark(&socket), Ok(0x52));
        socket.bind(socket.port().unwrap(), 0).unwrap();
        assert_eq!(mark(&socket), Ok(0));
        let buffers = socket.buffers().unwrap();
        assert_eq!(buffers.wanted, 4 << 20);
        // In a user namespace the system's limit applies.
        assert!(buffers.receive > 0 && buffers.receive <= buffers.wanted, "{buffers:?}");
        assert!(buffers.send > 0 && buffers.send <= buffers.wanted, "{buffers:?}");
    });
}
