//! Sends to the network: through the socket, with a prefix or without, or through relays if there
//! are any.

use packet::{Endpoint, Failure, SendBatch, SendError, UdpSend};

use crate::{Attached, PREFIX_LEN, Prefixed, Prefixes, Relay};

pub(crate) struct Outlet<U> {
    udp: U,
    relay: Option<Relay>,
    prefixes: Prefixes,
    /// A run with prefixes.
    prefixed: SendBatch,
}

impl<U: UdpSend> Outlet<U> {
    pub fn new(udp: U, attached: &Attached) -> Self {
        let (relay, prefixes) = (attached.relay.clone(), attached.prefixes.clone());
        Self { udp, relay, prefixes, prefixed: SendBatch::default() }
    }

    /// Sends a batch; what could not be sent is noted in its failures.
    pub fn send(&mut self, batch: &mut SendBatch) {
        self.udp.send(batch);
        if batch.has_relayed() {
            self.send_relayed(batch);
        }
    }

    /// Sends one datagram without fragmentation. Relays never fragment.
    pub fn send_whole(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        if let Some(Prefixed { at, prefix }) = self.prefixes.place(&endpoint) {
            let datagram = [&prefix[..], datagram].concat();
            return self.udp.send_whole(&datagram, Endpoint::new(at));
        }
        match &self.relay {
            Some(relay) if endpoint.remote.is_relayed() => relay.send_one(datagram, endpoint),
            _ => self.udp.send_whole(datagram, endpoint),
        }
    }

    #[cold]
    fn send_relayed(&mut self, batch: &mut SendBatch) {
        for transmit in 0..batch.transmits().len() {
            let run = &batch.transmits()[transmit];
            if !run.endpoint.remote.is_relayed() {
                continue;
            }
            if let Some(place) = self.prefixes.place(&run.endpoint) {
                self.send_prefixed(batch, transmit, place);
                continue;
            }
            let all = run.datagrams();
            let sent = match &self.relay {
                Some(relay) => relay.send(batch, run),
                None => Err((all, SendError::Unreachable)),
            };
            if let Err((datagrams, error)) = sent {
                batch.fail(Failure { transmit, datagrams, error });
            }
        }
    }

    /// Sends a run with a prefix in front of each datagram.
    fn send_prefixed(&mut self, batch: &mut SendBatch, transmit: usize, place: Prefixed) {
        let run = batch.transmits()[transmit];
        self.prefixed.clear();
        for datagram in batch.datagrams(&run) {
            let (len, at) = (PREFIX_LEN + datagram.len(), Endpoint::new(place.at));
            let (prefix, behind) = self.prefixed.push(len, at, run.tos).split_at_mut(PREFIX_LEN);
            prefix.copy_from_slice(&place.prefix);
            behind.copy_from_slice(datagram);
        }
        self.udp.send(&mut self.prefixed);
        for failure in self.prefixed.failures() {
            batch.fail(Failure { transmit, ..*failure });
        }
    }
}
