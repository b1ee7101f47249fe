//! Handshake messages, in both roles.
//!
//! ```text
//!   handle_datagram -> mac1 -> under load? -> cookie reply, or limiter
//!        |-> initiation -> known peer, newer timestamp -> response, next keypair
//!        |              `-> no peer: looked up, where that is wanted (newcomers)
//!        |-> response   -> pending initiation          -> current keypair
//!        `-> cookie reply -> the peer's cookie jar
//! ```

use std::{sync::Arc, time::Duration};

use packet::Endpoint;
use rand_core::CryptoRng;

use super::{
    Control,
    entry::{Entry, Pending},
};
use crate::{
    PrivateKey, PublicKey,
    constants::{INITIATIONS_PER_SECOND, REKEY_TIMEOUT},
    cookie::MacState,
    device::OutboundNotice,
    drops::DropReason,
    events::PeerEvent,
    index_table::{self, Session},
    keypair::{Keypair, Role},
    message::{CookieReply, Handshake, Initiation, Kind, Response},
    noise::{Initiator, Opened, Responder, Statics, TransportKeys},
    peer::Peer,
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

const TAG: usize = aead::TAG_LEN;
/// Of two initiations of one peer that are closer the second is refused.
pub(super) const INITIATIONS_APART: Duration =
    Duration::from_millis(1000 / INITIATIONS_PER_SECOND as u64);

/// An initiation whose mac1 is right.
#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub datagram: &'a [u8],
    pub from: Endpoint,
    /// Whether its sender has proved by a cookie that it receives there.
    pub has_cookie: bool,
}

impl<R: CryptoRng> Control<R> {
    /// Takes a datagram that is no transport data. What is not to be answered is
    /// counted.
    pub fn handle_datagram(&mut self, datagram: &[u8], from: Endpoint, now: Now) {
        let handled = match Kind::of(datagram) {
            _ if !self.running => Ok(()),
            Some(Kind::Initiation) => self.admit(datagram, from, now.time).and_then(|has_cookie| {
                let arrived = Arrived { datagram, from, has_cookie };
                stack::wiped(|| self.handle_initiation(&arrived, now))
            }),
            Some(Kind::Response) => self
                .admit(datagram, from, now.time)
                .and_then(|_| stack::wiped(|| self.handle_response(datagram, from, now))),
            Some(Kind::CookieReply) => self.handle_cookie_reply(datagram, now.time),
            Some(Kind::Data) | None => Err(DropReason::InMalformed),
        };
        if let Err(reason) = handled {
            self.device.drops.count(reason, 1);
        }
    }

    /// Checks the MACs, and under load that the sender receives at its address
    /// and has not used up its share. Returns whether it has a cookie.
    fn admit(&mut self, message: &[u8], from: Endpoint, now: Time) -> Result<bool, DropReason> {
        let Some(own) = &mut self.own else { return Err(DropReason::HandshakeNoKey) };
        let loaded = self.loaded_until.is_some_and(|until| now < until);
        match own.checker.check(message, from.remote, now) {
            MacState::Invalid => Err(DropReason::HandshakeInvalidMac),
            macs if !loaded => Ok(macs == MacState::Mac2),
            MacState::Mac2 if self.limiter.allow(from.remote, now) => Ok(true),
            MacState::Mac2 => Err(DropReason::HandshakeRateLimited),
            MacState::Mac1 => {
                self.send_cookie(message, from, now);
                Err(DropReason::HandshakeCookieSent)
            }
        }
    }

    pub(super) fn send_cookie(&mut self, message: &[u8], from: Endpoint, now: Time) {
        let Some(own) = &mut self.own else { return };
        // Both kinds of message have the sender's index there.
        let sender = message[4..].first_chunk().map(|index| u32::from_le_bytes(*index));
        let reply = sender
            .and_then(|sender| own.checker.reply(message, sender, from.remote, now, &mut self.rng));
        self.transmits.extend(reply.map(|reply| (reply, from)));
    }

