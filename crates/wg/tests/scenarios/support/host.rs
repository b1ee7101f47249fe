//! One host: a device, and the engine's work in one thread.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use packet::{Endpoint, wire::IpHeader};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use wg::{
    Control, Device, DropReason, ExchangeMessage, Now, OutboundNotice, Peer, PrivateKey, Probe,
    PublicKey, ReceiveError, ReceivedMessages, Reservation, ReserveError, SentDatagrams, Session,
    StagedPackets,
    config::{AllowedIpChange, DeviceChange, PeerState},
    constants::PADDING,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, Kind},
};

use super::Id;

pub(crate) struct Host {
    pub control: Control<ChaCha20Rng>,
    pub device: Arc<Device>,
    pub key: PrivateKey,
    /// The host's address.
    pub address: SocketAddr,
    /// Received inner packets, without padding.
    pub received: Vec<Vec<u8>>,
    /// Datagrams to send.
    pub out: Vec<(Vec<u8>, Endpoint)>,
    /// Reservation of the last sealed packets.
    pub last: Option<Reservation>,
    /// Number of timeouts.
    pub wakeups: usize,
    staged: StagedPackets,
}

impl Host {
    /// Creates a host with a key and without peers. Its interface is up.
    pub(crate) fn new(id: Id, seed: u64) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(seed ^ (id as u64) << 32);
        let key = PrivateKey::generate(&mut rng);
        let mut control = Control::new(rng);
        let change = DeviceChange { private_key: Some(Some(key.clone())), ..Default::default() };
        control.apply(change).unwrap();
        control.up();
        Self {
            device: control.device().clone(),
            control,
            key,
            address: ([192, 0, 2, id as u8 + 1], 51820).into(),
            received: Vec::new(),
            out: Vec::new(),
            last: None,
            wakeups: 0,
            staged: StagedPackets::default(),
        }
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    pub(crate) fn state(&self, peer: &PublicKey) -> PeerState {
        self.control.peers().find(|state| state.public_key == *peer).expect("a peer of the host")
    }

    /// Number of answered handshakes that it started, and the sum of their milliseconds.
    pub(crate) fn handshakes(&self) -> (u64, u64) {
        let handshakes = &self.device.handshakes;
        (handshakes.answered(), handshakes.micros() / 1000)
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.device.drops.get(reason)
    }

