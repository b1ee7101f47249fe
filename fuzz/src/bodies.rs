//! The bodies of the fuzz targets. A body panics if the code under test panics or differs from the
//! target's model.

#[path = "bodies/boundary.rs"]
mod boundary;
#[path = "bodies/coalesce.rs"]
mod coalesce;
#[path = "../../crates/packet/tests/inverse/coalesced.rs"]
mod coalesced;
#[path = "bodies/coordinator.rs"]
mod coordinator_requests;
#[path = "bodies/delivery.rs"]
mod delivery;
#[path = "bodies/helper.rs"]
mod helper;
#[path = "bodies/lines.rs"]
mod lines;
#[path = "bodies/magic_dns.rs"]
mod magic_dns;
#[path = "bodies/netstack.rs"]
mod netstack;
#[path = "bodies/network_map.rs"]
mod network_map;
#[path = "../../crates/packet/tests/inverse/oracle.rs"]
mod oracle;
#[path = "bodies/peer_relay.rs"]
mod peer_relay;
#[path = "bodies/policy.rs"]
mod policy;
#[path = "bodies/portmap.rs"]
mod portmap;
#[path = "bodies/proxy.rs"]
mod proxy;
#[path = "bodies/relays.rs"]
mod relays;
#[path = "../../crates/packet/tests/inverse/same.rs"]
mod same;
#[path = "bodies/segment.rs"]
mod segment;
#[path = "../../crates/packet/tests/inverse/spec.rs"]
#[expect(dead_code, reason = "the rest is for the packet crate's own tests")]
mod spec;
#[path = "bodies/streams.rs"]
mod streams;
#[path = "bodies/tailnet_lock.rs"]
mod tailnet_lock;
#[path = "bodies/ts2021.rs"]
mod ts2021;
#[path = "bodies/tsmp.rs"]
mod tsmp;
#[path = "bodies/upnp.rs"]
mod upnp;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

pub use self::netstack::netstack;
pub use self::policy::policy;
pub use coalesce::coalesce;
use config::{
    conf::{self, Conf},
    uapi::{DeviceState, Request},
};
pub use coordinator_requests::coordinator_requests;
use crypto::aead::{Key, Open, Seal, TAG_LEN, Variant, spec as rfc8439};
pub use delivery::delivery;
pub use helper::helper;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use lines::{guardian_line, namespace_line};
pub use magic_dns::magic_dns;
pub use network_map::network_map;
use packet::{
    Ecn, Endpoint,
    ip::{IpHeader, set_ecn},
};
pub use peer_relay::peer_relay;
pub use portmap::portmap;
pub use proxy::{dns, http, socks};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
pub use relays::{derp_frames, disco, stun};
pub use segment::segment;
pub use streams::streams;
pub use tailnet_lock::tailnet_lock;
pub use ts2021::{ts2021_records, ts2021_stream};
pub use tsmp::tsmp;
pub use upnp::upnp;
use wg::{
    AllowedIps, Control, ExchangeMessage, Now, OutboundNotice, Peer, PresharedKey, PrivateKey,
    Probe, PublicKey, ReceivedMessages, ReplayFilter, SentDatagrams, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
    constants::{REJECT_AFTER_MESSAGES, REPLAY_WINDOW},
    message::{CookieReply, DATA_OVERHEAD, DataHeader, Handshake, Initiation, Kind, Response},
};

/// Takes the next `N` bytes; missing bytes are zero.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let (head, rest) = data.split_at(N.min(data.len()));
    *data = rest;
    let mut bytes = [0; N];
    bytes[..head.len()].copy_from_slice(head);
    bytes
}

/// Runs a program of one-byte steps, at most `most`. Each step takes its operands from the bytes
/// behind it.
fn steps(mut data: &[u8], most: usize, mut run: impl FnMut(u8, &mut &[u8])) {
    for _ in 0..most {
        let Some((step, behind)) = data.split_first() else { break };
        data = behind;
        run(*step, &mut data);
    }
}

/// Compares each variant, and the one that is chosen at run time, with the specification.
pub fn aead(data: &[u8]) {
    let mut rest = data;
    let mut packets = Vec::new();
    while !rest.is_empty() && packets.len() < 40 {
        let [kind, counter, low, high, fill, forged] = take(&mut rest);
        let len = usize::from(u16::from_le_bytes([low, high])) % 3000;
        let (begin, behind) = rest.split_at(len.min(rest.len()).min(64));
        rest = behind;
        let mut text = begin.to_vec();
        text.extend((text.len()..len).map(|at| fill.wrapping_mul(at as u8 | 1)));
        let (key, counter) = ([[0, 1, 2, 0xff][usize::from(kind % 4)]; 32], u64::from(counter));
        packets.push((key, counter << (kind >> 2), text, forged));
    }
    let variants = Variant::ALL.into_iter().filter(|variant| variant.is_available());
    for variant in variants.map(Some).chain([None]) {
        batch(variant, &packets);
    }
}

