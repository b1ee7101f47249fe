//! The sender's reaction to refusals of the real kernel.

use std::{
    io,
    os::fd::BorrowedFd,
    process::{Command, Stdio},
};

use nix::errno::Errno;
use packet::{Batch, IpRecv as _};

use super::super::{
    address::Family,
    mmsg::{Calls, Messages, Outgoing, Received},
};
use super::*;
use crate::{
    testing::skip,
    time::Clock,
    tun::{Tun, TunRecv},
};

/// Records the accepted and refused messages of the kernel.
struct Recorder {
    messages: Messages,
    /// Length and number of the datagrams in each sent message.
    sent: Vec<(usize, usize)>,
    refused: Vec<Errno>,
}

impl Clock for Recorder {}

impl Calls for Recorder {
    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        family: Family,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Errno> {
        let datagrams: Vec<_> = datagrams.take(mmsg::MAX_MESSAGES).collect();
        let sent = self.messages.send(fd, family, datagrams.iter().copied());
        match sent {
            Ok(count) => self.sent.extend(datagrams[..count].iter().map(|message| {
                let segment = message.segment.map_or(message.payload.len(), usize::from);
                (segment, message.payload.len().div_ceil(segment))
            })),
            Err(errno) => self.refused.push(errno),
        }
        assert!(self.refused.len() < 100, "endless calls");
        sent
    }

    fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno> {
        self.messages.receive(fd, slots)
    }

    fn received(&self, at: usize) -> Received {
        self.messages.received(at)
    }

    fn set_gro(&self, fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
        self.messages.set_gro(fd, on)
    }
}

fn recorded_sender() -> (UdpSender<Recorder>, Arc<Offloads>) {
    let offloads = Arc::<Offloads>::default();
    let (socket, _) = UdpSocket::unbound(&offloads).unwrap();
    socket.bind(0, 0).unwrap();
    let recorder = Recorder { messages: Messages::new(), sent: Vec::new(), refused: Vec::new() };
    (UdpSender::over(socket.shared, recorder), offloads)
}

/// A TUN device without offloads, and an address behind it.
fn device(netlink: &Netlink, number: u8, mtu: u32) -> (TunRecv, IpAddr) {
    let offloads = Arc::<Offloads>::default();
    offloads.tun_tso.set_enabled(false);
    offloads.tun_uso.set_enabled(false);
    let (recv, _send, info) = Tun::create("lr%d", mtu, &offloads).unwrap();
    netlink.add_address(info.index, format!("10.9.{number}.1/24").parse().unwrap()).unwrap();
    netlink.set_up(info.index).unwrap();
    (recv, [10, 9, number, 2].into())
}

/// Receives `count` UDP payloads from a device, and reassembles fragments.
fn receive_payloads(recv: &mut TunRecv, count: usize) -> Vec<Vec<u8>> {
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    let mut batch = Batch::new(64, 64 * Batch::ROOM);
    let mut is_whole = true;
    while payloads.len() < count || !is_whole {
        let is_readable = poll::readable([recv.as_fd()], Some(Duration::from_secs(5))).unwrap()[0];
        assert!(is_readable, "only {} of {count} arrived", payloads.len());
        batch.clear();
        recv.recv(&mut batch, true).unwrap();
        for packet in batch.iter().map(|(packet, _)| packet).filter(|packet| packet[0] == 0x45) {
            let offset = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff;
            is_whole = packet[6] & 0x20 == 0;
            match payloads.last_mut() {
                Some(last) if offset > 0 => last.extend(&packet[20..]),
                _ => payloads.push(packet[28..].to_vec()),
            }
        }
    }
    payloads
}

fn payloads(count: u8, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![number; len]).collect()
}

fn push_all(batch: &mut SendBatch, endpoint: Endpoint, payloads: &[Vec<u8>]) {
    for payload in payloads {
        batch.push(payload.len(), endpoint, Ecn::NotEct).copy_from_slice(payload);
    }
}