    pub(super) fn handle_initiation(
        &mut self,
        arrived: &Arrived<'_>,
        now: Now,
    ) -> Result<(), DropReason> {
        let Arrived { datagram, from, .. } = *arrived;
        let message = Initiation::parse(datagram).ok_or(DropReason::InMalformed)?;
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let opened = Opened::of(&own.identity, &(*message.ephemeral).into(), message.static_key)
            .ok_or(DropReason::HandshakeForged)?;
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
            .timestamp(&static_static, message.timestamp, &mut timestamp)
            .ok_or(DropReason::HandshakeForged)?;
        entry.admit_initiation(timestamp.into(), now.time)?;

        entry.peer.roam_to(from);
        self.device.events.heard(&entry.peer, from);
        entry.peer.count_rx(datagram.len());
        if entry.peer.endpoint().is_none() {
            return Err(DropReason::HandshakeNoEndpoint);
        }
        self.respond(&key, responder, message.sender, now.time)?;
        self.plan(&key, now.time);
        Ok(())
    }

    /// Answers an initiation; the session waits as `next` for the peer's first
    /// data.
    fn respond(
        &mut self,
        key: &PublicKey,
        responder: Responder,
        remote_index: u32,
        now: Time,
    ) -> Result<(), DropReason> {
        let ephemeral = PrivateKey::generate(&mut self.rng);
        let local_index = self.device.indices().unused(&mut self.rng);
        let entry = self.peers.get_mut(key).ok_or(DropReason::HandshakeUnknownPeer)?;
        let mut nothing = [0; TAG];
        let (keys, public) = responder
            .answer(&entry.psk, &ephemeral, &[], &mut nothing)
            .ok_or(DropReason::HandshakeForged)?;
        let message = Response {
            sender: local_index,
            receiver: remote_index,
            ephemeral: public.as_bytes(),
            nothing: &nothing,
        };
        let mut message = message.encode();
        entry.cookies.stamp(entry.peer.public_key(), &mut message, now);
        let keypair = Keypair::new(&keys, local_index, remote_index, Role::Responder, now);
        self.begin_session(key, keypair, now);
        self.send_handshake(key, message, now);
        Ok(())
    }

    fn handle_response(
        &mut self,
        datagram: &[u8],
        from: Endpoint,
        now: Now,
    ) -> Result<(), DropReason> {
        let message = Response::parse(datagram).ok_or(DropReason::InMalformed)?;
        let peer = match self.device.indices().get(message.receiver) {
            Some(index_table::Owner::Handshake(peer)) => peer.clone(),
            _ => return Err(DropReason::HandshakeUnexpected),
        };
        let own = self.own.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let key = *peer.public_key();
        let entry = self.peers.get_mut(&key).ok_or(DropReason::HandshakeUnknownPeer)?;
        let (index, initiator, since) = match &entry.handshake.pending {
            Some(pending) if pending.index == message.receiver => {
                (pending.index, &pending.initiator, pending.since)
            }
            _ => return Err(DropReason::HandshakeUnexpected),
        };
        let ephemeral = (*message.ephemeral).into();
        let keys: TransportKeys = initiator
            .finish(&own.identity, &entry.psk, &ephemeral, message.nothing, &mut [])
            .ok_or(DropReason::HandshakeForged)?;

        entry.handshake.pending = None;
        self.device.handshakes.count(now.time.since(since));
        peer.roam_to(from);
        self.device.events.heard(&peer, from);
        peer.count_rx(datagram.len());
        let _ = peer.activity.received(false, now.time);
        let keypair = Keypair::new(&keys, index, message.sender, Role::Initiator, now.time);
        self.begin_session(&key, keypair, now.time);
        self.handshake_completed(&key, now);
        // The responder sends nothing until it hears from us.
        self.device.for_outbound.post(&peer, OutboundNotice::Keepalive);
        self.plan(&key, now.time);
        Ok(())
    }

    fn handle_cookie_reply(&mut self, datagram: &[u8], now: Time) -> Result<(), DropReason> {
        let message = CookieReply::parse(datagram).ok_or(DropReason::InMalformed)?;
        let key = match self.device.indices().get(message.receiver) {
            Some(index_table::Owner::Handshake(peer)) => *peer.public_key(),
            Some(index_table::Owner::Session(session)) => *session.peer.public_key(),
            None => return Err(DropReason::HandshakeUnexpected),
        };
        let entry = self.peers.get_mut(&key).ok_or(DropReason::HandshakeUnknownPeer)?;
        if entry.cookies.handle_reply(entry.peer.public_key(), &message, now) {
            Ok(())
        } else {
            Err(DropReason::HandshakeForged)
        }
    }

