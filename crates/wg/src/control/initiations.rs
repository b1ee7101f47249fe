//! Initiations, several at a time: most of what one costs are three Diffie-Hellmans, of which eight
//! at once cost what two do one after the other.
//!
//! ```text
//!   arrived -> opened, together -> static keys of new peers, together -> newer timestamp
//!                              `-> no peer: looked up, where               -> ephemeral keys, together
//!                                  that is wanted (newcomers)                 -> response, next keypair
//! ```
//!
//! What a forged one costs is a Diffie-Hellman as ever: ephemeral keys are made for those that were
//! accepted.

use std::time::Duration;

use packet::Endpoint;
use rand_core::CryptoRng;

use super::{Control, entry::Entry};
use crate::{
    PrivateKey, PublicKey,
    constants::INITIATIONS_PER_SECOND,
    drops::DropReason,
    keypair::{Keypair, Role},
    message::{Initiation, Response},
    noise::{Ephemeral, Opened, Responder},
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

const TAG: usize = aead::TAG_LEN;
/// Of two initiations of one peer that are closer the second is refused.
pub(super) const INITIATIONS_APART: Duration =
    Duration::from_millis(1000 / INITIATIONS_PER_SECOND as u64);
/// What ours are apart at least: the peer counts from when it took the last one, which may have waited
/// for it.
pub(super) const OURS_APART: Duration = Duration::from_millis(2000 / INITIATIONS_PER_SECOND as u64);

/// An initiation whose mac1 is right.
#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub datagram: &'a [u8],
    pub message: Initiation<'a>,
    pub from: Endpoint,
    /// Whether its sender has proved by a cookie that it receives there.
    pub has_cookie: bool,
}

/// An initiation that is to be answered.
struct Accepted {
    key: PublicKey,
    responder: Responder,
    /// The sender's index.
    sender: u32,
}

