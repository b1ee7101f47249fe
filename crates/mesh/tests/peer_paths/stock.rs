//! A simulation of a stock peer's path selection (tailscale `wgengine/magicsock` `endpoint.go`): it
//! pings at once, does not prime, answers a call only with pings, and calls only when it has
//! endpoints to ping.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use ipc::Path;
use mesh::peer_paths::{Event, Paths, PeerInfo, PublicEndpoint, To, Traffic, Transmit, Via};
use tailnet::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
};

use crate::world::{MS, SECOND};

/// The path selection of a host.
pub(crate) trait Node {
    fn set_peer(&mut self, key: NodePublic, info: &PeerInfo, now: Duration);
    fn set_own_endpoints(&mut self, node: NodePublic, endpoints: Vec<SocketAddr>, now: Duration);
    /// A stock node does not support birthday probing.
    fn set_public_endpoint(&mut self, _: PublicEndpoint) {}
    fn handle_sockets_opened(&mut self, _: u32, _: u16, _: Duration) {}
    fn handle_disco(&mut self, from: DiscoPublic, via: Via, message: &Message, now: Duration);
    fn handle_wireguard(&mut self, peer: NodePublic, traffic: Traffic, now: Duration);
    fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration);
    fn handle_network_change(&mut self, now: Duration);
    /// A stock node ignores stalls.
    fn handle_stall(&mut self, _: Duration, _: Duration) {}
    fn handle_timeout(&mut self, now: Duration);
    fn poll_transmit(&mut self) -> Option<Transmit>;
    fn poll_event(&mut self) -> Option<Event>;
    fn poll_timeout(&self) -> Option<Duration>;
}

impl Node for Paths {
    fn set_peer(&mut self, key: NodePublic, info: &PeerInfo, now: Duration) {
        self.set_peer(key, info, now);
    }

    fn set_own_endpoints(&mut self, node: NodePublic, endpoints: Vec<SocketAddr>, now: Duration) {
        self.set_own_endpoints(node, endpoints, now);
    }

    fn set_public_endpoint(&mut self, place: PublicEndpoint) {
        self.set_public_endpoint(Some(place));
    }

    fn handle_sockets_opened(&mut self, number: u32, count: u16, now: Duration) {
        self.handle_sockets_opened(number, count, now);
    }

    fn handle_disco(&mut self, from: DiscoPublic, via: Via, message: &Message, now: Duration) {
        self.handle_disco(from, via, message, now);
    }

    fn handle_wireguard(&mut self, peer: NodePublic, traffic: Traffic, now: Duration) {
        self.handle_wireguard(peer, traffic, now);
    }

    fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.handle_peer_gone(region, peer, now);
    }

    fn handle_network_change(&mut self, now: Duration) {
        self.handle_network_change(now);
    }

    fn handle_stall(&mut self, time: Duration, now: Duration) {
        self.handle_stall(time, now);
    }

    fn handle_timeout(&mut self, now: Duration) {
        self.handle_timeout(now);
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.poll_transmit()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.poll_event()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.poll_timeout()
    }
}