    fn begin_session(&mut self, key: &PublicKey, keypair: Keypair, now: Time) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        let keypair = Arc::new(keypair);
        let session = Session { peer: entry.peer.clone(), keypair: keypair.clone() };
        let index = keypair.local_index;
        self.device.indices_mut().set(index, index_table::Owner::Session(session));
        let displaced = entry.peer.with_keypairs(|keypairs| keypairs.begin(keypair));
        self.device.retire(displaced.into_iter().flatten());
        entry.timers.session_derived(now);
    }

    /// Both sides have the keys.
    pub(super) fn handshake_completed(&mut self, key: &PublicKey, now: Now) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        entry.timers.retransmit = None;
        entry.timers.attempt_began = None;
        entry.peer.activity.hold_handshakes(None);
        entry.peer.activity.handshake_completed();
        entry.last_handshake = Some(now.wall);
        self.device.events.post(&entry.peer, PeerEvent::HandshakeDone);
        entry.path.handle_session(self.reach, &self.device, now.time);
    }

    /// Begins a handshake, unless one is on its way already.
    pub(super) fn initiate(&mut self, key: &PublicKey, now: Now) {
        let jitter = self.jitter();
        let Some(entry) = self.peers.get_mut(key) else { return };
        if !self.running {
            return;
        }
        entry.timers.attempt_began = Some(now.time);
        if entry.timers.retransmit.is_some() {
            return;
        }
        self.device.events.post(&entry.peer, PeerEvent::Wanted);
        match entry.timers.last_handshake_sent.map(|sent| sent + REKEY_TIMEOUT) {
            Some(earliest) if now.time < earliest => {
                let at = earliest + jitter;
                entry.timers.retransmit = Some(at);
                entry.peer.activity.hold_handshakes(Some(at));
            }
            _ => self.send_initiation(key, now),
        }
    }

    pub(super) fn send_initiation(&mut self, key: &PublicKey, now: Now) {
        let Some((message, peer)) = stack::wiped(|| self.initiation(key, now)) else { return };
        let retransmit = now.time + REKEY_TIMEOUT + self.jitter();
        peer.activity.hold_handshakes(Some(retransmit));
        if let Some(entry) = self.peers.get_mut(key) {
            entry.timers.retransmit = Some(retransmit);
        }
        self.send_handshake(key, message, now.time);
    }

    /// Writes an initiation, which becomes the pending one.
    fn initiation(&mut self, key: &PublicKey, now: Now) -> Option<(Handshake, Arc<Peer>)> {
        let own = self.own.as_ref()?;
        let entry = self.peers.get_mut(key)?;
        entry.peer.endpoint()?;
        let static_static = entry.handshake.static_static(&own.identity, &entry.peer)?;
        let timestamp = Tai64N::after(entry.handshake.last_sent_timestamp, now.wall);
        let mut sealed = [0; TAI64N_LEN + TAG];
        let statics = Statics { identity: &own.identity, remote: key, shared: &static_static };
        let ephemeral = PrivateKey::generate(&mut self.rng);
        let (initiator, parts) =
            Initiator::start(statics, ephemeral, timestamp.as_bytes(), &mut sealed)?;
        entry.handshake.last_sent_timestamp = timestamp;

        let mut indices = self.device.indices_mut();
        let index = indices.unused(&mut self.rng);
        indices.set(index, index_table::Owner::Handshake(entry.peer.clone()));
        let pending =
            Box::new(Pending { index, initiator, since: now.time, rx_bytes: entry.rx_bytes() });
        if let Some(old) = entry.handshake.pending.replace(pending) {
            indices.remove(old.index);
        }
        let message = Initiation {
            sender: index,
            ephemeral: parts.ephemeral.as_bytes(),
            static_key: &parts.static_key,
            timestamp: &sealed,
        };
        let mut message = message.encode();
        entry.cookies.stamp(entry.peer.public_key(), &mut message, now.time);
        Some((message, entry.peer.clone()))
    }

    fn send_handshake(&mut self, key: &PublicKey, message: Handshake, now: Time) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        let Some(endpoint) = entry.peer.endpoint() else { return };
        entry.timers.last_handshake_sent = Some(now);
        let _ = entry.peer.activity.sent(false, false, now);
        entry.peer.count_tx(message.as_bytes().len());
        self.transmits.push_back((message, endpoint));
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