/// Receives packets from a device without ICMPv6.
fn packets(recv: &mut TunRecv, count: usize) -> Vec<Vec<u8>> {
    const ICMP6: u8 = 58;
    const HOP_BY_HOP: u8 = 0;
    let mut packets = Vec::new();
    let mut batch = Batch::new(64, 64 * Batch::ROOM);
    while packets.len() < count {
        let is_readable = poll::readable([recv.as_fd()], Some(Duration::from_secs(5))).unwrap()[0];
        assert!(is_readable, "only {} of {count} arrived", packets.len());
        batch.clear();
        recv.recv(&mut batch, true).unwrap();
        let of_ours =
            |packet: &&[u8]| packet[0] >> 4 == 4 || ![ICMP6, HOP_BY_HOP].contains(&packet[6]);
        packets.extend(batch.iter().map(|(packet, _)| packet).filter(of_ours).map(<[u8]>::to_vec));
    }
    packets
}

#[test]
fn unfragmented_sends_do_not_affect_later_sends() {
    const MTU: u32 = 1300;
    const DF: u8 = 0x40;
    const FRAGMENT: u8 = 44;
    in_namespace(|netlink| {
        let (mut recv, v4) = device(netlink, 0, MTU);
        let link = netlink.link_by_name("lr0").unwrap().unwrap();
        netlink.add_address(link.index, "fd09::1/64".parse().unwrap()).unwrap();
        let (socket, _receiver, _) = bound();
        let mut sender = socket.sender();
        for (address, headers) in [(v4, 28), ("fd09::2".parse().unwrap(), 48)] {
            let most = MTU as usize - headers;
            let whole = vec![7; most];
            assert_eq!(sender.send_unfragmented(&whole, to(address, 9)), Ok(()));
            let sent = &packets(&mut recv, 1)[0];
            assert_eq!(sent.len(), MTU as usize);
            assert!(sent[0] >> 4 == 6 || sent[6] & DF != 0);
            let refused = sender.send_unfragmented(&vec![7; most + 1], to(address, 9));
            assert_eq!(refused, Err(SendError::TooBig));
            assert_eq!(send(&mut sender, to(address, 9), &[&vec![7; most + 1]]), []);
            for fragment in packets(&mut recv, 2) {
                assert!(fragment[0] >> 4 == 4 && fragment[6] & DF == 0 || fragment[6] == FRAGMENT);
            }
        }
        let nowhere = sender.send_unfragmented(b"x", to([192, 0, 2, 1], 9));
        assert_eq!(nowhere, Err(SendError::Unreachable));
    });
}

