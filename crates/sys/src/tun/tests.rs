use std::{net::UdpSocket, time::Duration};

use nix::time::{ClockId, clock_gettime};
use packet::{Batch, Ecn, Endpoint, IpPacket, IpRecv, IpSend, RecvBatch, RecvMeta, Span};

use super::*;
use crate::{errno::errno, ethtool, testing::in_namespace};

mod faulty;
mod refused;

/// A batch with one IP packet, and the span of the packet.
fn batch_of(packet: &[u8]) -> (RecvBatch, [IpPacket; 1]) {
    let mut batch = RecvBatch::new(1);
    batch.slots_mut().next().unwrap()[..packet.len()].copy_from_slice(packet);
    let endpoint = Endpoint::new(([127, 0, 0, 1], 1).into());
    batch.commit(RecvMeta { len: packet.len(), stride: packet.len(), endpoint, ecn: Ecn::NotEct });
    let packet = IpPacket::read(packet, Span { start: 0, len: packet.len() }).unwrap();
    (batch, [packet])
}

/// A UDP packet over IPv4, without a UDP checksum.
fn udp_packet(source: [u8; 4], destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    let sum: u32 = packet.chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(9u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// The IPv4 packets of a batch.
fn v4(batch: &Batch) -> impl Iterator<Item = &[u8]> {
    batch.iter().map(|(packet, _)| packet).filter(|packet| packet[0] >> 4 == 4)
}

/// Receives IPv4 packets. On a new interface the kernel also sends IPv6 packets.
fn receive_v4(recv: &mut TunRecv) -> Vec<Vec<u8>> {
    let mut batch = Batch::new(16, 0);
    loop {
        batch.clear();
        recv.recv(&mut batch, true).unwrap();
        let packets: Vec<_> = v4(&batch).map(<[u8]>::to_vec).collect();
        if !packets.is_empty() {
            return packets;
        }
    }
}

#[test]
fn packets_pass_through_the_kernel_in_both_directions() {
    in_namespace(|netlink| {
        let (mut recv, mut send, info) = Tun::create("linerate%d", 1300, &Arc::default()).unwrap();
        assert_eq!(info.name, "linerate0");
        let link = netlink.link(info.index).unwrap().unwrap();
        assert_eq!((link.name, link.mtu, link.up), ("linerate0".into(), 1300, false));
        netlink.add_address(info.index, "10.9.0.1/24".parse().unwrap()).unwrap();
        netlink.set_up(info.index).unwrap();

        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(b"out of the kernel", "10.9.0.2:9").unwrap();
        let packets = receive_v4(&mut recv);
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0][16..20], [10, 9, 0, 2]);
        assert!(packets[0].ends_with(b"out of the kernel"));

        let port = socket.local_addr().unwrap().port();
        let (batch, spans) = batch_of(&udp_packet([10, 9, 0, 2], [10, 9, 0, 1], port, b"into"));
        assert_eq!(send.send(&batch, &spans).unwrap(), 0);
        let mut buffer = [0; 16];
        let (len, source) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], source), (&b"into"[..], "10.9.0.2:9".parse().unwrap()));
    });
}

