//! ICMP and ICMPv6: echoes in both directions, and errors to sent packets (RFC 792, RFC 4443).

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Waker},
    time::Duration,
};

use packet::{
    Offload, checksum,
    wire::{get_u16, get_u32, icmp, put_u16, tcp, udp},
};

use super::{
    Polled,
    segments::{Flow, PathError},
    state::State,
};
use crate::{
    ip::{self, Packet, Quoted},
    tcp::Seq,
    time::Time,
};

/// Bytes of a packet that an error quotes: its header and enough to identify its sender.
const QUOTED: usize = 64;
/// The smallest path MTU that is accepted from a router, in bytes: Linux' `min_pmtu` for IPv4, and
/// that of RFC 8200 for IPv6.
const MIN_PATH_V4: u32 = 552;
const MIN_PATH_V6: u32 = 1280;

/// The types and codes of one family.
struct Family {
    protocol: u8,
    request: u8,
    reply: u8,
    unreachable: u8,
    port_code: u8,
    exceeded: u8,
}

/// The code of a reassembly timeout (RFC 792, RFC 4443 section 3.3).
const REASSEMBLY_CODE: u8 = 1;

const V4: Family = Family {
    protocol: ip::ICMP,
    request: icmp::v4::ECHO,
    reply: icmp::v4::ECHO_REPLY,
    unreachable: icmp::v4::UNREACHABLE,
    port_code: icmp::v4::PORT_UNREACHABLE,
    exceeded: icmp::v4::TIME_EXCEEDED,
};
const V6: Family = Family {
    protocol: ip::ICMPV6,
    request: icmp::v6::ECHO,
    reply: icmp::v6::ECHO_REPLY,
    unreachable: icmp::v6::UNREACHABLE,
    port_code: icmp::v6::PORT_UNREACHABLE,
    exceeded: icmp::v6::TIME_EXCEEDED,
};

impl Family {
    fn of(address: IpAddr) -> &'static Self {
        if address.is_ipv4() { &V4 } else { &V6 }
    }
}

/// Echo requests without an answer, by identifier.
#[derive(Default)]
pub(crate) struct Pings(HashMap<u16, Ping>);

struct Ping {
    to: IpAddr,
    sent: Time,
    took: Option<Duration>,
    waker: Option<Waker>,
}

impl State {
    /// Sends an echo request.
    pub(crate) fn send_ping(&mut self, to: IpAddr, now: Time) -> io::Result<u16> {
        let source = self.source_for(to)?;
        let number = self.choose_port(|state, number| !state.pings.0.contains_key(&number))?;
        let family = Family::of(to);
        let mut message = [0; icmp::HEADER_LEN + 56];
        message[icmp::TYPE] = family.request;
        put_u16(&mut message, icmp::IDENTIFIER, number);
        put_u16(&mut message, icmp::SEQUENCE, 1);
        self.send_message((source, to), &mut message);
        self.pings.0.insert(number, Ping { to, sent: now, took: None, waker: None });
        Ok(number)
    }

    /// Returns the round trip time after the answer has arrived.
    pub(crate) fn poll_ping(&mut self, number: u16, context: &Context<'_>) -> Polled<Duration> {
        let ping = self.pings.0.get_mut(&number).filter(|_| !self.closed);
        let Some(ping) = ping else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Some(took) = ping.took {
            return Polled::Ready(Ok(took));
        }
        ping.waker = Some(context.waker().clone());
        Polled::Pending
    }

    pub(crate) fn remove_ping(&mut self, number: u16) {
        self.pings.0.remove(&number);
    }

    pub(crate) fn wake_ping_tasks(&mut self) {
        let wakers = self.pings.0.values_mut().filter_map(|ping| ping.waker.take());
        self.schedule.wakers.extend(wakers);
    }

    /// Handles a received message.
    pub(crate) fn handle_icmp(&mut self, packet: &Packet<'_>, now: Time) {
        let family = Family::of(packet.source);
        let message = packet.transport;
        let sound = packet.protocol == family.protocol
            && message.len() >= icmp::HEADER_LEN
            && has_valid_checksum(packet, message);
        if !sound {
            self.counters.malformed += 1;
            return;
        }
        let (kind, code) = (message[icmp::TYPE], message[icmp::CODE]);
        if kind == family.request {
            let mut reply = message.to_vec();
            reply[icmp::TYPE] = family.reply;
            self.send_message((packet.destination, packet.source), &mut reply);
        } else if kind == family.reply {
            self.handle_reply(packet.source, get_u16(message, icmp::IDENTIFIER), now);
        } else if let Some(error) = path_error(family, (kind, code), message) {
            self.handle_error(packet.destination, error, &message[icmp::HEADER_LEN..], now);
        }
    }

    fn handle_reply(&mut self, from: IpAddr, number: u16, now: Time) {
        let ping = self.pings.0.get_mut(&number);
        if let Some(ping) = ping.filter(|ping| ping.to == from && ping.took.is_none()) {
            ping.took = Some(now.since(ping.sent));
            self.schedule.wakers.extend(ping.waker.take());
        }
    }

