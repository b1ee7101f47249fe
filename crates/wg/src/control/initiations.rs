//! Handles several initiations at once. Most of the cost of one is three Diffie-Hellman operations,
//! and eight computed together cost as much as two computed separately.
//!
//! ```text
//!   parse_initiation -> static keys opened, together -> Diffie-Hellmans with new peers, together
//!        -> newer timestamp -> ephemeral keys, together -> response, next keypair
//!
//!   no peer, and peer lookup is on: unknown_senders
//! ```
//!
//! A forged initiation still costs one Diffie-Hellman operation: ephemeral keys are made only for
//! accepted ones.

use std::time::Duration;

use crypto::noise::{
    Claim, Ephemeral, OpenedInitiation, Responder, ResponseRequest, SealedResponse, Secret,
};
use packet::Endpoint;
use rand_core::CryptoRng;

use super::{Control, entry::Entry};
use crate::{
    PresharedKey, PrivateKey, PublicKey,
    constants::INITIATIONS_PER_SECOND,
    drops::DropReason,
    keypair::{Keypair, Role},
    message::{Initiation, Response},
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

/// Minimum interval between two initiations of one peer. An initiation before its end is refused.
pub(super) const MIN_INITIATION_INTERVAL: Duration =
    Duration::from_millis(1000 / INITIATIONS_PER_SECOND as u64);
/// Minimum interval between our own initiations. It is longer because the peer counts from the time
/// when it handled the last one, which may have been delayed.
pub(super) const MIN_OWN_INITIATION_INTERVAL: Duration =
    Duration::from_millis(2000 / INITIATIONS_PER_SECOND as u64);

/// An initiation with a valid mac1.
#[derive(Clone, Copy)]
pub(super) struct ReceivedInitiation<'a> {
    pub datagram: &'a [u8],
    pub message: Initiation<'a>,
    pub from: Endpoint,
    /// Whether a cookie proves that the sender receives at `from`.
    pub has_cookie: bool,
}

/// An initiation that names a peer as its sender, without proof yet.
struct ClaimedInitiation<'a> {
    received: &'a ReceivedInitiation<'a>,
    opened: &'a OpenedInitiation,
    static_static: Secret,
}

/// An initiation that will be answered.
struct AcceptedInitiation<'a> {
    key: PublicKey,
    responder: &'a Responder,
    /// The sender's index.
    sender: u32,
}

/// Inputs of a response.
struct ResponseInputs<'a> {
    ephemeral: &'a Ephemeral,
    /// ID of the post-quantum secret in the preshared key.
    secret: Option<u32>,
    psk: PresharedKey,
}