#[test]
fn burst_fills_a_batch_and_the_rest_is_in_the_next() {
    in_namespace(|netlink| {
        let (mut recv, _send, info) = Tun::create("lr", 1420, &Arc::default()).unwrap();
        netlink.add_address(info.index, "10.9.0.1/24".parse().unwrap()).unwrap();
        netlink.set_up(info.index).unwrap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        for i in 0..20 {
            socket.send_to(&[i], "10.9.0.2:9").unwrap();
        }
        let mut lasts = Vec::new();
        let mut batch = Batch::new(8, 8 * Batch::ROOM);
        while lasts.len() < 20 {
            batch.clear();
            recv.recv(&mut batch, true).unwrap();
            assert!(!batch.is_empty() && batch.len() <= 8);
            lasts.extend(v4(&batch).map(|p| p[28]));
        }
        assert_eq!(lasts, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn offloads_are_enabled_independently() {
    in_namespace(|_| {
        // Since Linux 6.2 and 6.17.
        let (mut kernel_has_uso, mut kernel_has_tunnels) = (true, true);
        for which in (0..8).rev() {
            let [tunnel, uso, tso] = [1, 2, 4].map(|bit| which & bit != 0);
            let offloads = Arc::<Offloads>::default();
            offloads.tun_tso.set_enabled(tso);
            offloads.tun_uso.set_enabled(uso);
            offloads.tun_tunnel_gso.set_enabled(tunnel);
            let _tun = Tun::create("lr0", 1420, &offloads).unwrap();
            let features = ethtool::features("lr0").unwrap();
            let is_on = |name: &str| features.get(name).is_some_and(|feature| feature.active);
            if which == 7 {
                kernel_has_uso = is_on("tx-udp-segmentation");
                kernel_has_tunnels = is_on("tx-udp_tnl-segmentation");
            }
            let case = format!("TSO: {tso}, USO: {uso}, tunnels: {tunnel}");
            assert_eq!(is_on("tx-tcp-segmentation"), tso, "{case}");
            assert_eq!(is_on("tx-udp-segmentation"), uso && kernel_has_uso, "{case}");
            let tunnels = tunnel && (tso || uso) && kernel_has_tunnels;
            for name in ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"] {
                assert_eq!(is_on(name), tunnels, "{name}, {case}");
            }
        }
    });
}

#[test]
fn used_name_is_busy_and_invalid_names_are_rejected() {
    in_namespace(|_| {
        let _first = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        for taken in ["lr0", "lo"] {
            let refused = Tun::create(taken, 1420, &Arc::default()).map(|_| ());
            assert!(matches!(refused, Err(TunError::Busy)), "{taken}: {refused:?}");
        }
        let invalid =
            ["", "a/b", "a b", ".", "..", "sixteen-bytes-xx", "a:b", "a%s", "%d%d", "a\0b"];
        for name in invalid {
            let refused = Tun::create(name, 1420, &Arc::default()).map(|_| ());
            assert!(matches!(refused, Err(TunError::NameInvalid)), "{name:?}: {refused:?}");
        }
        for mtu in [67, 65_536] {
            let refused = Tun::create("lr1", mtu, &Arc::default()).map(|_| ());
            assert!(matches!(refused, Err(TunError::MtuInvalid)), "{mtu}: {refused:?}");
        }
        Tun::create("lr1", 65_535, &Arc::default()).unwrap();
    });
}

#[test]
fn creation_without_the_capability_is_not_permitted() {
    in_namespace(|_| {
        caps::clear(None, caps::CapSet::Effective).unwrap();
        let refused = Tun::create("lr0", 1420, &Arc::default()).map(|_| ());
        assert!(matches!(refused, Err(TunError::NoPermission)), "{refused:?}");
    });
}

#[test]
fn deleted_interface_ends_both_halves() {
    in_namespace(|netlink| {
        let (mut recv, mut send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        netlink.set_up(info.index).unwrap();
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                let mut batch = Batch::new(4, 0);
                while recv.recv(&mut batch, true).is_ok() {
                    batch.clear();
                }
            });
            netlink.delete_link(info.index).unwrap();
            ended.join().unwrap();
        });
        assert_eq!(netlink.link_by_name("lr0").unwrap(), None);
        let (batch, spans) = batch_of(&udp_packet([10, 9, 0, 2], [10, 9, 0, 1], 9, b""));
        assert_eq!(errno(&send.send(&batch, &spans).unwrap_err()), Some(Errno::EBADFD));
    });
}

#[test]
fn reading_waits_and_writing_fails_while_the_interface_is_down() {
    in_namespace(|netlink| {
        let (mut recv, mut send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        let (batch, spans) = batch_of(&udp_packet([10, 9, 0, 2], [10, 9, 0, 1], 9, b""));
        for was_up in [false, true] {
            if was_up {
                netlink.set_up(info.index).unwrap();
                netlink.set_down(info.index).unwrap();
                recv.drain(&mut Batch::new(64, 64 * Batch::ROOM)).unwrap();
            }
            assert_eq!(send.send(&batch, &spans).unwrap(), 1);
            let waker = recv.waker();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let mut batch = Batch::new(4, 0);
                    recv.recv(&mut batch, true).unwrap();
                    assert!(batch.is_empty());
                    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap()
                });
                // The only sleep in these tests. The receiver must not be busy during this time.
                std::thread::sleep(Duration::from_millis(200));
                waker();
                let busy = Duration::from(waiting.join().unwrap());
                assert!(busy < Duration::from_millis(20), "{busy:?} of 200 ms");
            });
        }
    });
}

#[test]
fn only_invalid_ip_packets_are_refused() {
    in_namespace(|netlink| {
        let (_recv, mut send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
        netlink.add_address(info.index, "10.9.0.1/24".parse().unwrap()).unwrap();
        netlink.set_up(info.index).unwrap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (mut batch, [good]) = batch_of(&udp_packet([10, 9, 0, 2], [10, 9, 0, 1], port, b"x"));
        let bad = Span { start: 1000, len: 40 };
        batch.get_mut(bad).fill(0xff);
        let bad = IpPacket { span: bad, ..good };
        assert_eq!(send.send(&batch, &[bad, good]).unwrap(), 1);
        assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 1);
    });
}