/// Since Linux 6.11 the kernel segments for such a device. Before, it returns EIO.
#[test]
fn run_is_sent_in_order_by_a_device_without_offloads() {
    in_namespace(|netlink| {
        let (mut recv, address) = device(netlink, 0, 1420);
        let (mut sender, offloads) = recorded_sender();
        let sent = payloads(100, 1300);
        for demotions in 0..2 {
            let mut batch = SendBatch::default();
            push_all(&mut batch, to(address, 9), &sent);
            sender.send(&mut batch);
            assert_eq!(batch.failures(), []);
            assert_eq!(receive_payloads(&mut recv, 100), sent);
            match sender.messages.refused[..] {
                [] => assert_eq!(offloads.udp_gso.demotions(), 0),
                [Errno::EIO] => assert_eq!(offloads.udp_gso.demotions(), 1, "{demotions}"),
                ref other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn only_the_path_with_a_smaller_mtu_is_demoted_for_long_segments() {
    in_namespace(|netlink| {
        let (mut narrow, to_narrow) = device(netlink, 0, 1000);
        let (mut wide, to_wide) = device(netlink, 1, 1420);
        let (mut sender, offloads) = recorded_sender();
        let (long, short) = (payloads(30, 1300), payloads(30, 600));
        for round in 0..2 {
            let mut batch = SendBatch::default();
            sender.messages.sent.clear();
            push_all(&mut batch, to(to_narrow, 9), &long);
            push_all(&mut batch, to(to_wide, 9), &long);
            push_all(&mut batch, to(to_narrow, 9), &short);
            sender.send(&mut batch);
            assert_eq!(batch.failures(), []);
            assert_eq!(receive_payloads(&mut narrow, 60), [&long[..], &short].concat());
            assert_eq!(receive_payloads(&mut wide, 30), long);
            let short_went: &[_] = match sender.messages.refused[..] {
                [Errno::EMSGSIZE] => &[(600, 30)],
                // Before Linux 6.14, where the errno does not indicate the length.
                [Errno::EINVAL] => &[(600, 1); 30],
                ref other => panic!("{other:?}, round {round}"),
            };
            let sent = [&[(1300, 1); 30][..], &[(1300, 30)], short_went].concat();
            assert_eq!((&sender.messages.sent, round), (&sent, round));
            assert_eq!(offloads.udp_gso.demotions(), 1);
        }
    });
}

/// Runs a program in the namespace. Returns whether it exists and succeeded.
fn run(command: &str) -> bool {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    match command.args(words).stderr(Stdio::null()).status() {
        Ok(status) => status.success(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn run_to_an_unreachable_route_fails_in_one_or_two_calls() {
    in_namespace(|_| {
        let (_peer, mut at_peer, port) = bound();
        let good = to(Ipv4Addr::LOCALHOST, port);
        let nowhere = to([10, 1, 0, 1], 9);
        for (route, errno, error, calls) in [
            ("", Errno::ENETUNREACH, SendError::Unreachable, 1),
            ("unreachable", Errno::EHOSTUNREACH, SendError::Unreachable, 1),
            ("prohibit", Errno::EACCES, SendError::Unreachable, 1),
            ("blackhole", Errno::EINVAL, SendError::Other(Errno::EINVAL as i32), 2),
        ] {
            if !route.is_empty() && !run(&format!("ip route replace {route} 10.1.0.0/16")) {
                return skip("ip");
            }
            let (mut sender, offloads) = recorded_sender();
            let mut batch = SendBatch::default();
            push_all(&mut batch, nowhere, &payloads(100, 500));
            push_all(&mut batch, good, &payloads(2, 10));
            sender.send(&mut batch);
            assert_eq!(batch.failures(), [Failure { transmit: 0, datagrams: 100, error }]);
            assert_eq!(sender.messages.refused, vec![errno; calls], "{route}");
            assert_eq!(offloads.udp_gso.demotions(), 0);
            let received: Vec<_> =
                receive(&mut at_peer).into_iter().map(|(payload, _)| payload).collect();
            assert_eq!(received.concat(), payloads(2, 10).concat());
        }
    });
}

#[test]
fn messages_dropped_by_a_firewall_are_reported_and_the_rest_arrives() {
    in_namespace(|_| {
        let (_peer, mut at_peer, port) = bound();
        let rules = [
            "nft add table inet t".into(),
            "nft add chain inet t o { type filter hook output priority 0 ; }".into(),
            format!("nft add rule inet t o ip daddr 127.0.0.9 udp dport {port} drop"),
        ];
        if !rules.iter().all(|rule: &String| run(rule)) {
            return skip("nft");
        }
        let (mut sender, offloads) = recorded_sender();
        let mut batch = SendBatch::default();
        push_all(&mut batch, to([127, 0, 0, 9], port), &payloads(100, 500));
        push_all(&mut batch, to(Ipv4Addr::LOCALHOST, port), &payloads(2, 10));
        sender.send(&mut batch);
        let error = SendError::Unreachable;
        assert_eq!(batch.failures(), [Failure { transmit: 0, datagrams: 100, error }]);
        assert_eq!(sender.messages.refused, [Errno::EPERM; 2]);
        assert_eq!(offloads.udp_gso.demotions(), 0);
        let received: Vec<_> =
            receive(&mut at_peer).into_iter().map(|(payload, _)| payload).collect();
        assert_eq!(received.concat(), payloads(2, 10).concat());
    });
}
