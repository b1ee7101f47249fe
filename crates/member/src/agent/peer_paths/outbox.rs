//! Seals the messages of the mesh, and collects its datagrams until they are sent.

use ipc::{OpenSockets, Outgoing, ToDataPlane};
use mesh::peer_paths::{SocketsToOpen, To, Transmit};
use tailnet::{
    disco::{Disco, Message},
    geneve::{Geneve, Protocol},
    keys::{DiscoKey, DiscoPublic, NodePublic},
};

use super::{Output, nat64::Nat64};

/// The most datagrams in one message to the data plane.
const MAX_DATAGRAMS: usize = 64;

/// Messages and datagrams that wait to be sent, and the key that seals them.
pub(super) struct Outbox {
    disco: Disco,
    /// Messages to send, in addition to those of paths.
    messages: Vec<Transmit>,
    datagrams: Vec<Outgoing>,
    /// Birthday probes: pings to random ports of peers.
    probes: Vec<Outgoing>,
}

impl Outbox {
    pub(super) fn new(key: DiscoKey) -> Self {
        Self {
            disco: Disco::new(key),
            messages: Vec::new(),
            datagrams: Vec::new(),
            probes: Vec::new(),
        }
    }

    /// The public disco key of this node.
    pub(super) fn disco_key(&self) -> DiscoPublic {
        self.disco.public()
    }

    /// Opens a received message. Returns it with its sender; `None` if it is invalid.
    pub(super) fn open(&mut self, bytes: &[u8]) -> Option<(DiscoPublic, Message)> {
        self.disco.open(bytes).ok()
    }

    pub(super) fn push(&mut self, message: Transmit) {
        self.messages.push(message);
    }

    pub(super) fn push_datagram(&mut self, datagram: Outgoing) {
        self.datagrams.push(datagram);
    }

    /// Seals the queued messages and those of paths.
    pub(super) fn seal(
        &mut self,
        of_paths: impl Iterator<Item = Transmit>,
        nat64: &Nat64,
        outputs: &mut Vec<Output>,
    ) {
        let messages = std::mem::take(&mut self.messages);
        for Transmit { to, disco, message } in messages.into_iter().chain(of_paths) {
            let mut nonce = [0; 24];
            if getrandom::fill(&mut nonce).is_err() {
                break;
            }
            let bytes = self.disco.seal(disco, &message, nonce);
            match to {
                To::Udp { addr, source, hops } => {
                    self.datagrams.push(Outgoing { source, hops, ..Outgoing::new(addr, bytes) });
                }
                To::PeerRelay { addr, vni, control } => {
                    let header = Geneve { control, protocol: Protocol::Disco, vni };
                    let bytes = [&header.bytes()[..], &bytes].concat();
                    self.datagrams.push(Outgoing::new(addr, bytes));
                }
                To::BirthdayProbe(addr) => self.probes.push(Outgoing::new(addr, bytes)),
                To::Auxiliary { addr, socket } => {
                    let datagram = Outgoing::new(addr, bytes);
                    self.datagrams.push(Outgoing { by: Some(socket), ..datagram });
                }
                To::Relay { region, peer } => {
                    outputs.push(Output::Relay { region, peer, bytes: bytes.into() });
                }
            }
        }
        let to_plane = |datagrams: Vec<Outgoing>, message: fn(Vec<Outgoing>) -> ToDataPlane| {
            let mut datagrams = datagrams;
            datagrams.iter_mut().for_each(|one| one.to = nat64.outgoing(one.to));
            let messages: Vec<Output> = datagrams
                .chunks(MAX_DATAGRAMS)
                .map(|some| Output::Plane(message(some.to_vec())))
                .collect();
            messages
        };
        outputs.extend(to_plane(std::mem::take(&mut self.datagrams), ToDataPlane::Datagrams));
        outputs.extend(to_plane(std::mem::take(&mut self.probes), ToDataPlane::BirthdayProbes));
    }

    /// Makes the data plane open auxiliary sockets and send a ping from each.
    pub(super) fn open_sockets(
        &mut self,
        opening: SocketsToOpen,
        own_key: NodePublic,
        nat64: &Nat64,
    ) -> Option<ToDataPlane> {
        let SocketsToOpen { peer, disco, number, to, count, hops, tx } = opening;
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce).ok()?;
        let ping = Message::Ping { tx, node_key: Some(own_key), padding: 0 };
        let bytes = self.disco.seal(disco, &ping, nonce);
        let to = nat64.outgoing(to);
        let sockets = OpenSockets { number, peer, to, count, hops, bytes };
        Some(ToDataPlane::OpenSockets(Box::new(sockets)))
    }
}
