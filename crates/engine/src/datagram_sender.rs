//! Sends datagrams to the network: by the socket, by the socket with a prefix, by a peer's own
//! socket, or through relays.

use packet::{Endpoint, Failure, SendBatch, SendError, UdpSend};

use crate::{Attachments, PREFIX_LEN, PeerSockets, PrefixTable, PrefixedAddr, RelayQueues, lock};

pub(crate) struct DatagramSender<U> {
    udp: U,
    relay: Option<RelayQueues>,
    prefixes: PrefixTable,
    peer_sockets: PeerSockets,
    /// A run with prefixes, or for another socket.
    scratch: SendBatch,
}

impl<U: UdpSend> DatagramSender<U> {
    pub(crate) fn new(udp: U, attached: &Attachments) -> Self {
        let (relay, prefixes) = (attached.relay.clone(), attached.prefixes.clone());
        let peer_sockets = attached.peer_sockets.clone();
        Self { udp, relay, prefixes, peer_sockets, scratch: SendBatch::default() }
    }

    /// Sends a batch. Datagrams that could not be sent are recorded in its failures.
    pub(crate) fn send(&mut self, batch: &mut SendBatch) {
        self.udp.send(batch);
        if batch.has_relayed() {
            self.send_relayed(batch);
        }
    }

    /// Sends one datagram without fragmentation. Relays never fragment.
    pub(crate) fn send_unfragmented(
        &mut self,
        datagram: &[u8],
        endpoint: Endpoint,
    ) -> Result<(), SendError> {
        if let Some(PrefixedAddr { at, prefix }) = self.prefixes.get(&endpoint) {
            let datagram = [&prefix[..], datagram].concat();
            return self.udp.send_unfragmented(&datagram, Endpoint::new(at));
        }
        if let Some((at, sender)) = self.peer_sockets.get(&endpoint) {
            return lock(&sender).send_unfragmented(datagram, Endpoint::new(at));
        }
        match &self.relay {
            Some(relay) if endpoint.remote.is_relayed() => relay.send_one(datagram, endpoint),
            _ => self.udp.send_unfragmented(datagram, endpoint),
        }
    }

    #[cold]
    fn send_relayed(&mut self, batch: &mut SendBatch) {
        for transmit in 0..batch.transmits().len() {
            let run = &batch.transmits()[transmit];
            if !run.endpoint.remote.is_relayed() {
                continue;
            }
            if let Some(addr) = self.prefixes.get(&run.endpoint) {
                self.send_prefixed(batch, transmit, addr);
                continue;
            }
            if let Some((at, sender)) = self.peer_sockets.get(&run.endpoint) {
                self.send_by_peer_socket(batch, transmit, Endpoint::new(at), &mut **lock(&sender));
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

    /// Sends a run with a prefix before each datagram.
    fn send_prefixed(&mut self, batch: &mut SendBatch, transmit: usize, addr: PrefixedAddr) {
        let run = batch.transmits()[transmit];
        self.scratch.clear();
        for datagram in batch.datagrams(&run) {
            let (len, at) = (PREFIX_LEN + datagram.len(), Endpoint::new(addr.at));
            let (prefix, behind) = self.scratch.push(len, at, run.tos).split_at_mut(PREFIX_LEN);
            prefix.copy_from_slice(&addr.prefix);
            behind.copy_from_slice(datagram);
        }
        self.udp.send(&mut self.scratch);
        for failure in self.scratch.failures() {
            batch.fail(Failure { transmit, ..*failure });
        }
    }

    /// Sends a run by the peer's own socket.
    fn send_by_peer_socket(
        &mut self,
        batch: &mut SendBatch,
        transmit: usize,
        to: Endpoint,
        sender: &mut dyn UdpSend,
    ) {
        let run = batch.transmits()[transmit];
        self.scratch.clear();
        for datagram in batch.datagrams(&run) {
            self.scratch.push(datagram.len(), to, run.tos).copy_from_slice(datagram);
        }
        sender.send(&mut self.scratch);
        for failure in self.scratch.failures() {
            batch.fail(Failure { transmit, ..*failure });
        }
    }
}
