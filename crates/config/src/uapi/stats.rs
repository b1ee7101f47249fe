//! The reply to `linerate-stats=1`: counters and properties that `get=1` does not contain.
//!
//! ```text
//!   Stats::write ──► lines KEY=VALUE ──► Stats::parse      unknown keys are skipped
//! ```

use std::{
    fmt::{Display, Write},
    str::FromStr,
};

use ipnet::IpNet;
use wg::{DropReason, PublicKey};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// The program's version.
    pub version: Option<String>,
    /// The implementation of the AEAD.
    pub aead: Option<String>,
    /// Dropped packets by reason, including zeros.
    pub drops: Vec<(DropReason, u64)>,
    pub socket: SocketStats,
    pub load: LoadStats,
    pub offloads: Vec<OffloadStats>,
    /// The largest packet inside the tunnel that reaches a peer, in bytes.
    pub path_mtus: Vec<(PublicKey, u16)>,
    /// Time of the post-quantum key agreement of a peer's session, in seconds since the Unix epoch.
    /// Sessions without one are absent.
    pub post_quantum: Vec<(PublicKey, u64)>,
    /// Each part of the sandbox, and whether the kernel enforces it `wholly`, `partly` or `not`.
    pub sandbox: Vec<(String, String)>,
    /// The reason for a missing sandbox.
    pub sandbox_off: Option<String>,
    /// Networks behind this host that peers may reach.
    pub offers: Vec<IpNet>,
    pub proxy: Option<ProxyStats>,
}

/// Counters of the UDP socket, and the buffer sizes that the kernel granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Datagrams lost because the receive buffer was full.
    pub overflow: u64,
    /// Datagrams that were too long.
    pub truncated: u64,
    /// Bytes; 0 without a socket.
    pub receive_buffer: u64,
    pub send_buffer: u64,
}

/// Batch sizes and waiting times, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadStats {
    /// Batches to the network, and the datagrams in all of them.
    pub outbound: Sum,
    /// Batches from the network, and the messages of data in all of them.
    pub inbound: Sum,
    /// Rounds with packets in the queue, and the microseconds that the oldest of each had waited.
    pub queued: Sum,
    /// Initiations that were answered, and the microseconds until the response.
    pub handshakes: Sum,
}

/// A number of values, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub sum: u64,
}

/// One offload of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadStats {
    pub name: String,
    pub wanted: bool,
    /// Number of refusals by the kernel.
    pub demotions: u64,
}

/// Properties and counters of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// The name of its TCP/IP stack.
    pub stack: String,
    pub services: Vec<Service>,
    /// Connections refused because of the limit per source.
    pub refused_source: u64,
    /// Connections refused because of the limit per service.
    pub refused_service: u64,
    /// Connections refused because of the limit of the process.
    pub refused_all: u64,
    /// Idle connections that were closed to make room.
    pub evicted_idle: u64,
    /// Clients without a request that were closed to make room.
    pub evicted_asking: u64,
    /// Packets dropped by the in-process stack; zeros for another stack.
    pub dropped: StackDrops,
}

/// Packets dropped by an in-process TCP/IP stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackDrops {
    /// Packets to other addresses.
    pub not_ours: u64,
    /// Packets with invalid headers, or of other protocols.
    pub malformed: u64,
    /// Segments of no connection.
    pub stray: u64,
    /// Connection requests dropped because a queue was full.
    pub backlog: u64,
    /// Datagrams without a socket, or to a full one.
    pub datagrams: u64,
    /// Replies dropped because a queue was full.
    pub answers: u64,
    /// Packets with fragments that overlap.
    pub fragments_overlap: u64,
    /// Packets with a fragment that did not arrive in time.
    pub fragments_late: u64,
    /// Packets with fragments dropped because the buffer was full.
    pub fragments_full: u64,
    /// Reassembled packets with a wrong checksum.
    pub fragments_checksum: u64,
}

/// A service and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub kind: String,
    pub place: String,
}