/// Key, counter, text, and a mask to forge one byte.
type Sealed = ([u8; 32], u64, Vec<u8>, u8);

fn batch(variant: Option<Variant>, packets: &[Sealed]) {
    let keys: Vec<Key> = packets.iter().map(|(key, ..)| Key::new(key)).collect();
    let room = |text: &Vec<u8>| [&text[..], &[0; TAG_LEN]].concat();
    let mut data: Vec<Vec<u8>> = packets.iter().map(|(_, _, text, _)| room(text)).collect();
    let mut seals = Vec::new();
    for ((key, (_, counter, ..)), data) in keys.iter().zip(packets).zip(&mut data) {
        seals.push(Seal { key, counter: *counter, data });
    }
    match variant {
        Some(variant) => variant.seal(&mut seals),
        None => crypto::aead::seal(&mut seals),
    }
    for ((key, counter, text, forged), data) in packets.iter().zip(&mut data) {
        assert!(*data == rfc8439::seal(key, &rfc8439::nonce(*counter), &[], text), "{variant:?}");
        let at = usize::from(*forged) * 11 % data.len();
        data[at] ^= *forged;
    }
    let mut opens = Vec::new();
    for ((key, (_, counter, ..)), data) in keys.iter().zip(packets).zip(&mut data) {
        opens.push(Open { key, counter: *counter, data, authentic: false });
    }
    match variant {
        Some(variant) => variant.open(&mut opens),
        None => crypto::aead::open(&mut opens),
    }
    for ((_, _, text, forged), open) in packets.iter().zip(&opens) {
        assert_eq!(open.authentic, *forged == 0, "{variant:?}");
        assert!(!open.authentic || open.data[..text.len()] == text[..], "{variant:?}");
    }
}

/// Parses an IP header and changes its ECN bits.
pub fn ip_header(data: &[u8]) {
    let Ok(header) = IpHeader::parse(data) else { return };
    assert!(header.total_len <= data.len());
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
        words.sum::<u64>() % 0xffff
    };
    for bits in 0..4 {
        let ecn = Ecn::from_bits(bits);
        let mut packet = data.to_vec();
        set_ecn(&mut packet, ecn);
        let changed = IpHeader::parse(&packet).expect("only the ECN bits changed");
        assert_eq!(changed, IpHeader { ecn, ..header });
        assert_eq!(packet[12..], data[12..]);
        if data[0] >> 4 == 4 {
            // One's complement arithmetic: the header's sum is the same modulo 65,535.
            assert_eq!(sum(&packet[..20]), sum(&data[..20]));
        }
    }
}

/// Messages of the post-quantum exchange: a parsed message encodes to the same bytes.
pub fn exchange_message(data: &[u8]) {
    if let Some(message) = ExchangeMessage::parse(data) {
        let mut written = vec![0xff; message.plaintext_len()];
        message.write(&mut written);
        assert_eq!(written, data);
        assert_eq!(Probe::parse(data), None);
    }
}

/// Messages on the wire: a parsed message encodes to the same bytes.
pub fn message(data: &[u8]) {
    // Compares everything but the MACs.
    let same = |encoded: Handshake, macs: usize| {
        let covered = data.len() - macs;
        assert_eq!(encoded.as_bytes()[..covered], data[..covered]);
    };
    let kind = Kind::of(data);
    if let Some(message) = Initiation::parse(data) {
        assert_eq!(kind, Some(Kind::Initiation));
        same(message.encode(), 32);
    }
    if let Some(message) = Response::parse(data) {
        assert_eq!(kind, Some(Kind::Response));
        same(message.encode(), 32);
    }
    if let Some(message) = CookieReply::parse(data) {
        assert_eq!(kind, Some(Kind::CookieReply));
        same(message.encode(), 0);
    }
    match (kind, DataHeader::parse(data)) {
        (Some(Kind::Data), header) => {
            let header = header.expect("a data message has a header");
            assert!(data.len() >= DATA_OVERHEAD);
            assert_eq!(header.encode(), data[..16]);
        }
        (Some(Kind::Initiation), _) => assert!(Initiation::parse(data).is_some()),
        (Some(Kind::Response), _) => assert!(Response::parse(data).is_some()),
        (Some(Kind::CookieReply), _) => assert!(CookieReply::parse(data).is_some()),
        (None, _) => {}
    }
    if let Some(copy) = Handshake::copy_of(data) {
        assert_eq!(copy.as_bytes(), data);
    }
}

