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
    PresharedKey, PrivateKey, PublicKey,
    constants::INITIATIONS_PER_SECOND,
    drops::DropReason,
    keypair::{Keypair, Role},
    message::{Initiation, Response},
    noise::{Answer, Claim, Ephemeral, Opened, Question, Responder, Secret},
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

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

/// An initiation in the name of a peer, which is not proved yet.
struct Claimed<'a> {
    arrived: &'a Arrived<'a>,
    opened: &'a Opened,
    static_static: Secret,
}

/// An initiation that is to be answered.
struct Accepted<'a> {
    key: PublicKey,
    responder: &'a Responder,
    /// The sender's index.
    sender: u32,
}

/// By what an initiation is answered.
struct Means<'a> {
    ephemeral: &'a Ephemeral,
    /// The number of the secret against quantum computers in the preshared key.
    secret: Option<u32>,
    psk: PresharedKey,
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
            stack::run_and_wipe(|| self.handle_each(arrived, now));
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
        let mut claimed = Vec::with_capacity(arrived.len());
        for (arrived, opened) in arrived.iter().zip(&opened) {
            let claim = self.claim(arrived, opened.as_ref(), now).map(|claim| claimed.push(claim));
            self.count(claim);
        }
        let claims: Vec<Claim<'_>> = claimed.iter().map(Claimed::claim).collect();
        let proved = Claim::prove_each(&claims);
        let mut accepted = Vec::with_capacity(claimed.len());
        for (claimed, proved) in claimed.iter().zip(&proved) {
            let handled = self.accept(claimed, proved.as_ref(), now).map(|one| accepted.push(one));
            self.count(handled);
        }
        self.answer(&accepted, now.time);
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

    fn claim<'a>(
        &mut self,
        arrived: &'a Arrived<'a>,
        opened: Option<&'a Opened>,
        now: Now,
    ) -> Result<Claimed<'a>, DropReason> {
        let opened = opened.ok_or(DropReason::HandshakeForged)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let Some(entry) = self.peers.get_mut(&opened.remote) else {
            return Err(self.handle_newcomer(opened, arrived, now.time));
        };
        let static_static = entry
            .handshake
            .static_static(&own.identity, &entry.peer)
            .ok_or(DropReason::HandshakeForged)?;
        Ok(Claimed { arrived, opened, static_static })
    }

    fn accept<'a>(
        &mut self,
        &Claimed { arrived, opened, .. }: &Claimed<'_>,
        proved: Option<&'a ([u8; TAI64N_LEN], Responder)>,
        now: Now,
    ) -> Result<Accepted<'a>, DropReason> {
        let (timestamp, responder) = proved.ok_or(DropReason::HandshakeForged)?;
        let key = opened.remote;
        let entry = self.peers.get_mut(&key).ok_or(DropReason::HandshakeUnknownPeer)?;
        entry.admit_initiation((*timestamp).into(), now.time)?;

        entry.peer.roam_to(arrived.from);
        self.device.events.heard(&entry.peer, arrived.from);
        entry.peer.count_rx(arrived.datagram.len());
        if entry.peer.endpoint().is_none() {
            return Err(DropReason::HandshakeNoEndpoint);
        }
        Ok(Accepted { key, responder, sender: arrived.message.sender })
    }

    /// Answers initiations; each session waits as `next` for the peer's first data.
    fn answer(&mut self, accepted: &[Accepted<'_>], now: Time) {
        let responders = accepted.iter().map(|accepted| accepted.responder);
        let ephemerals = Ephemeral::of_each(responders, &mut self.rng);
        let mut answered = Vec::with_capacity(accepted.len());
        for (accepted, ephemeral) in accepted.iter().zip(&ephemerals) {
            let means = self.means(accepted, ephemeral.as_ref(), now);
            let means = means.map(|means| answered.push((accepted, means)));
            self.count(means);
        }
        let questions = answered.iter().map(|(accepted, means)| Question {
            responder: accepted.responder,
            ephemeral: means.ephemeral,
            psk: &means.psk,
        });
        let answers = Answer::each(&questions.collect::<Vec<_>>(), &[]);
        for ((accepted, means), answer) in answered.iter().zip(&answers) {
            self.respond(accepted, means, answer, now);
        }
    }

    fn means<'a>(
        &mut self,
        accepted: &Accepted<'_>,
        ephemeral: Option<&'a Ephemeral>,
        now: Time,
    ) -> Result<Means<'a>, DropReason> {
        let ephemeral = ephemeral.ok_or(DropReason::HandshakeForged)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let entry = self.peers.get_mut(&accepted.key).ok_or(DropReason::HandshakeUnknownPeer)?;
        let (secret, psk) = match entry.key_for_response(&own.identity.public, now) {
            Some((secret, psk)) => (Some(secret), psk),
            None => (None, entry.psk.clone()),
        };
        Ok(Means { ephemeral, secret, psk })
    }

    fn respond(&mut self, accepted: &Accepted<'_>, means: &Means<'_>, answer: &Answer, now: Time) {
        let local_index = self.device.indices().unused(&mut self.rng);
        let Some(entry) = self.peers.get_mut(&accepted.key) else { return };
        let message = Response {
            sender: local_index,
            receiver: accepted.sender,
            ephemeral: means.ephemeral.public.as_bytes(),
            nothing: answer.sealed.as_slice().try_into().expect("a tag alone, of an empty payload"),
        };
        let mut message = message.encode();
        entry.cookies.stamp(entry.peer.public_key(), &mut message, now);
        let keypair =
            Keypair::new(&answer.keys, local_index, accepted.sender, Role::Responder, now)
                .with_secret(means.secret, self.post_quantum);
        self.begin_session(&accepted.key, keypair, now);
        self.send_handshake(&accepted.key, message, now);
        self.plan(&accepted.key, now);
    }
}

impl Claimed<'_> {
    fn claim(&self) -> Claim<'_> {
        let Claimed { arrived, opened, static_static } = self;
        Claim { opened, static_static, sealed: arrived.message.timestamp }
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