impl Stats {
    /// The number of packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let counted = self.drops.iter().filter(|(known, _)| *known == reason);
        counted.map(|(_, count)| *count).sum()
    }

    /// All counters of losses and refusals by name, including zeros.
    pub fn losses(&self) -> Vec<(&'static str, u64)> {
        let mut losses: Vec<_> =
            self.drops.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        losses.push(("udp_overflow", self.socket.overflow));
        losses.push(("udp_truncated", self.socket.truncated));
        losses.extend(self.proxy.iter().flat_map(ProxyStats::counters));
        losses
    }

    /// Appends the lines of the reply.
    pub fn write(&self, out: &mut String) {
        let mut line = |key: &str, value: &dyn Display| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{key}={value}");
        };
        self.version.iter().for_each(|version| line("version", version));
        self.aead.iter().for_each(|aead| line("aead", aead));
        for (reason, count) in &self.drops {
            line(reason.name(), count);
        }
        for (key, number) in self.numbers() {
            line(key, &number);
        }
        for OffloadStats { name, wanted, demotions } in &self.offloads {
            line(&format!("offload_{name}"), &if *wanted { "on" } else { "off" });
            line(&format!("demotions_{name}"), demotions);
        }
        for (peer, mtu) in &self.path_mtus {
            line("path_mtu", &format_args!("{} {mtu}", peer.to_base64()));
        }
        for (peer, agreed) in &self.post_quantum {
            line("post_quantum", &format_args!("{} {agreed}", peer.to_base64()));
        }
        for (part, state) in &self.sandbox {
            line("sandbox", &format_args!("{part}: {state}"));
        }
        self.sandbox_off.iter().for_each(|why| line("sandbox_off", why));
        self.offers.iter().for_each(|net| line("offers", net));
        if let Some(proxy) = &self.proxy {
            line("stack", &proxy.stack);
            for Service { kind, place } in &proxy.services {
                line("service", &format_args!("{kind} {place}"));
            }
            for (name, count) in proxy.counters() {
                line(name, &count);
            }
        }
    }

    /// Parses the lines of any version of linerate.
    pub fn parse(text: &str) -> Self {
        let mut stats = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            stats.take(key, value);
        }
        stats
    }

    fn take(&mut self, key: &str, value: &str) {
        let number = value.parse().unwrap_or_default();
        match key {
            "version" => self.version = Some(value.to_owned()),
            "aead" => self.aead = Some(value.to_owned()),
            "sandbox" => {
                let (part, state) = value.rsplit_once(": ").unwrap_or((value, ""));
                self.sandbox.push((part.to_owned(), state.to_owned()));
            }
            "sandbox_off" => self.sandbox_off = Some(value.to_owned()),
            "offers" => self.offers.extend(value.parse::<IpNet>().ok()),
            "stack" => self.proxy.get_or_insert_default().stack = value.to_owned(),
            "service" => {
                let service = Service::parse(value);
                self.proxy.get_or_insert_default().services.push(service);
            }
            "path_mtu" => self.path_mtus.extend(of_peer(value)),
            "post_quantum" => self.post_quantum.extend(of_peer(value)),
            _ => self.take_number(key, value, number),
        }
    }

    fn take_number(&mut self, key: &str, value: &str, number: u64) {
        if let Some(name) = key.strip_prefix("offload_") {
            let (name, wanted) = (name.to_owned(), value == "on");
            self.offloads.push(OffloadStats { name, wanted, demotions: 0 });
        } else if let Some(name) = key.strip_prefix("demotions_") {
            let offload = self.offloads.iter_mut().find(|offload| offload.name == name);
            offload.into_iter().for_each(|offload| offload.demotions = number);
        } else if let Some((_, known)) =
            self.numbers_mut().into_iter().find(|(name, _)| *name == key)
        {
            *known = number;
        } else if let Some(reason) = DropReason::ALL.iter().find(|reason| reason.name() == key) {
            self.drops.push((*reason, number));
        } else if key.starts_with("proxy_") || key.starts_with("stack_") {
            let proxy = self.proxy.get_or_insert_default();
            let counter = proxy.counters_mut().find(|(name, _)| *name == key);
            counter.into_iter().for_each(|(_, counter)| *counter = number);
        }
    }

    /// The numbers that are always present, by key.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mut copy = Self { socket: self.socket, load: self.load, ..Self::default() };
        copy.numbers_mut().map(|(key, number)| (key, *number)).into_iter()
    }

    fn numbers_mut(&mut self) -> [(&'static str, &mut u64); 12] {
        let Self { socket, load, .. } = self;
        [
            ("udp_overflow", &mut socket.overflow),
            ("udp_truncated", &mut socket.truncated),
            ("udp_receive_buffer", &mut socket.receive_buffer),
            ("udp_send_buffer", &mut socket.send_buffer),
            ("load_out_batches", &mut load.outbound.count),
            ("load_out_packets", &mut load.outbound.sum),
            ("load_in_batches", &mut load.inbound.count),
            ("load_in_packets", &mut load.inbound.sum),
            ("load_queue_rounds", &mut load.queued.count),
            ("load_queue_micros", &mut load.queued.sum),
            ("load_handshakes", &mut load.handshakes.count),
            ("load_handshake_micros", &mut load.handshakes.sum),
        ]
    }
}