/// Two devices, driven by a program of one-byte steps, so that the fuzzer reaches the code behind a
/// valid MAC.
pub fn control(data: &[u8]) {
    let mut pair = Pair::new();
    steps(data, 200, |step, rest| {
        pair.step(step, rest);
        pair.settle();
    });
}

struct Pair {
    controls: [Control<ChaCha20Rng>; 2],
    keys: [PrivateKey; 2],
    time: Time,
    wall: Duration,
    /// Messages in flight, with the number of the sender.
    wire: Vec<(usize, Vec<u8>)>,
}

impl Pair {
    fn new() -> Self {
        let keys = [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]));
        let controls = [0, 1].map(|id| {
            let mut control = Control::new(ChaCha20Rng::seed_from_u64(id as u64));
            let change = DeviceChange {
                private_key: Some(Some(keys[id].clone())),
                replace_peers: false,
                peers: vec![Self::peer(&keys, 1 - id)],
            };
            control.apply(change).expect("one peer is below the limit");
            control.up();
            control
        });
        let time = Time::from_nanos(1_000_000_000);
        let wall = Duration::from_secs(1_800_000_000);
        Self { controls, keys, time, wall, wire: Vec::new() }
    }

    fn peer(keys: &[PrivateKey; 2], id: usize) -> PeerChange {
        let net = IpNet::from(inner(id));
        PeerChange {
            endpoint: Some(address(id)),
            allowed_ips: vec![AllowedIpChange { net, remove: false }],
            ..PeerChange::new(keys[id].public_key())
        }
    }

    fn now(&self) -> Now {
        Now { time: self.time, wall: self.wall }
    }

    fn step(&mut self, step: u8, rest: &mut &[u8]) {
        let id = usize::from(step >> 7);
        match step & 0x0f {
            0 => {
                let [len] = take(rest);
                let (datagram, behind) = rest.split_at(usize::from(len).min(rest.len()));
                *rest = behind;
                self.receive(id, datagram, address(1 - id));
            }
            1 => self.send(id),
            2 => self.deliver(|_| {}),
            3 => {
                let [at, mask] = take(rest);
                self.deliver(|message| {
                    let at = usize::from(at) % message.len();
                    message[at] ^= mask;
                });
            }
            4 => {
                let [len] = take(rest);
                self.deliver(|message| message.resize(usize::from(len), 0));
            }
            5 => {
                let last = self.wire.last().cloned();
                self.wire.extend(last);
            }
            6 => {
                let by = 1.min(self.wire.len());
                self.wire.rotate_left(by);
            }
            7 => drop(self.wire.pop()),
            8 => {
                let [seconds] = take(rest);
                self.pass(Duration::from_secs(seconds.into()));
            }
            9 => {
                let [millis] = take(rest);
                self.pass(Duration::from_millis(millis.into()));
            }
            10 => {
                let steps: [u8; 4] = take(rest);
                self.wall = Duration::from_secs(u32::from_le_bytes(steps).into());
            }
            11 => self.controls[id].set_under_load(self.time),
            12 => self.controls[id].down(),
            13 => self.controls[id].up(),
            14 => self.change(id, rest),
            _ => self.controls[id].clear_source(&self.keys[1 - id].public_key()),
        }
    }

    fn change(&mut self, id: usize, rest: &mut &[u8]) {
        let [what, value] = take(rest);
        let peer = Self::peer(&self.keys, 1 - id);
        let mut change = DeviceChange::default();
        match what % 6 {
            0 => change.peers = vec![PeerChange { remove: true, ..peer }],
            1 => change.peers = vec![peer],
            2 => {
                let persistent_keepalive = Some(value.into());
                change.peers = vec![PeerChange { persistent_keepalive, ..peer }];
            }
            3 => {
                let preshared_key = Some(PresharedKey::from_bytes(&[value & 1; 32]));
                change.peers = vec![PeerChange { preshared_key, ..peer }];
            }
            4 => change.private_key = Some(Some(PrivateKey::from_bytes(&[value; 32]))),
            _ => change.private_key = Some(Some(self.keys[id].clone())),
        }
        self.controls[id].apply(change).expect("two peers are below the limit");
    }

    fn receive(&mut self, id: usize, datagram: &[u8], from: SocketAddr) {
        let now = self.now();
        if Kind::of(datagram) != Some(Kind::Data) {
            self.controls[id].handle_datagram(datagram, Endpoint::new(from), now);
        } else if let Some(header) = DataHeader::parse(datagram) {
            let device = self.controls[id].device().clone();
            let Ok(session) = device.session(header, now.time) else { return };
            // Nothing is sealed here: an all-zero payload, as from `transmit`, counts as authentic.
            let authentic = datagram[16..].iter().all(|byte| *byte == 0);
            if authentic && session.keypair.recv.accept(header.counter) {
                let carries = datagram.len() > DATA_OVERHEAD;
                let endpoint = Endpoint::new(from);
                let received =
                    ReceivedMessages { bytes: datagram.len(), has_data: carries, endpoint };
                device.handle_received(&session, received, now.time);
            }
        }
    }

    /// Sends one packet to the other side, or starts a handshake.
    fn send(&mut self, id: usize) {
        let device = self.controls[id].device().clone();
        let Some(peer) = device.route(inner(1 - id)) else { return };
        self.transmit(id, &peer, 16);
    }

    fn transmit(&mut self, id: usize, peer: &Arc<Peer>, len: usize) {
        let device = self.controls[id].device().clone();
        let Ok(reservation) = device.reserve(peer, 1, self.time) else { return };
        assert!(reservation.counter < REJECT_AFTER_MESSAGES);
        let receiver = reservation.keypair.send.remote_index;
        let mut datagram = DataHeader { receiver, counter: reservation.counter }.encode().to_vec();
        datagram.resize(DATA_OVERHEAD + len, 0);
        let sent = SentDatagrams { packets: 1, bytes: datagram.len(), longest: datagram.len() };
        device.handle_sent(peer, &reservation, sent, self.time);
        self.wire.push((id, datagram));
    }

    /// Delivers the oldest message after a change.
    fn deliver(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if self.wire.is_empty() {
            return;
        }
        let (sender, mut message) = self.wire.remove(0);
        change(&mut message);
        self.receive(1 - sender, &message, address(sender));
    }

    fn pass(&mut self, time: Duration) {
        self.time = self.time + time;
        self.wall += time;
    }

    /// Runs all due actions of both devices.
    fn settle(&mut self) {
        let now = self.now();
        for id in [0, 1] {
            let device = self.controls[id].device().clone();
            loop {
                self.controls[id].handle_notices(now);
                self.controls[id].handle_timeout(now);
                let posted: Vec<_> = device.outbound_mailbox.take().collect();
                if posted.is_empty() {
                    break;
                }
                for (peer, notices) in posted {
                    if notices.has(OutboundNotice::Keepalive) {
                        self.transmit(id, &peer, 0);
                    }
                }
            }
            let due = self.controls[id].poll_timeout();
            assert!(due.is_none_or(|due| due > now.time), "due actions were performed");
            while let Some((message, to)) = self.controls[id].poll_transmit() {
                assert!(Kind::of(message.as_bytes()).is_some());
                assert_eq!(to.remote.direct(), Some(address(1 - id)), "there is no other peer");
                self.wire.push((id, message.as_bytes().to_vec()));
            }
        }
        self.wire.truncate(64);
    }
}