impl<R: CryptoRng> Control<R> {
    /// An initiation, if its MACs let it in.
    pub(super) fn arrived<'a>(
        &mut self,
        datagram: &'a [u8],
        from: Endpoint,
        now: Time,
    ) -> Result<Arrived<'a>, DropReason> {
        let has_cookie = self.admit(datagram, from, now)?;
        let message = Initiation::parse(datagram).ok_or(DropReason::InMalformed)?;
        Ok(Arrived { datagram, message, from, has_cookie })
    }

    /// Answers what is to be answered, and counts the rest.
    pub(super) fn handle_initiations(&mut self, arrived: &[Arrived<'_>], now: Now) {
        if !arrived.is_empty() {
            stack::wiped(|| self.handle_each(arrived, now));
        }
    }

    fn handle_each(&mut self, arrived: &[Arrived<'_>], now: Now) {
        let Some(own) = &self.own else { return };
        let keys = arrived.iter().map(|Arrived { message, .. }| {
            (PublicKey::from(*message.ephemeral), message.static_key)
        });
        let opened = Opened::of_each(&own.identity, &keys.collect::<Vec<_>>());
        self.meet(&opened);
        // Of secrets nothing is moved, by growth or out of a list: copies would stay in the heap.
        let mut accepted = Vec::with_capacity(arrived.len());
        for (arrived, opened) in arrived.iter().zip(&opened) {
            let handled = self.accept(arrived, opened.as_ref(), now).map(|one| accepted.push(one));
            self.count(handled);
        }
        let responders = accepted.iter().map(|accepted| &accepted.responder);
        let ephemerals = Ephemeral::of_each(responders, &mut self.rng);
        for (accepted, ephemeral) in accepted.iter().zip(&ephemerals) {
            let handled = self.respond(accepted, ephemeral.as_ref(), now.time);
            self.count(handled);
        }
    }

    /// Computes what both static keys give of those that have not shaken hands yet.
    fn meet(&mut self, opened: &[Option<Opened>]) {
        let Some(own) = &self.own else { return };
        let remotes = opened.iter().flatten().map(|opened| opened.remote);
        let is_new = |key: &PublicKey| {
            self.peers.get(key).is_some_and(|entry| !entry.handshake.has_static_static())
        };
        let new: Vec<PublicKey> = remotes.filter(is_new).collect();
        let shared =
            PrivateKey::diffie_hellman_each(new.iter().map(|key| (&own.identity.private, key)));
        for (key, shared) in new.iter().zip(&shared) {
            if let (Some(entry), Some(shared)) = (self.peers.get_mut(key), shared) {
                entry.handshake.keep_static_static(shared);
            }
        }
    }

    fn accept(
        &mut self,
        arrived: &Arrived<'_>,
        opened: Option<&Opened>,
        now: Now,
    ) -> Result<Accepted, DropReason> {
        let opened = opened.ok_or(DropReason::HandshakeForged)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let key = opened.remote;
        let Some(entry) = self.peers.get_mut(&key) else {
            return Err(self.handle_newcomer(opened, arrived, now.time));
        };
        let static_static = entry
            .handshake
            .static_static(&own.identity, &entry.peer)
            .ok_or(DropReason::HandshakeForged)?;
        let mut timestamp = [0; TAI64N_LEN];
        let responder = opened
            .timestamp(&static_static, arrived.message.timestamp, &mut timestamp)
            .ok_or(DropReason::HandshakeForged)?;
        entry.admit_initiation(timestamp.into(), now.time)?;

        entry.peer.roam_to(arrived.from);
        self.device.events.heard(&entry.peer, arrived.from);
        entry.peer.count_rx(arrived.datagram.len());
        if entry.peer.endpoint().is_none() {
            return Err(DropReason::HandshakeNoEndpoint);
        }
        Ok(Accepted { key, responder, sender: arrived.message.sender })
    }

    /// Answers an initiation; the session waits as `next` for the peer's first
    /// data.
    fn respond(
        &mut self,
        &Accepted { key, ref responder, sender }: &Accepted,
        ephemeral: Option<&Ephemeral>,
        now: Time,
    ) -> Result<(), DropReason> {
        let ephemeral = ephemeral.ok_or(DropReason::HandshakeForged)?;
        let local_index = self.device.indices().unused(&mut self.rng);
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let entry = self.peers.get_mut(&key).ok_or(DropReason::HandshakeUnknownPeer)?;
        let combined = entry.key_for_response(&own.identity.public, now);
        let (secret, psk) =
            combined.as_ref().map_or((None, &entry.psk), |(id, psk)| (Some(*id), psk));
        let mut nothing = [0; TAG];
        let keys = responder.answer(psk, ephemeral, &[], &mut nothing);
        let message = Response {
            sender: local_index,
            receiver: sender,
            ephemeral: ephemeral.public.as_bytes(),
            nothing: &nothing,
        };
        let mut message = message.encode();
        entry.cookies.stamp(entry.peer.public_key(), &mut message, now);
        let keypair = Keypair::new(&keys, local_index, sender, Role::Responder, now)
            .with_secret(secret, self.post_quantum);
        self.begin_session(&key, keypair, now);
        self.send_handshake(&key, message, now);
        self.plan(&key, now);
        Ok(())
    }
}

impl Entry {
    /// Refuses an initiation that is a replay, or one of too many.
    fn admit_initiation(&mut self, timestamp: Tai64N, now: Time) -> Result<(), DropReason> {
        let handshake = &mut self.handshake;
        if timestamp <= handshake.greatest_received_timestamp
            || handshake.last_consumed.is_some_and(|last| now.since(last) < INITIATIONS_APART)
        {
            return Err(DropReason::HandshakeReplayed);
        }
        handshake.greatest_received_timestamp = timestamp;
        handshake.last_consumed = Some(now);
        let _ = self.peer.activity.received(false, now);
        Ok(())
    }
}