impl<R: CryptoRng> Control<R> {
    /// Checks the MACs of an initiation and parses it.
    pub(super) fn parse_initiation<'a>(
        &mut self,
        datagram: &'a [u8],
        from: Endpoint,
        now: Time,
    ) -> Result<ReceivedInitiation<'a>, DropReason> {
        let has_cookie = self.admit(datagram, from, now)?;
        let message = Initiation::parse(datagram).ok_or(DropReason::InMalformed)?;
        Ok(ReceivedInitiation { datagram, message, from, has_cookie })
    }

    /// Answers the accepted initiations and counts the others.
    pub(super) fn handle_initiations(&mut self, received: &[ReceivedInitiation<'_>], now: Now) {
        if !received.is_empty() {
            stack::run_and_wipe(|| self.handle_batch(received, now));
        }
    }

    fn handle_batch(&mut self, received: &[ReceivedInitiation<'_>], now: Now) {
        let Some(own) = &self.own else { return };
        let keys = received.iter().map(|ReceivedInitiation { message, .. }| {
            (PublicKey::from(*message.ephemeral), message.static_key)
        });
        let opened = OpenedInitiation::open_each(&own.identity, &keys.collect::<Vec<_>>());
        self.compute_static_static(&opened);
        // Secrets are not moved, neither by a growing vector nor out of one: copies would remain in
        // the heap.
        let mut claimed = Vec::with_capacity(received.len());
        for (received, opened) in received.iter().zip(&opened) {
            let claim = self.claim(received, opened.as_ref(), now).map(|claim| claimed.push(claim));
            self.count(claim);
        }
        let claims: Vec<Claim<'_>> = claimed.iter().map(ClaimedInitiation::claim).collect();
        let proved = Claim::prove_each(&claims);
        let mut accepted = Vec::with_capacity(claimed.len());
        for (claimed, proved) in claimed.iter().zip(&proved) {
            let handled = self.accept(claimed, proved.as_ref(), now).map(|one| accepted.push(one));
            self.count(handled);
        }
        self.answer(&accepted, now.time);
    }

    /// Computes the Diffie-Hellman results of both static keys for peers without one.
    fn compute_static_static(&mut self, opened: &[Option<OpenedInitiation>]) {
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
                entry.handshake.set_static_static(shared);
            }
        }
    }

    fn claim<'a>(
        &mut self,
        received: &'a ReceivedInitiation<'a>,
        opened: Option<&'a OpenedInitiation>,
        now: Now,
    ) -> Result<ClaimedInitiation<'a>, DropReason> {
        let opened = opened.ok_or(DropReason::HandshakeForged)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let Some(entry) = self.peers.get_mut(&opened.remote) else {
            return Err(self.handle_unknown_sender(opened, received, now.time));
        };
        let static_static = entry
            .handshake
            .static_static(&own.identity, &entry.peer)
            .ok_or(DropReason::HandshakeForged)?;
        Ok(ClaimedInitiation { received, opened, static_static })
    }

    fn accept<'a>(
        &mut self,
        &ClaimedInitiation { received, opened, .. }: &ClaimedInitiation<'_>,
        proved: Option<&'a ([u8; TAI64N_LEN], Responder)>,
        now: Now,
    ) -> Result<AcceptedInitiation<'a>, DropReason> {
        let (timestamp, responder) = proved.ok_or(DropReason::HandshakeForged)?;
        let key = opened.remote;
        let entry = self.peers.get_mut(&key).ok_or(DropReason::HandshakeUnknownPeer)?;
        entry.admit_initiation((*timestamp).into(), now.time)?;

        entry.peer.roam_to(received.from);
        self.device.events.handle_received(&entry.peer, received.from);
        entry.peer.count_rx(received.datagram.len());
        if entry.peer.endpoint().is_none() {
            return Err(DropReason::HandshakeNoEndpoint);
        }
        Ok(AcceptedInitiation { key, responder, sender: received.message.sender })
    }

    /// Answers initiations. Each new session waits as `next` for the peer's first data.
    fn answer(&mut self, accepted: &[AcceptedInitiation<'_>], now: Time) {
        let responders = accepted.iter().map(|accepted| accepted.responder);
        let ephemerals = Ephemeral::generate_each(responders, &mut self.rng);
        let mut answered = Vec::with_capacity(accepted.len());
        for (accepted, ephemeral) in accepted.iter().zip(&ephemerals) {
            let inputs = self.response_inputs(accepted, ephemeral.as_ref(), now);
            let inputs = inputs.map(|inputs| answered.push((accepted, inputs)));
            self.count(inputs);
        }
        let questions = answered.iter().map(|(accepted, inputs)| ResponseRequest {
            responder: accepted.responder,
            ephemeral: inputs.ephemeral,
            psk: &inputs.psk,
        });
        let answers = SealedResponse::seal_each(&questions.collect::<Vec<_>>(), &[]);
        for ((accepted, inputs), answer) in answered.iter().zip(&answers) {
            self.respond(accepted, inputs, answer, now);
        }
    }

    fn response_inputs<'a>(
        &mut self,
        accepted: &AcceptedInitiation<'_>,
        ephemeral: Option<&'a Ephemeral>,
        now: Time,
    ) -> Result<ResponseInputs<'a>, DropReason> {
        let ephemeral = ephemeral.ok_or(DropReason::HandshakeForged)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let entry = self.peers.get_mut(&accepted.key).ok_or(DropReason::HandshakeUnknownPeer)?;
        let (secret, psk) = match entry.key_for_response(&own.identity.public, now) {
            Some((secret, psk)) => (Some(secret), psk),
            None => (None, entry.psk.clone()),
        };
        Ok(ResponseInputs { ephemeral, secret, psk })
    }

    fn respond(
        &mut self,
        accepted: &AcceptedInitiation<'_>,
        inputs: &ResponseInputs<'_>,
        answer: &SealedResponse,
        now: Time,
    ) {
        let local_index = self.device.indices().unused(&mut self.rng);
        let Some(entry) = self.peers.get_mut(&accepted.key) else { return };
        let message = Response {
            sender: local_index,
            receiver: accepted.sender,
            ephemeral: inputs.ephemeral.public.as_bytes(),
            encrypted_nothing: answer
                .sealed
                .as_slice()
                .try_into()
                .expect("the payload is empty, so only the tag remains"),
        };
        let mut message = message.encode();
        entry.cookies.stamp(entry.peer.public_key(), &mut message, now);
        let keypair =
            Keypair::new(&answer.keys, local_index, accepted.sender, Role::Responder, now)
                .with_secret(inputs.secret, self.post_quantum);
        self.begin_session(&accepted.key, keypair, now);
        self.send_handshake(&accepted.key, message, now);
        self.plan(&accepted.key, now);
    }
}

impl ClaimedInitiation<'_> {
    fn claim(&self) -> Claim<'_> {
        let ClaimedInitiation { received, opened, static_static } = self;
        Claim { opened, static_static, sealed: received.message.timestamp }
    }
}

impl Entry {
    /// Refuses a replayed initiation, and one that exceeds the rate limit.
    fn admit_initiation(&mut self, timestamp: Tai64N, now: Time) -> Result<(), DropReason> {
        let handshake = &mut self.handshake;
        if timestamp <= handshake.greatest_received_timestamp
            || handshake.last_consumed.is_some_and(|last| now.since(last) < MIN_INITIATION_INTERVAL)
        {
            return Err(DropReason::HandshakeReplayed);
        }
        handshake.greatest_received_timestamp = timestamp;
        handshake.last_consumed = Some(now);
        let _ = self.peer.activity.received(false, now);
        Ok(())
    }
}