fn address(id: usize) -> SocketAddr {
    ([192, 0, 2, id as u8], 51820).into()
}

fn inner(id: usize) -> IpAddr {
    [10, 0, 0, id as u8].into()
}

/// Compares the table of allowed IPs with a linear search.
pub fn allowed_ips(data: &[u8]) {
    let mut table = AllowedIps::default();
    let mut model: HashMap<IpNet, u8> = HashMap::new();
    let mut rest = data;
    while !rest.is_empty() && model.len() < 100 {
        let [step, value] = take(&mut rest);
        let net = take_net(&mut rest, step);
        match step >> 6 {
            0 | 1 => assert_eq!(table.insert(net, value), model.insert(net, value)),
            2 => assert_eq!(table.remove(net), model.remove(&net)),
            _ => {}
        }
        assert_eq!(table.get(net), model.get(&net));
        for address in [net.network(), net.broadcast()] {
            let best = model
                .iter()
                .filter(|(net, _)| net.contains(&address))
                .max_by_key(|(net, _)| net.prefix_len());
            assert_eq!(table.lookup(address), best.map(|(_, value)| value), "{address}");
        }
    }
    for (net, value) in &model {
        assert_eq!(table.remove(*net), Some(*value));
    }
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    assert!(everywhere.iter().all(|address| table.lookup(*address).is_none()));
}

