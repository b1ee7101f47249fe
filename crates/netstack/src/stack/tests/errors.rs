//! ICMP errors from routers, and from hosts without a listener.

use std::{
    io::ErrorKind::{ConnectionRefused, HostUnreachable},
    net::Ipv6Addr,
};

use packet::checksum;

use super::*;
use crate::tcp::Failure;

const US_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const THEM_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
/// A router on the path.
const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const ROUTER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Addresses of one family, with the types and codes of its errors.
struct Family {
    us: IpAddr,
    them: IpAddr,
    router: IpAddr,
    protocol: u8,
    port: (u8, u8),
    host: (u8, u8),
    too_big: (u8, u8),
}

const FAMILIES: [Family; 2] = [
    Family {
        us: US,
        them: THEM,
        router: ROUTER,
        protocol: ip::ICMP,
        port: (3, 3),
        host: (3, 1),
        too_big: (3, 4),
    },
    Family {
        us: US_V6,
        them: THEM_V6,
        router: ROUTER_V6,
        protocol: ip::ICMPV6,
        port: (1, 4),
        host: (1, 0),
        too_big: (2, 0),
    },
];

fn both() -> State {
    State::new(Config { addresses: vec![US, US_V6], ..config(1 << 20) })
}

impl Family {
    /// Delivers an ICMP error of a router that quotes a packet.
    fn send_error(&self, state: &mut State, (kind, code): (u8, u8), mtu: u16, quoted: &[u8]) {
        let quoted = &quoted[..quoted.len().min(500)];
        let mtu = mtu.to_be_bytes();
        let mut message = [&[kind, code, 0, 0, 0, 0, mtu[0], mtu[1]], quoted].concat();
        let addresses = (self.router, self.us);
        let mut sum = checksum::sum(&message);
        if self.protocol == ip::ICMPV6 {
            sum = checksum::add(sum, ip::pseudo_sum(addresses, self.protocol, message.len()));
        }
        message[2..4].copy_from_slice(&(!sum).to_be_bytes());
        let start = ip::header_len(self.us);
        let mut bytes = vec![0; start + message.len()];
        ip::write_header(&mut bytes, addresses, self.protocol, message.len());
        bytes[start..].copy_from_slice(&message);
        state.handle_icmp(&packet(&bytes), now());
    }

    fn to(&self) -> SocketAddr {
        (self.them, 53).into()
    }

    /// Sends a datagram. Returns the last packet that leaves.
    fn send(&self, state: &mut State, at: SocketAddr, len: usize) -> Vec<u8> {
        assert_eq!(send(state, at, self.to(), len), Ok(()));
        leaving(state, now()).pop().expect("it leaves")
    }
}

fn send(
    state: &mut State,
    at: SocketAddr,
    to: SocketAddr,
    len: usize,
) -> Result<(), std::io::ErrorKind> {
    let context = Context::from_waker(Waker::noop());
    match state.poll_send_to(at, (&vec![7; len], to), &context) {
        Poll::Ready(sent) => sent.map_err(|error| error.kind()),
        Poll::Pending => panic!("there is room"),
    }
}

/// The error that a reader gets; `None` while it waits.
fn poll_error(state: &mut State, at: SocketAddr) -> Option<std::io::ErrorKind> {
    let context = Context::from_waker(Waker::noop());
    match state.poll_recv_from(at, &mut [0; 8], &context) {
        Poll::Ready(received) => Some(received.unwrap_err().kind()),
        Poll::Pending => None,
    }
}

#[test]
fn a_connected_socket_gets_each_error_once_and_its_reader_is_woken() {
    for family in FAMILIES {
        let mut state = both();
        let at = state.bind((family.us, 0).into()).unwrap();
        state.connect_datagrams(at, family.to()).unwrap();
        let sent = family.send(&mut state, at, 100);
        for (error, kind) in [(family.port, ConnectionRefused), (family.host, HostUnreachable)] {
            let waiter = Arc::new(Waiter::default());
            let waker = Waker::from(waiter.clone());
            let context = Context::from_waker(&waker);
            assert!(state.poll_recv_from(at, &mut [0; 8], &context).is_pending());
            family.send_error(&mut state, error, 0, &sent);
            state.take_wakers().into_iter().for_each(Waker::wake);
            assert_eq!(waiter.0.load(Ordering::Relaxed), 1);
            assert_eq!(poll_error(&mut state, at), Some(kind));
            assert_eq!(poll_error(&mut state, at), None);
            family.send_error(&mut state, error, 0, &sent);
            assert_eq!(send(&mut state, at, family.to(), 1), Err(kind));
            assert_eq!(send(&mut state, at, family.to(), 1), Ok(()));
        }
    }
}

