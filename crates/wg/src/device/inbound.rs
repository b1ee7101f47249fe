//! The protocol's steps of the inbound path: find the session before opening, record authentic
//! packets after.

use std::sync::{Arc, atomic::Ordering};

use packet::Endpoint;

use super::{ControlNotice, Device, OutboundNotice};
use crate::{
    constants::{KEEPALIVE_TIMEOUT, REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME, REKEY_TIMEOUT},
    drops::DropReason,
    index_table::{Owner, Session},
    keypair::Role,
    message::DataHeader,
    peer::Peer,
    time::Time,
};

/// Reason to refuse a data message before any cryptography.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// Its index belongs to no session.
    UnknownIndex,
    /// The session reached its time or message limit.
    Expired,
}

/// Messages received from one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessages {
    /// Total bytes of their datagrams.
    pub bytes: usize,
    /// Whether any of them is not a keepalive.
    pub has_data: bool,
    /// The endpoint that they came from.
    pub endpoint: Endpoint,
}

impl From<ReceiveError> for DropReason {
    fn from(reason: ReceiveError) -> Self {
        match reason {
            ReceiveError::UnknownIndex => Self::InUnknownIndex,
            ReceiveError::Expired => Self::InExpired,
        }
    }
}

impl Device {
    /// Returns the session of a message.
    ///
    /// # Errors
    /// The session is unknown or past its limits.
    pub fn session(&self, header: DataHeader, now: Time) -> Result<Session, ReceiveError> {
        let session = match self.indices().get(header.receiver) {
            Some(Owner::Session(session)) => session.clone(),
            Some(Owner::Handshake(_)) | None => return Err(ReceiveError::UnknownIndex),
        };
        session.receivable(header.counter, now)?;
        Ok(session)
    }

    /// Records new, authentic messages of `session`. The first ones confirm the session. A peer
    /// that roams moves to their endpoint.
    pub fn handle_received(&self, session: &Session, received: ReceivedMessages, now: Time) {
        let ReceivedMessages { bytes, has_data, endpoint } = received;
        let Session { peer, keypair } = session;
        if !keypair.confirmed.load(Ordering::Acquire)
            && !keypair.confirmed.swap(true, Ordering::AcqRel)
        {
            self.confirm(session);
        }
        peer.roam_to(endpoint);
        self.events.handle_received(peer, endpoint);
        peer.count_rx(bytes);
        if peer.activity.received(has_data, now) {
            self.control_mailbox.post(peer, ControlNotice::Replan);
        }
        self.renew_receiving_session(peer, now);
    }

    fn confirm(&self, Session { peer, keypair }: &Session) {
        let Some(displaced) = peer.with_keypairs(|keypairs| keypairs.confirm(keypair)) else {
            return;
        };
        self.retire(displaced.into_iter().flatten());
        self.control_mailbox.post(peer, ControlNotice::SessionConfirmed);
        self.outbound_mailbox.post(peer, OutboundNotice::Flush);
    }

    /// Renews the session of an initiator that only receives, before the session dies (paper 6.2;
    /// kernel `keep_key_fresh` of `receive.c`).
    fn renew_receiving_session(&self, peer: &Arc<Peer>, now: Time) {
        const RENEW_AFTER: std::time::Duration = REJECT_AFTER_TIME
            .checked_sub(KEEPALIVE_TIMEOUT)
            .expect("180 s are more than 10 s")
            .checked_sub(REKEY_TIMEOUT)
            .expect("170 s are more than 5 s");
        let old = peer.current_keypair().is_some_and(|current| {
            current.role == Role::Initiator && now.since(current.created) >= RENEW_AFTER
        });
        if old && peer.activity.take_last_minute() {
            self.request_handshake(peer, now);
        }
    }
}

impl Session {
    /// Checks whether the session may still receive a message.
    ///
    /// # Errors
    /// The session reached its time or message limit.
    pub fn receivable(&self, counter: u64, now: Time) -> Result<(), ReceiveError> {
        if now.since(self.keypair.created) >= REJECT_AFTER_TIME || counter >= REJECT_AFTER_MESSAGES
        {
            return Err(ReceiveError::Expired);
        }
        Ok(())
    }
}