pub(crate) struct Stock {
    node: NodePublic,
    peer: Option<(NodePublic, PeerInfo)>,
    own: Vec<SocketAddr>,
    own_at: Duration,
    /// Whether a call waits for fresh endpoints.
    calls: bool,
    /// The time of the last ping of each.
    candidates: BTreeMap<SocketAddr, Option<Duration>>,
    pings: Vec<(TxId, SocketAddr)>,
    best: Option<SocketAddr>,
    trusted: Duration,
    sent: Option<Duration>,
    heartbeat: Option<Duration>,
    serial: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Stock {
    pub(crate) fn new(node: NodePublic) -> Self {
        Self {
            node,
            peer: None,
            own: Vec::new(),
            own_at: Duration::ZERO,
            calls: false,
            candidates: BTreeMap::new(),
            pings: Vec::new(),
            best: None,
            trusted: Duration::ZERO,
            sent: None,
            heartbeat: None,
            serial: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    fn send(&mut self, to: To, message: Message) {
        if let Some((_, info)) = &self.peer {
            self.transmits.push_back(Transmit { to, disco: info.disco, message });
        }
    }

    fn to_relay(&self) -> Option<To> {
        let (peer, info) = self.peer.as_ref()?;
        Some(To::Relay { region: info.home?, peer: *peer })
    }

    fn ping(&mut self, addr: SocketAddr, now: Duration) {
        self.serial += 1;
        let mut tx = TxId::default();
        tx[..8].copy_from_slice(&self.serial.to_le_bytes());
        self.pings.push((tx, addr));
        self.candidates.insert(addr, Some(now));
        let to = To::Udp { addr, source: None, hops: None };
        self.send(to, Message::Ping { tx, node_key: Some(self.node), padding: 0 });
    }

    fn ping_all(&mut self, now: Duration, calls: bool) {
        let due = |pinged: &Option<Duration>| pinged.is_none_or(|at| now >= at + 5 * SECOND);
        let addrs: Vec<_> =
            self.candidates.iter().filter(|(_, at)| due(at)).map(|(addr, _)| *addr).collect();
        addrs.iter().for_each(|addr| self.ping(*addr, now));
        if calls && !addrs.is_empty() {
            self.call(now);
        }
    }

    fn call(&mut self, now: Duration) {
        self.calls = now >= self.own_at + 27 * SECOND;
        if self.calls {
            self.events.push_back(Event::RefreshEndpoints);
        } else if let Some(to) = self.to_relay() {
            self.send(to, Message::CallMeMaybe { endpoints: self.own.clone() });
        }
    }

    fn wants_all(&self, now: Duration) -> bool {
        self.best.is_none() || now >= self.trusted
    }

    fn use_path(&mut self) {
        let Some((peer, info)) = &self.peer else { return };
        let path = self.best.map(Path::Direct).or(info.home.map(Path::Relay));
        self.events.push_back(Event::UsePath { peer: *peer, path });
    }
}

impl Node for Stock {
    fn set_peer(&mut self, key: NodePublic, info: &PeerInfo, _: Duration) {
        self.peer = Some((key, info.clone()));
        info.endpoints.iter().for_each(|addr| _ = self.candidates.entry(*addr).or_default());
        self.use_path();
    }

    fn set_own_endpoints(&mut self, _: NodePublic, endpoints: Vec<SocketAddr>, now: Duration) {
        (self.own, self.own_at) = (endpoints, now);
        if self.calls {
            self.call(now);
        }
    }

    fn handle_disco(&mut self, _: DiscoPublic, via: Via, message: &Message, now: Duration) {
        match (message, via) {
            (Message::Ping { tx, .. }, Via::Udp { remote, .. }) => {
                self.candidates.entry(remote).or_default();
                let to = To::Udp { addr: remote, source: None, hops: None };
                self.send(to, Message::Pong { tx: *tx, source: remote });
            }
            (Message::Ping { tx, .. }, Via::Relay { region, from }) => {
                let source = ([127, 3, 3, 40], region).into();
                let to = To::Relay { region, peer: from };
                self.send(to, Message::Pong { tx: *tx, source });
            }
            (Message::Pong { tx, .. }, _) => {
                let Some(at) = self.pings.iter().position(|(other, _)| other == tx) else { return };
                let (_, addr) = self.pings.remove(at);
                self.trusted = now + 6_500 * MS;
                if self.best != Some(addr) {
                    self.best = Some(addr);
                    self.use_path();
                }
            }
            (Message::CallMeMaybe { endpoints }, _) => {
                endpoints.iter().for_each(|addr| _ = self.candidates.entry(*addr).or_default());
                self.candidates.values_mut().for_each(|pinged| *pinged = None);
                self.ping_all(now, false);
            }
            // The type is unknown, or was not requested.
            _ => {}
        }
    }

    fn handle_wireguard(&mut self, _: NodePublic, traffic: Traffic, now: Duration) {
        if traffic.sent == 0 {
            return;
        }
        self.sent = Some(now);
        self.heartbeat.get_or_insert(now + 3 * SECOND);
        if self.wants_all(now) {
            self.ping_all(now, true);
        }
    }

    fn handle_peer_gone(&mut self, _: u16, _: NodePublic, _: Duration) {}

    fn handle_network_change(&mut self, _: Duration) {}

    fn handle_timeout(&mut self, now: Duration) {
        if self.best.is_some() && now >= self.trusted {
            self.best = None;
            self.use_path();
        }
        if self.heartbeat.is_none_or(|at| now < at) {
            return;
        }
        self.heartbeat = None;
        if self.sent.is_some_and(|sent| now < sent + 45 * SECOND) {
            self.heartbeat = Some(now + 3 * SECOND);
            match self.best {
                Some(best) => self.ping(best, now),
                None => self.ping_all(now, true),
            }
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let trusted = self.best.map(|_| self.trusted);
        [self.heartbeat, trusted].into_iter().flatten().min()
    }
}