#[test]
fn errors_are_not_reported_for_foreign_packets_or_unconnected_sockets() {
    for family in FAMILIES {
        let mut state = both();
        let open = state.bind((family.us, 0).into()).unwrap();
        let sent = family.send(&mut state, open, 100);
        family.send_error(&mut state, family.port, 0, &sent);
        assert_eq!(poll_error(&mut state, open), None);

        let at = state.bind((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        state.connect_datagrams(at, family.to()).unwrap();
        let sent = family.send(&mut state, at, 100);
        let start = ip::header_len(family.us);
        // Another local port, another port of the peer, another sender, another protocol.
        let (source, protocol) = if family.us.is_ipv4() { (15, 9) } else { (23, 6) };
        for offset in [start + 1, start + 3, source, protocol] {
            let mut forged = sent.clone();
            forged[offset] ^= 1;
            family.send_error(&mut state, family.port, 0, &forged);
            family.send_error(&mut state, family.port, 0, &sent[..start + 7]);
            assert_eq!(poll_error(&mut state, at), None, "byte {offset}");
        }
    }
}

#[test]
fn a_connected_socket_receives_only_from_its_peer() {
    let mut state = both();
    let at = state.bind((US, 0).into()).unwrap();
    state.connect_datagrams(at, (THEM, 53).into()).unwrap();
    let mut arrive = |port: u16| {
        let mut bytes = vec![0; 20 + 8];
        ip::write_header(&mut bytes, (THEM, US), ip::UDP, 8);
        bytes[20..22].copy_from_slice(&port.to_be_bytes());
        bytes[22..24].copy_from_slice(&at.port().to_be_bytes());
        bytes[24..26].copy_from_slice(&8_u16.to_be_bytes());
        state.handle_udp(&packet(&bytes));
        let context = Context::from_waker(Waker::noop());
        state.poll_recv_from(at, &mut [], &context).is_ready()
    };
    assert!(!arrive(54));
    assert!(arrive(53));
}

#[test]
fn a_datagram_above_the_path_mtu_is_fragmented_for_ten_minutes() {
    for family in FAMILIES {
        let mut state = both();
        let at = state.bind((family.us, 0).into()).unwrap();
        let open = state.bind((family.us, 0).into()).unwrap();
        let mut unasked = family.send(&mut state, open, 1400 - ip::header_len(family.us) - 8);
        // To a port to which no datagram was sent.
        unasked[ip::header_len(family.us) + 3] ^= 1;
        family.send_error(&mut state, family.too_big, 1300, &unasked);
        state.connect_datagrams(at, family.to()).unwrap();
        let headers = ip::header_len(family.us) + 8;
        let sent = family.send(&mut state, at, 1400 - headers);
        let fits = |state: &mut State, mtu: usize, now: Time| {
            let packets = [0, 1].map(|more| {
                send(state, at, family.to(), mtu + more - headers).unwrap();
                let packets = leaving(state, now);
                assert!(packets.iter().all(|packet| packet.len() <= mtu));
                packets.len()
            });
            packets == [1, 2]
        };
        assert!(fits(&mut state, 1420, now()));
        // No datagram was longer than that.
        let short = family.send(&mut state, at, 1300 - headers);
        family.send_error(&mut state, family.too_big, 1350, &short);
        assert!(fits(&mut state, 1420, now()));
        family.send_error(&mut state, family.too_big, 1380, &sent);
        assert!(fits(&mut state, 1380, now()));
        family.send_error(&mut state, family.too_big, 1300, &sent);
        family.send_error(&mut state, family.too_big, 1390, &sent);
        assert!(fits(&mut state, 1300, now()), "the path MTU expired");
        let least = if family.us.is_ipv4() { 552 } else { 1280 };
        family.send_error(&mut state, family.too_big, 68, &sent);
        assert!(fits(&mut state, least, now()));
        let soon = now() + Duration::from_secs(599);
        assert!(fits(&mut state, least, soon));
        assert!(fits(&mut state, 1420, soon + Duration::from_secs(1)));
    }
}

#[test]
fn an_unconnected_socket_lowers_the_path_mtu_of_recent_destinations() {
    for family in FAMILIES {
        let mut state = both();
        let at = state.bind((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let len = 1400 - ip::header_len(family.us) - 8;
        let sent = family.send(&mut state, at, len);
        family.send_error(&mut state, family.too_big, 1300, &sent);
        send(&mut state, at, family.to(), len).unwrap();
        let lens: Vec<_> = leaving(&mut state, now()).iter().map(Vec::len).collect();
        assert!(lens.len() == 2 && lens.iter().all(|len| *len <= 1300), "{lens:?}");
        // Other errors are not reported to it.
        family.send_error(&mut state, family.port, 0, &sent);
        assert_eq!(poll_error(&mut state, at), None);
        // Older destinations are evicted.
        for port in 0..128 {
            send(&mut state, at, (family.them, 1000 + port).into(), 1).unwrap();
            leaving(&mut state, now());
        }
        family.send_error(&mut state, family.too_big, 1290, &sent);
        assert_eq!(state.paths.mtu(family.them, now()), Some(1300));
    }
}

/// A connection in the handshake, and its SYN.
fn dialed(family: &Family) -> (State, usize, Vec<u8>) {
    let mut state = both();
    let id = state.dial((family.them, PORT).into(), now()).unwrap();
    let syn = next(&mut state, id);
    (state, id, syn)
}

fn next(state: &mut State, id: usize) -> Vec<u8> {
    let mut to = vec![0; usize::from(u16::MAX)];
    let (len, _) = state.poll_socket(id, now(), &mut to).unwrap();
    to[..len].to_vec()
}

#[test]
fn a_connection_attempt_fails_by_the_icmp_error_to_its_syn() {
    for family in FAMILIES {
        for (error, failure) in
            [(family.port, Failure::Refused), (family.host, Failure::Unreachable)]
        {
            let (mut state, id, syn) = dialed(&family);
            let mut forged = syn.clone();
            forged[ip::header_len(family.us) + 7] ^= 1;
            family.send_error(&mut state, error, 0, &forged);
            assert_eq!(state.sockets[id].tcp.take_failure(), None);
            family.send_error(&mut state, error, 0, &syn);
            assert_eq!(state.sockets[id].tcp.take_failure(), Some(failure));
        }
    }
}

#[test]
fn an_established_connection_survives_errors_and_adopts_the_path_mtu() {
    for family in FAMILIES {
        let (mut state, id, syn) = dialed(&family);
        let start = ip::header_len(family.us);
        let (syn_header, _) = Header::parse(&syn[start..]).unwrap();
        let flow = state.sockets[id].flow;
        let options = syn_header.options;
        let answer = Header {
            source: PORT,
            destination: flow.local.port(),
            seq: Seq(1),
            ack: syn_header.seq + 1,
            flags: flags::SYN | flags::ACK,
            window: 60_000,
            options,
        };
        let mut bytes = vec![0; start + answer.len()];
        ip::write_header(&mut bytes, (family.them, family.us), ip::TCP, answer.len());
        answer.write(&mut bytes[start..]);
        state.handle_tcp(&packet(&bytes), now());
        state.with(id, |socket| socket.tcp.write(&[7; 5000]));
        let sent = next(&mut state, id);
        for error in [family.port, family.host] {
            family.send_error(&mut state, error, 0, &sent);
            assert_eq!(state.sockets[id].tcp.state(), tcp::State::Established);
        }
        let limit = |state: &State| state.sockets[id].tcp.segment_limit() as usize + 20 + start;
        assert_eq!(limit(&state), 1420);
        let mut forged = sent.clone();
        forged[start + 4] ^= 0x80;
        family.send_error(&mut state, family.too_big, 1300, &forged);
        assert_eq!(limit(&state), 1420);
        family.send_error(&mut state, family.too_big, 1300, &sent);
        family.send_error(&mut state, family.too_big, 1400, &sent);
        assert_eq!(limit(&state), 1300);
    }
}
