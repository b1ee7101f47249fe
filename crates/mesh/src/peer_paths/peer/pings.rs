//! The pings of a peer that wait for their pongs.

use std::{net::SocketAddr, time::Duration};

use ipc::Path;
use tailnet::disco::TxId;

use super::Peer;
use crate::peer_paths::{
    Context, To,
    timing::{PENDING, PING_TIMEOUT},
};

/// A sent ping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinged {
    pub tx: TxId,
    pub to: Path,
    pub at: Duration,
    /// The number of a ping that a user requested.
    pub number: Option<u32>,
}

impl Peer {
    pub(crate) fn ping_for_user(&mut self, number: u32, cx: &mut Context<'_>) -> bool {
        self.note_sent(cx.now);
        match self.published.path {
            Some(Path::Direct(addr)) => self.ping(addr, Some(number), cx),
            Some(Path::PeerRelay { at, vni }) => self.ping_relayed(at, vni, Some(number), cx),
            Some(Path::Auxiliary { .. }) => self.ping_auxiliary(Some(number), cx),
            Some(Path::Relay(region)) => self.ping_by_relay(region, Some(number), cx),
            None => {}
        }
        self.search_if_due(cx);
        self.published.path.is_some()
    }

    pub(crate) fn ping(&mut self, addr: SocketAddr, number: Option<u32>, cx: &mut Context<'_>) {
        self.send_ping(addr, None, number, cx);
    }

    pub(crate) fn send_ping(
        &mut self,
        addr: SocketAddr,
        hops: Option<u8>,
        number: Option<u32>,
        cx: &mut Context<'_>,
    ) {
        if let Some(entry) = self.candidates.get_mut(addr).filter(|_| hops.is_none()) {
            entry.pinged = Some(cx.now);
        }
        if let Some(direct) = self.direct.as_mut().filter(|direct| direct.addr == addr) {
            direct.pinged = cx.now;
        }
        if self.disco.is_zero() || cx.own.endpoints.contains(&addr) {
            return;
        }
        let (message, pinged) = cx.new_ping(Path::Direct(addr), number);
        self.await_pong(pinged);
        cx.send(To::Udp { addr, source: None, hops }, self.disco, message);
    }

    pub(crate) fn ping_by_relay(&mut self, region: u16, number: Option<u32>, cx: &mut Context<'_>) {
        if self.disco.is_zero() {
            return;
        }
        let (message, pinged) = cx.new_ping(Path::Relay(region), number);
        self.await_pong(pinged);
        cx.send(To::Relay { region, peer: self.key }, self.disco, message);
    }

    pub(crate) fn await_pong(&mut self, ping: Pinged) {
        while self.pings.front().is_some_and(|first| ping.at >= first.at + PING_TIMEOUT)
            || self.pings.len() >= PENDING
        {
            self.pings.pop_front();
        }
        self.pings.push_back(ping);
    }

    pub(crate) fn awaits(&self, tx: &TxId) -> bool {
        self.pings.iter().any(|ping| ping.tx == *tx)
    }
}