    /// Sends inner packets to one peer.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>], now: Now) {
        let Some(peer) = IpHeader::parse(&packets[0])
            .ok()
            .and_then(|header| self.device.route(header.destination(&packets[0])))
        else {
            self.device.drops.count(DropReason::OutNoPeer, 1);
            return;
        };
        let waits = self.staged.has(&peer);
        if waits {
            self.device.handle_staged(&peer, now.time);
        }
        if waits || !self.seal_data(&peer, packets, now) {
            for packet in packets {
                let dropped = self.staged.push(&peer, packet);
                self.device.drops.count(DropReason::OutStagedFull, dropped);
            }
        }
        self.work(now);
    }

    /// Receives a datagram.
    pub(crate) fn receive(&mut self, datagram: &[u8], from: Endpoint, now: Now) {
        if Kind::of(datagram) == Some(Kind::Data) {
            if let Err(reason) = self.receive_data(datagram, from, now) {
                self.device.drops.count(reason, 1);
            }
        } else {
            self.control.handle_datagram(datagram, from, now);
        }
        self.work(now);
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) {
        self.wakeups += 1;
        self.control.handle_timeout(now);
        self.work(now);
    }

    /// Handles the notices of both halves until there are no more.
    pub(crate) fn work(&mut self, now: Now) {
        loop {
            self.control.handle_notices(now);
            if !self.handle_outbound_notices(now) {
                break;
            }
        }
        while let Some((message, endpoint)) = self.control.poll_transmit() {
            self.out.push((message.as_bytes().to_vec(), endpoint));
        }
    }

    fn handle_outbound_notices(&mut self, now: Now) -> bool {
        let mut any = false;
        let device = self.device.clone();
        for (peer, notices) in device.outbound_mailbox.take() {
            any = true;
            let mut staged: Vec<Vec<u8>> =
                self.staged.take(&peer).into_iter().map(Into::into).collect();
            if notices.has(OutboundNotice::Purge) {
                device.drops.count(DropReason::OutHandshakeFailed, staged.len() as u64);
                staged.clear();
            }
            if notices.has(OutboundNotice::Refuse) {
                device.drops.count(DropReason::OutNotPostQuantum, staged.len() as u64);
                staged.clear();
            }
            let sends_nothing = staged.is_empty() || device.is_data_withheld(&peer, now.time);
            if sends_nothing && notices.has(OutboundNotice::Keepalive) {
                let reserved = self.device.reserve_keepalive(&peer, now.time);
                self.seal(&peer, &[Vec::new()], reserved, now);
            }
            if notices.has(OutboundNotice::Probe) {
                self.send_probes(&peer, now);
            }
            if notices.has(OutboundNotice::Exchange) {
                self.send_exchange(&peer, now);
            }
            if !staged.is_empty() && !self.seal_data(&peer, &staged, now) {
                for packet in &staged {
                    self.staged.push(&peer, packet);
                }
            }
        }
        any
    }

    fn send_probes(&mut self, peer: &Arc<Peer>, now: Now) {
        for probe in self.device.take_probes(peer) {
            if let Some(reservation) = self.device.reserve_probe(peer, now.time) {
                let mut plaintext = vec![0; probe.plaintext_len()];
                probe.write(&mut plaintext);
                // Not padded, because the probe tests this exact length.
                let datagram = seal_exactly(&reservation, reservation.counter, &plaintext);
                self.device.handle_probe_sent(peer, datagram.len(), now.time);
                self.out.push((datagram, reservation.endpoint));
            }
        }
    }

    fn send_exchange(&mut self, peer: &Arc<Peer>, now: Now) {
        for message in self.device.take_exchange(peer) {
            if let Some(reservation) = self.device.reserve_probe(peer, now.time) {
                let mut plaintext = vec![0; message.plaintext_len()];
                message.write(&mut plaintext);
                let datagram = seal_exactly(&reservation, reservation.counter, &plaintext);
                self.device.handle_probe_sent(peer, datagram.len(), now.time);
                self.out.push((datagram, reservation.endpoint));
            }
        }
    }

    fn seal_data(&mut self, peer: &Arc<Peer>, packets: &[Vec<u8>], now: Now) -> bool {
        let reserved = self.device.reserve(peer, packets.len() as u64, now.time);
        self.seal(peer, packets, reserved, now)
    }

    /// Seals and sends packets. Returns whether there was a session.
    fn seal(
        &mut self,
        peer: &Arc<Peer>,
        packets: &[Vec<u8>],
        reserved: Result<Reservation, ReserveError>,
        now: Now,
    ) -> bool {
        let reservation = match reserved {
            Ok(reservation) => reservation,
            Err(ReserveError::NoSession) => return false,
            Err(ReserveError::NoEndpoint) => {
                self.device.drops.count(DropReason::OutNoEndpoint, packets.len() as u64);
                return true;
            }
        };
        let mut bytes = 0;
        for (packet, counter) in packets.iter().zip(reservation.counter..) {
            let datagram = seal_one(&reservation, counter, packet);
            bytes += datagram.len();
            self.out.push((datagram, reservation.endpoint));
        }
        let longest = packets.iter().map(|packet| packet.len() + DATA_OVERHEAD).max();
        let sent =
            SentDatagrams { packets: packets.len() as u64, bytes, longest: longest.unwrap_or(0) };
        self.device.handle_sent(peer, &reservation, sent, now.time);
        self.last = Some(reservation);
        true
    }

    fn receive_data(
        &mut self,
        datagram: &[u8],
        from: Endpoint,
        now: Now,
    ) -> Result<(), DropReason> {
        let header = DataHeader::parse(datagram).ok_or(DropReason::InMalformed)?;
        let session: Session = self
            .device
            .session(header, now.time)
            .map_err(|reason: ReceiveError| DropReason::from(reason))?;
        let mut data = datagram[DATA_HEADER_LEN..].to_vec();
        let key = &session.keypair.recv.key;
        let mut open = [crypto::aead::Open {
            key,
            counter: header.counter,
            data: &mut data,
            authentic: false,
        }];
        crypto::aead::open(&mut open);
        if !open[0].authentic {
            return Err(DropReason::InForged);
        }
        if !session.keypair.recv.accept(header.counter) {
            return Err(DropReason::InReplayed);
        }
        data.truncate(datagram.len() - DATA_OVERHEAD);
        let probe = Probe::parse(&data);
        let exchange = ExchangeMessage::parse(&data);
        let has_data = !data.is_empty() && probe.is_none() && exchange.is_none();
        let received = ReceivedMessages { bytes: datagram.len(), has_data, endpoint: from };
        self.device.handle_received(&session, received, now.time);
        if let Some(probe) = probe {
            self.device.handle_probe_received(&session.peer, probe, now.time);
        }
        if let Some(message) = exchange {
            self.device.handle_exchange_message(&session.peer, message);
        }
        if has_data && !session.keypair.carries_data {
            return Err(DropReason::InNotPostQuantum);
        }
        if has_data { self.unwrap_packet(&session.peer, data) } else { Ok(()) }
    }

    fn unwrap_packet(&mut self, peer: &Arc<Peer>, mut packet: Vec<u8>) -> Result<(), DropReason> {
        let header = IpHeader::parse(&packet).map_err(|_| DropReason::InInvalid)?;
        match self.device.route(header.source(&packet)) {
            Some(owner) if Arc::ptr_eq(&owner, peer) => {}
            _ => return Err(DropReason::InSpoofed),
        }
        packet.truncate(header.total_len);
        self.received.push(packet);
        Ok(())
    }
}

/// Makes a datagram of transport data, padded.
pub(crate) fn seal_one(reservation: &Reservation, counter: u64, packet: &[u8]) -> Vec<u8> {
    let mut padded = packet.to_vec();
    padded.resize(packet.len().next_multiple_of(PADDING), 0);
    seal_exactly(reservation, counter, &padded)
}

/// Makes a datagram of transport data, not padded.
fn seal_exactly(reservation: &Reservation, counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let send = &reservation.keypair.send;
    let mut datagram = DataHeader { receiver: send.remote_index, counter }.encode().to_vec();
    datagram.extend_from_slice(plaintext);
    datagram.resize(DATA_OVERHEAD + plaintext.len(), 0);
    let data = &mut datagram[DATA_HEADER_LEN..];
    crypto::aead::seal(&mut [crypto::aead::Seal { key: &send.key, counter, data }]);
    datagram
}

/// The inner address of a host.
pub(crate) fn inner(id: Id) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, id as u8 + 1)
}

pub(crate) fn allowed(net: &str) -> AllowedIpChange {
    AllowedIpChange { net: net.parse().unwrap(), remove: false }
}

/// An IPv4 packet with a number as its payload.
pub(crate) fn inner_packet(source: IpAddr, destination: IpAddr, number: u32) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) else {
        panic!("the scenarios' inner packets are IPv4");
    };
    let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(&number.to_be_bytes());
    packet
}