    fn handle_error(&mut self, us: IpAddr, error: PathError, quoted: &[u8], now: Time) {
        let Some(quoted) = Quoted::parse(quoted) else { return };
        let Some(start) = quoted.transport.first_chunk::<{ udp::HEADER_LEN }>() else { return };
        if quoted.source != us {
            return;
        }
        // TCP has its ports at the same offset.
        let flow = Flow {
            local: SocketAddr::new(quoted.source, get_u16(start, udp::SOURCE_PORT)),
            remote: SocketAddr::new(quoted.destination, get_u16(start, udp::DESTINATION_PORT)),
        };
        match quoted.protocol {
            ip::TCP => {
                let seq = Seq(tcp::sequence(start));
                self.handle_tcp_error(flow, seq, error);
            }
            ip::UDP => self.handle_udp_error(flow, quoted.total_len, error, now),
            _ => {}
        }
    }

    /// Reports that no socket listens at a port.
    pub(crate) fn answer_unreachable(&mut self, packet: &Packet<'_>) {
        let family = Family::of(packet.source);
        self.answer_error(packet, (family.unreachable, family.port_code));
    }

    /// Reports that the reassembly of a packet timed out. `packet` is its first fragment. Errors
    /// are not answered by errors (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
    pub(crate) fn answer_reassembly_timeout(&mut self, packet: &Packet<'_>) {
        let family = Family::of(packet.source);
        let kind = packet.transport.get(icmp::TYPE).copied();
        let is_echo = kind == Some(family.request) || kind == Some(family.reply);
        let may_be_answered = match packet.protocol {
            ip::TCP | ip::UDP => true,
            protocol => protocol == family.protocol && is_echo,
        };
        if !may_be_answered {
            return;
        }
        self.answer_error(packet, (family.exceeded, REASSEMBLY_CODE));
    }

    fn answer_error(&mut self, packet: &Packet<'_>, (kind, code): (u8, u8)) {
        let ip_len = ip::header_len(packet.source);
        let quoted = packet.transport.len().min(QUOTED);
        let mut message = vec![0; icmp::HEADER_LEN + ip_len + quoted];
        (message[icmp::TYPE], message[icmp::CODE]) = (kind, code);
        let whole = packet.transport.len() + packet.separate_payload_len();
        let addresses = (packet.source, packet.destination);
        ip::write_header(&mut message[icmp::HEADER_LEN..], addresses, packet.protocol, whole);
        message[icmp::HEADER_LEN + ip_len..].copy_from_slice(&packet.transport[..quoted]);
        self.send_message((packet.destination, packet.source), &mut message);
    }

    /// Sends a message. Its checksum is computed here.
    fn send_message(&mut self, addresses: (IpAddr, IpAddr), message: &mut [u8]) {
        let family = Family::of(addresses.1);
        message[icmp::CHECKSUM].fill(0);
        let mut sum = checksum::sum(message);
        if family.protocol == ip::ICMPV6 {
            sum = checksum::add(sum, ip::pseudo_sum(addresses, ip::ICMPV6, message.len()));
        }
        put_u16(message, icmp::CHECKSUM, !sum);
        let start = ip::header_len(addresses.1);
        if start + message.len() > self.local.mtu() {
            return self.answer_in_fragments(addresses, family.protocol, message);
        }
        let mut bytes = vec![0; start + message.len()];
        ip::write_header(&mut bytes, addresses, family.protocol, message.len());
        bytes[start..].copy_from_slice(message);
        self.queue_answer(bytes, Offload::None);
    }
}

/// Whether a message's checksum is correct.
fn has_valid_checksum(packet: &Packet<'_>, message: &[u8]) -> bool {
    let mut sum = checksum::sum(message);
    if packet.protocol == ip::ICMPV6 {
        let addresses = (packet.source, packet.destination);
        sum = checksum::add(sum, ip::pseudo_sum(addresses, ip::ICMPV6, message.len()));
    }
    sum == 0xffff
}

fn path_error(family: &Family, (kind, code): (u8, u8), message: &[u8]) -> Option<PathError> {
    let v4 = family.protocol == ip::ICMP;
    if v4 && (kind, code) == (family.unreachable, icmp::v4::FRAGMENTATION_NEEDED) {
        let mtu = get_u16(message, icmp::v4::MTU);
        return Some(PathError::TooBig(u32::from(mtu).max(MIN_PATH_V4)));
    }
    if !v4 && kind == icmp::v6::PACKET_TOO_BIG {
        let mtu = get_u32(message, icmp::v6::MTU);
        return Some(PathError::TooBig(mtu.max(MIN_PATH_V6)));
    }
    if kind != family.unreachable {
        return None;
    }
    // For TCP, "no such protocol" is equivalent to "no such port" (RFC 1122 section 3.2.2.1).
    let refused = code == family.port_code || v4 && code == icmp::v4::PROTOCOL_UNREACHABLE;
    Some(if refused { PathError::Refused } else { PathError::Unreachable })
}
