//! The steps of the outbound path that need the protocol: assign counters before
//! sealing, mark timers after.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
};

use packet::Endpoint;

use super::{ControlNotice, Device};
use crate::{
    constants::{REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME},
    index_table::Owner,
    keypair::{Keypair, Role},
    message::{DATA_OVERHEAD, Kind},
    path_mtu,
    peer::Peer,
    time::Time,
};

/// Counters in a row for packets to one peer, and all that sealing and sending
/// them takes.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// Whose `send` half seals them.
    pub keypair: Arc<Keypair>,
    /// The first counter; each packet has the next.
    pub counter: u64,
    /// Where they go.
    pub endpoint: Endpoint,
}

/// Datagrams that were sent.
#[derive(Clone, Copy, Debug)]
pub struct SentBatch {
    /// How many, of one reservation.
    pub packets: u64,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Bytes of the longest, which tells whether one was no keepalive.
    pub longest: usize,
}

/// Why nothing can be sent to a peer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// There is no session that carries data; a handshake was asked for, or a secret for one is
    /// being agreed on. Stage the packets.
    NoSession,
    /// Nobody knows where the peer is. Drop them.
    NoEndpoint,
}

impl Device {
    /// Reserves counters for `packets` packets to `peer`. Called by one thread,
    /// so that the order of counters is the order of packets.
    ///
    /// # Errors
    /// Nothing can be sent now.
    pub fn reserve(
        &self,
        peer: &Arc<Peer>,
        packets: u64,
        now: Time,
    ) -> Result<Reservation, ReserveError> {
        self.reserve_by(|keypair| keypair.carries_data, peer, packets, now)
    }

    /// Reserves a counter for a keepalive, which any session carries.
    ///
    /// # Errors
    /// Nothing can be sent now.
    pub fn reserve_keepalive(
        &self,
        peer: &Arc<Peer>,
        now: Time,
    ) -> Result<Reservation, ReserveError> {
        self.reserve_by(|_| true, peer, 1, now)
    }

    /// Whether there is a session with `peer` that carries no data: what is staged stays, and a
    /// keepalive has to confirm the session.
    pub fn is_data_withheld(&self, peer: &Peer, now: Time) -> bool {
        peer.live_keypair(now).is_some_and(|keypair| !keypair.carries_data)
    }

    fn reserve_by(
        &self,
        carries: impl FnOnce(&Keypair) -> bool,
        peer: &Arc<Peer>,
        packets: u64,
        now: Time,
    ) -> Result<Reservation, ReserveError> {
        let endpoint = peer.endpoint().ok_or(ReserveError::NoEndpoint)?;
        let keypair = peer.live_keypair(now);
        // That session is what a secret is agreed on by.
        if keypair.as_ref().is_some_and(|keypair| !carries(keypair)) {
            return Err(ReserveError::NoSession);
        }
        let reserved = keypair
            .and_then(|keypair| keypair.send.take(packets).map(|counter| (keypair, counter)));
        match reserved {
            Some((keypair, counter)) => Ok(Reservation { keypair, counter, endpoint }),
            None => {
                self.ask_for_handshake(peer, now);
                Err(ReserveError::NoSession)
            }
        }
    }

    /// Notes that packets to `peer` were staged behind others, without a try to
    /// reserve: as long as there is no session, they want one.
    pub fn handle_staged(&self, peer: &Arc<Peer>, now: Time) {
        if peer.live_keypair(now).is_none() {
            self.ask_for_handshake(peer, now);
        }
    }

    /// Notes that datagrams of a reservation were sent. Asks for a new handshake in time
    /// (kernel `keep_key_fresh`).
    pub fn handle_sent(
        &self,
        peer: &Arc<Peer>,
        reservation: &Reservation,
        sent: SentBatch,
        now: Time,
    ) {
        let SentBatch { packets, bytes, longest } = sent;
        peer.count_tx(bytes);
        let mut plan = peer.activity.sent(longest > DATA_OVERHEAD, self.events.are_on(), now);
        plan |= path_mtu::sent_long(peer, longest, now);
        if plan {
            self.control_mailbox.post(peer, ControlNotice::Replan);
        }
        let keypair = &reservation.keypair;
        let old = keypair.role == Role::Initiator && now.since(keypair.created) >= REKEY_AFTER_TIME;
        if old || reservation.counter.saturating_add(packets) > REKEY_AFTER_MESSAGES {
            self.ask_for_handshake(peer, now);
        }
    }

    /// Whether a datagram to `to` is one of our own to `peer`. It must not be sent to
    /// `peer` again: it would come back, wrapped once more, for ever. The index tells it
    /// from those of others who reach the same peer through us, and which are theirs.
    pub fn is_own(&self, peer: &Arc<Peer>, to: SocketAddr, datagram: &[u8]) -> bool {
        // Other traffic ends here, without a lock.
        let Some(kind) = Kind::of(datagram) else { return false };
        let at = |endpoint: Endpoint| {
            let remote = endpoint.remote.direct();
            remote.is_some_and(|remote| (remote.ip(), remote.port()) == (to.ip(), to.port()))
        };
        let Some(index) = datagram.get(4..8).and_then(|bytes| bytes.first_chunk()) else {
            return false;
        };
        let index = u32::from_le_bytes(*index);
        peer.endpoint().is_some_and(at)
            && match kind {
                Kind::Data => {
                    let keypairs = peer.keypairs.read().unwrap_or_else(PoisonError::into_inner);
                    keypairs.has_remote(index)
                }
                Kind::Initiation | Kind::Response => match self.indices().get(index) {
                    Some(Owner::Handshake(with)) => Arc::ptr_eq(with, peer),
                    Some(Owner::Session(session)) => Arc::ptr_eq(&session.peer, peer),
                    None => false,
                },
                Kind::CookieReply => false,
            }
    }

    pub(super) fn ask_for_handshake(&self, peer: &Arc<Peer>, now: Time) {
        if peer.activity.may_ask_for_handshake(now) {
            self.control_mailbox.post(peer, ControlNotice::Handshake);
        }
    }
}
