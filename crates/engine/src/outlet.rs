//! Sends to the network: through the socket, or through relays if there are any.

use packet::{Endpoint, Failure, SendBatch, SendError, UdpSend};

use crate::Relay;

pub(crate) struct Outlet<U> {
    udp: U,
    relay: Option<Relay>,
}

impl<U: UdpSend> Outlet<U> {
    pub fn new(udp: U, relay: Option<Relay>) -> Self {
        Self { udp, relay }
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
        match &self.relay {
            Some(relay) if endpoint.remote.is_relayed() => relay.send_one(datagram, endpoint),
            _ => self.udp.send_whole(datagram, endpoint),
        }
    }

    #[cold]
    fn send_relayed(&self, batch: &mut SendBatch) {
        for transmit in 0..batch.transmits().len() {
            let run = &batch.transmits()[transmit];
            if !run.endpoint.remote.is_relayed() {
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
}
