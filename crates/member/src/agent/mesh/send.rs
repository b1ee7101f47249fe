//! Sends the messages of the mesh.

use std::time::Duration;

use tailnet::{
    disco::Message,
    ipc::{OpenSockets, Outgoing, ToDataPlane},
    paths::{Event, SocketsToOpen, To, Transmit},
    peer_relay::{Geneve, Protocol},
};

use super::{Due, Mesh};
use crate::agent::{commands::RelayCommands, derp, line::LineSender, programs::Programs};

/// The most datagrams in one message to the data plane.
const MAX_DATAGRAMS: usize = 64;

impl Mesh {
    /// Sends everything that is queued.
    pub async fn flush(
        &mut self,
        plane: &LineSender<ToDataPlane>,
        relays: &mut RelayCommands,
        programs: &mut Programs,
        now: Duration,
    ) -> Due {
        self.flush_check(relays, now).await;
        self.resend_translated_paths(plane);
        let mut due = std::mem::take(&mut self.due);
        // Sockets are closed after peers have other paths.
        let mut closed = Vec::new();
        while let Some(event) = self.paths.poll_event() {
            match event {
                Event::UsePath { peer, path: Some(path) } => {
                    if self.previous_paths.admits(peer, path, now) {
                        let path = self.nat64.outgoing_path(path);
                        plane.send(ToDataPlane::Path { peer, path });
                    }
                }
                // The next path is sent when there is one.
                Event::UsePath { path: None, .. } => {}
                Event::HandshakeNow(peer) => plane.send(ToDataPlane::Handshake(peer)),
                Event::Pong { number, via, latency, .. } => programs.pong(number, via, latency),
                Event::RefreshEndpoints => {
                    due.endpoints = true;
                    self.check(now);
                    self.flush_check(relays, now).await;
                }
                Event::OpenSockets(opening) => self.open(opening, plane),
                Event::RetainSocket(socket) => plane.send(ToDataPlane::RetainSocket(socket)),
                Event::CloseSockets(number) => closed.push(number),
            }
        }
        while let Some((peer, path)) = self.previous_paths.poll(now) {
            plane.send(ToDataPlane::Path { peer, path });
        }
        let messages = std::mem::take(&mut self.messages);
        let transmits =
            messages.into_iter().chain(std::iter::from_fn(|| self.paths.poll_transmit()));
        for Transmit { to, disco, message } in transmits {
            let mut nonce = [0; 24];
            if getrandom::fill(&mut nonce).is_err() {
                break;
            }
            let bytes = self.disco.seal(disco, &message, nonce);
            match to {
                To::Udp { addr, source, hops } => {
                    self.pending.push(Outgoing { source, hops, ..Outgoing::new(addr, bytes) });
                }
                To::PeerRelay { addr, vni, control } => {
                    let header = Geneve { control, protocol: Protocol::Disco, vni };
                    let bytes = [&header.bytes()[..], &bytes].concat();
                    self.pending.push(Outgoing::new(addr, bytes));
                }
                To::BirthdayProbe(addr) => self.probes.push(Outgoing::new(addr, bytes)),
                To::Auxiliary { addr, socket } => {
                    self.pending.push(Outgoing { by: Some(socket), ..Outgoing::new(addr, bytes) });
                }
                To::Relay { region, peer } => {
                    let (segment, bytes) = (bytes.len(), bytes.into());
                    let send =
                        derp::Command::Send { region, to: peer, bytes, segment, bundled: false };
                    relays.send(send).await;
                }
            }
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.iter_mut().for_each(|one| one.to = self.nat64.outgoing(one.to));
        for some in pending.chunks(MAX_DATAGRAMS) {
            plane.send(ToDataPlane::Datagrams(some.to_vec()));
        }
        let mut probes = std::mem::take(&mut self.probes);
        probes.iter_mut().for_each(|one| one.to = self.nat64.outgoing(one.to));
        for some in probes.chunks(MAX_DATAGRAMS) {
            plane.send(ToDataPlane::BirthdayProbes(some.to_vec()));
        }
        closed.into_iter().for_each(|number| plane.send(ToDataPlane::CloseSockets(number)));
        if due.home {
            relays.set_home(self.home());
        }
        due
    }

    /// Makes the data plane open auxiliary sockets and send a ping from each.
    fn open(&mut self, opening: SocketsToOpen, plane: &LineSender<ToDataPlane>) {
        let SocketsToOpen { peer, disco, number, to, count, hops, tx } = opening;
        let mut nonce = [0; 24];
        if getrandom::fill(&mut nonce).is_err() {
            return;
        }
        let ping = Message::Ping { tx, node_key: Some(self.own_key), padding: 0 };
        let bytes = self.disco.seal(disco, &ping, nonce);
        let to = self.nat64.outgoing(to);
        plane.send(ToDataPlane::OpenSockets(Box::new(OpenSockets {
            number,
            peer,
            to,
            count,
            hops,
            bytes,
        })));
    }
}
