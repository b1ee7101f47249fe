//! Fragments in both directions: received fragments are reassembled, and long answers are
//! fragmented.

use std::net::IpAddr;

use packet::{
    checksum,
    wire::{IpHeader, get_u16, tcp, udp},
};

use super::{
    fragments::{Expired, Outcome},
    state::State,
};
use crate::{
    ip::{self, Fragment, Packet},
    time::Time,
};

impl State {
    /// Handles a fragment, and the packet that it completes.
    pub(crate) fn handle_fragment(&mut self, bytes: &[u8], header: &IpHeader, now: Time) {
        if !self.local.has(header.destination(bytes)) {
            self.counters.not_ours += 1;
            return;
        }
        let fragment = Fragment::parse(bytes, header).filter(has_whole_header);
        let Some(fragment) = fragment else {
            self.counters.malformed += 1;
            return;
        };
        let addresses = (fragment.source, fragment.destination);
        if fragment.start == 0 && fragment.is_last {
            // A complete packet, independent of others with the same identification (RFC 6946).
            return self.handle_whole(addresses, fragment.protocol, (fragment.data, now));
        }
        self.expire_fragments(now);
        let before = self.fragments.used();
        let (taken, dropped) = if self.budget.is_short() {
            (Outcome::Waiting, self.fragments.refuse(&fragment, now))
        } else {
            self.fragments.take(&fragment, now)
        };
        self.account_fragments(before);
        self.counters.fragments_full += dropped;
        match taken {
            Outcome::Waiting => {}
            Outcome::Overlap => self.counters.fragments_overlap += 1,
            Outcome::Whole(protocol, data) => self.handle_whole(addresses, protocol, (&data, now)),
        }
    }

    /// Drops incomplete packets that timed out.
    pub(crate) fn expire_fragments(&mut self, now: Time) {
        if self.fragments.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        let before = self.fragments.used();
        while let Some(expired) = self.fragments.expire(now) {
            self.counters.fragments_late += 1;
            if let Some(Expired { source, destination, protocol, first }) = expired {
                let packet = Packet::reassembled((source, destination), protocol, &first);
                self.answer_reassembly_timeout(&packet);
            }
        }
        self.account_fragments(before);
    }

    fn account_fragments(&self, before: usize) {
        let after = self.fragments.used();
        if before < after {
            self.budget.charge(after - before);
        } else {
            self.budget.refund(before - after);
        }
    }

    /// Handles a reassembled packet. Fragments of two packets may have the same identification (RFC
    /// 4963); a wrong checksum reveals that.
    fn handle_whole(
        &mut self,
        addresses: (IpAddr, IpAddr),
        protocol: u8,
        (data, now): (&[u8], Time),
    ) {
        let packet = Packet::reassembled(addresses, protocol, data);
        if has_valid_checksum(&packet) {
            self.handle(&packet, now);
        } else {
            self.counters.fragments_checksum += 1;
        }
    }

    /// Sends a message that exceeds the MTU.
    pub(crate) fn answer_in_fragments(
        &mut self,
        addresses: (IpAddr, IpAddr),
        protocol: u8,
        message: &[u8],
    ) {
        let id = self.secret.next_fragment_id(addresses);
        let room = ip::fragment_data_len(addresses.1, self.local.mtu());
        let part = |(number, data): (usize, &[u8])| {
            let start = number * room;
            let position = (start, data.len(), start + data.len() == message.len());
            let mut bytes = vec![0; self.local.mtu()];
            let header = ip::write_fragment_header(&mut bytes, addresses, (protocol, id), position);
            bytes.truncate(header + data.len());
            bytes[header..].copy_from_slice(data);
            bytes
        };
        let parts = message.chunks(room).enumerate().map(part).collect();
        self.queue_answers(parts);
    }
}

/// Whether a first fragment contains the whole header of its protocol (RFC 7112).
fn has_whole_header(fragment: &Fragment<'_>) -> bool {
    let header = match fragment.protocol {
        ip::TCP => tcp::HEADER_LEN,
        _ => udp::HEADER_LEN,
    };
    fragment.start > 0 || fragment.data.len() >= header
}

/// Whether the TCP or UDP checksum is correct. ICMP checksums are verified with each message.
fn has_valid_checksum(packet: &Packet<'_>) -> bool {
    let data = packet.transport;
    if packet.protocol == ip::UDP {
        let Some(header) = data.first_chunk::<{ udp::HEADER_LEN }>() else { return false };
        if packet.source.is_ipv4() && get_u16(header, udp::CHECKSUM) == 0 {
            return true;
        }
    } else if packet.protocol != ip::TCP {
        return true;
    }
    let addresses = (packet.source, packet.destination);
    let sum = ip::pseudo_sum(addresses, packet.protocol, data.len());
    checksum::add(sum, checksum::sum(data)) == 0xffff
}