/// A peer's key and a number.
fn of_peer<T: FromStr>(value: &str) -> Option<(PublicKey, T)> {
    let (peer, number) = value.split_once(' ')?;
    Some((PublicKey::from_base64(peer).ok()?, number.parse().ok()?))
}

impl Service {
    /// Parses a kind and an address.
    pub fn parse(text: &str) -> Self {
        let (kind, place) = text.split_once(' ').unwrap_or((text, ""));
        Self { kind: kind.to_owned(), place: place.to_owned() }
    }
}

impl ProxyStats {
    /// The counters by key.
    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mut copy = self.clone();
        let counters: Vec<_> = copy.counters_mut().map(|(key, counter)| (key, *counter)).collect();
        counters.into_iter()
    }

    fn counters_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut u64)> {
        [
            ("proxy_refused_source", &mut self.refused_source),
            ("proxy_refused_service", &mut self.refused_service),
            ("proxy_refused_all", &mut self.refused_all),
            ("proxy_evicted_idle", &mut self.evicted_idle),
            ("proxy_evicted_asking", &mut self.evicted_asking),
        ]
        .into_iter()
        .chain(self.dropped.counters_mut())
    }
}

impl StackDrops {
    /// The counters by key.
    pub fn counters(&self) -> [(&'static str, u64); 10] {
        let mut copy = *self;
        copy.counters_mut().map(|(key, counter)| (key, *counter))
    }

    fn counters_mut(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("stack_not_ours", &mut self.not_ours),
            ("stack_malformed", &mut self.malformed),
            ("stack_stray", &mut self.stray),
            ("stack_backlog", &mut self.backlog),
            ("stack_datagrams", &mut self.datagrams),
            ("stack_answers", &mut self.answers),
            ("stack_fragments_overlap", &mut self.fragments_overlap),
            ("stack_fragments_late", &mut self.fragments_late),
            ("stack_fragments_full", &mut self.fragments_full),
            ("stack_fragments_checksum", &mut self.fragments_checksum),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_statistics_read_back(stats in crate::strategies::stats()) {
            let mut text = String::new();
            stats.write(&mut text);
            prop_assert_eq!(Stats::parse(&text), stats);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(([a-z_]{0,20}|service|path_mtu|sandbox)=[ -~]{0,20}\n){0,8}") {
            Stats::parse(&text);
        }
    }

    #[test]
    fn unknown_drop_reasons_are_skipped() {
        let stats = Stats::parse("in_forged=3\nin_future=5\nfuture=6\npath_mtu=somebody 9000\n");
        assert_eq!(stats, Stats { drops: vec![(DropReason::InForged, 3)], ..Stats::default() });
        assert_eq!(stats.dropped(DropReason::InForged), 3);
        assert_eq!(stats.dropped(DropReason::InSpoofed), 0);
    }

    #[test]
    fn losses_of_all_parts_are_listed_by_name() {
        let stats = Stats::parse("in_forged=3\nudp_overflow=2\nstack=s\nproxy_evicted_idle=1\n");
        let lost: Vec<_> = stats.losses().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(lost, [("in_forged", 3), ("udp_overflow", 2), ("proxy_evicted_idle", 1)]);
    }
}
