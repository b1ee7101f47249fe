//! The protocol's steps of the outbound path: reserve counters before sealing, mark timers after
//! sending.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
};

use packet::Endpoint;

use super::{ControlNotice, Device, path_mtu};
use crate::{
    constants::{REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME},
    index_table::Owner,
    keypair::{Keypair, Role},
    message::{DATA_OVERHEAD, Kind},
    peer::Peer,
    time::Time,
};

/// Consecutive counters for packets to one peer, with the key and endpoint for them.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The keypair. Its `send` half seals the packets.
    pub keypair: Arc<Keypair>,
    /// The first counter. Each packet uses the next one.
    pub counter: u64,
    /// The endpoint to send to.
    pub endpoint: Endpoint,
}

/// Datagrams sent with one reservation.
#[derive(Clone, Copy, Debug)]
pub struct SentDatagrams {
    /// Number of datagrams.
    pub packets: u64,
    /// Total bytes of the datagrams.
    pub bytes: usize,
    /// Bytes of the longest datagram. A batch of keepalives has [`DATA_OVERHEAD`].
    pub longest: usize,
}

/// Reason why a peer cannot be sent data now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// No session can carry data. A handshake was requested, or the exchange of a post-quantum
    /// secret is in progress. Stage the packets.
    NoSession,
    /// The peer has no endpoint. Drop the packets.
    NoEndpoint,
}

impl Device {
    /// Reserves counters for `packets` packets to `peer`. Only one thread may call this, so that
    /// the order of counters is the order of packets.
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

    /// Reserves a counter for a keepalive, which any session may carry.
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

    /// Whether the session with `peer` must not carry data. Packets stay staged, and a keepalive
    /// confirms the session.
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
        // The post-quantum secret is exchanged in this session.
        if keypair.as_ref().is_some_and(|keypair| !carries(keypair)) {
            return Err(ReserveError::NoSession);
        }
        let reserved = keypair
            .and_then(|keypair| keypair.send.take(packets).map(|counter| (keypair, counter)));
        match reserved {
            Some((keypair, counter)) => Ok(Reservation { keypair, counter, endpoint }),
            None => {
                self.request_handshake(peer, now);
                Err(ReserveError::NoSession)
            }
        }
    }

    /// Records that packets were staged behind others without a call of [`Device::reserve`].
    /// Without a session this requests a handshake.
    pub fn handle_staged(&self, peer: &Arc<Peer>, now: Time) {
        if peer.live_keypair(now).is_none() {
            self.request_handshake(peer, now);
        }
    }

    /// Records sent datagrams of a reservation. Requests a new handshake in time (kernel
    /// `keep_key_fresh`).
    pub fn handle_sent(
        &self,
        peer: &Arc<Peer>,
        reservation: &Reservation,
        sent: SentDatagrams,
        now: Time,
    ) {
        let SentDatagrams { packets, bytes, longest } = sent;
        peer.count_tx(bytes);
        let mut plan = peer.activity.sent(longest > DATA_OVERHEAD, self.events.is_enabled(), now);
        plan |= path_mtu::note_long_data_sent(peer, longest, now);
        if plan {
            self.control_mailbox.post(peer, ControlNotice::Replan);
        }
        let keypair = &reservation.keypair;
        let old = keypair.role == Role::Initiator && now.since(keypair.created) >= REKEY_AFTER_TIME;
        if old || reservation.counter.saturating_add(packets) > REKEY_AFTER_MESSAGES {
            self.request_handshake(peer, now);
        }
    }

    /// Whether `datagram`, addressed to `to`, was sent by this device to `peer`. Sending it to
    /// `peer` again would wrap it once more, without end. The index distinguishes it from datagrams
    /// of other hosts that reach the same peer through this host.
    pub fn is_own(&self, peer: &Arc<Peer>, to: SocketAddr, datagram: &[u8]) -> bool {
        // Other traffic returns here, without a lock.
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

    pub(super) fn request_handshake(&self, peer: &Arc<Peer>, now: Time) {
        if peer.activity.can_request_handshake(now) {
            self.control_mailbox.post(peer, ControlNotice::Handshake);
        }
    }
}