fn take_net(rest: &mut &[u8], step: u8) -> IpNet {
    let [len] = take(rest);
    if step & 1 == 0 {
        let net = Ipv4Net::new(take::<4>(rest).into(), len % 33);
        net.expect("the prefix is not too long").trunc().into()
    } else {
        let net = Ipv6Net::new(take::<16>(rest).into(), len % 129);
        net.expect("the prefix is not too long").trunc().into()
    }
}

/// Compares the replay filter with a set of all counters.
pub fn replay_filter(data: &[u8]) {
    let mut filter = ReplayFilter::default();
    let mut seen = BTreeSet::new();
    let mut at = 0u64;
    let mut rest = data;
    while !rest.is_empty() {
        let [step, a, b] = take(&mut rest);
        let distance = u64::from(u16::from_le_bytes([a, b]));
        at = match step % 8 {
            0 => at.saturating_add(distance),
            1 => at.saturating_sub(distance),
            2 => at.saturating_add(1),
            3 => at.saturating_add(distance << 20),
            4 => u64::MAX - distance,
            5 => REJECT_AFTER_MESSAGES - distance,
            6 => at.saturating_sub(REPLAY_WINDOW).saturating_add(u64::from(a % 3)),
            _ => take::<8>(&mut rest).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        let highest = seen.last().copied();
        let inside = highest.is_none_or(|highest| at > highest || highest - at < REPLAY_WINDOW);
        let expected = at < REJECT_AFTER_MESSAGES && inside && seen.insert(at);
        assert_eq!(filter.accept(at), expected, "counter {at}, highest {highest:?}");
    }
}

/// Keys as text: a parsed key is written as the same text.
pub fn key_text(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(key) = PublicKey::from_base64(text) {
        assert_eq!(key.to_base64(), text);
        assert_eq!(PublicKey::from_hex(&key.to_hex()), Ok(key));
    }
    if let Ok(key) = PublicKey::from_hex(text) {
        assert_eq!(key.to_hex(), text.to_lowercase());
        assert_eq!(PublicKey::from_base64(&key.to_base64()), Ok(key));
    }
    if let Ok(key) = PresharedKey::from_base64(text) {
        assert_eq!(*key.to_base64(), text);
    }
    let base64 = PrivateKey::from_base64(text);
    assert_eq!(base64.is_ok(), PublicKey::from_base64(text).is_ok());
    let hex = PrivateKey::from_hex(text);
    assert_eq!(hex.is_ok(), PublicKey::from_hex(text).is_ok());
    for key in [base64, hex].into_iter().flatten() {
        assert_eq!(PrivateKey::from_hex(&key.to_hex()).as_ref(), Ok(&key));
        assert_eq!(PrivateKey::from_base64(&key.to_base64()).as_ref(), Ok(&key));
    }
}

/// Parses a request of the cross-platform userspace protocol.
pub fn uapi_request(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match Request::parse(text) {
        Ok(Request::Set(change)) => {
            let peers = change.device.peers.iter();
            for net in peers.flat_map(|peer| &peer.allowed_ips) {
                assert_eq!(net.net, net.net.trunc(), "host bits are off");
            }
            let mut control = Control::new(ChaCha20Rng::seed_from_u64(1));
            control.apply(change.device.clone()).expect("a request has few peers");
            let names: BTreeMap<_, _> =
                control.peers().map(|peer| (peer.public_key, peer.allowed_ips)).collect();
            assert!(names.len() <= change.device.peers.len());
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses a file of wg-quick(8): it can be written, and parses to the same.
pub fn conf_file(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let conf = match Conf::parse("wg0.conf", text) {
        Ok(conf) => conf,
        Err(error) => {
            assert!((1..=text.lines().count().max(1)).contains(&error.line()), "{error}");
            return;
        }
    };
    let state = DeviceState {
        private_key: conf.interface.private_key.clone(),
        listen_port: conf.interface.listen_port.unwrap_or(0),
        fwmark: conf.interface.fwmark.unwrap_or(0),
        peers: Vec::new(),
    };
    let written = conf::write(&conf.interface, &state);
    let again = Conf::parse("wg0.conf", &written).expect("what was written can be read");
    let mut expected = conf.interface.clone();
    // Zeros are not written, because absence means the same.
    expected.listen_port = expected.listen_port.filter(|port| *port != 0);
    expected.fwmark = expected.fwmark.filter(|mark| *mark != 0);
    assert_eq!(again.interface, expected);
}
