//! Handshake messages, in both roles.
//!
//! ```text
//!   handle_datagram -> mac1 -> under load? -> cookie reply, or limiter
//!        |-> initiation -> known peer, newer timestamp -> response, next keypair
//!        |-> response   -> pending initiation          -> current keypair
//!        `-> cookie reply -> the peer's cookie jar
//! ```

use std::sync::Arc;

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
    index_table::{self, Session},
    keypair::{Keypair, Role},
    message::{CookieReply, Handshake, Initiation, Kind, Response},
    noise::{Initiator, Opened, Responder, TransportKeys},
    peer::Peer,
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

const TAG: usize = aead::TAG_LEN;

impl<R: CryptoRng> Control<R> {
    /// Takes a datagram that is no transport data. What is not to be answered is
    /// counted.
    pub fn handle_datagram(&mut self, datagram: &[u8], from: Endpoint, now: Now) {
        let handled = match Kind::of(datagram) {
            _ if !self.running => Ok(()),
            Some(Kind::Initiation) => self
                .admit(datagram, from, now.time)
                .and_then(|()| stack::wiped(|| self.handle_initiation(datagram, from, now))),
            Some(Kind::Response) => self
                .admit(datagram, from, now.time)
                .and_then(|()| stack::wiped(|| self.handle_response(datagram, from, now))),
            Some(Kind::CookieReply) => self.handle_cookie_reply(datagram, now.time),
            Some(Kind::Data) | None => Err(DropReason::InMalformed),
        };
        if let Err(reason) = handled {
            self.device.drops.count(reason, 1);
        }
    }

    /// Checks the MACs, and under load that the sender receives at its address
    /// and has not used up its share.
    fn admit(&mut self, message: &[u8], from: Endpoint, now: Time) -> Result<(), DropReason> {
        let Some(local) = &mut self.local else { return Err(DropReason::HandshakeNoKey) };
        let loaded = self.loaded_until.is_some_and(|until| now < until);
        match local.checker.check(message, from.remote, now) {
            MacState::Invalid => Err(DropReason::HandshakeInvalidMac),
            _ if !loaded => Ok(()),
            MacState::Mac2 if self.limiter.allow(from.remote.ip(), now) => Ok(()),
            MacState::Mac2 => Err(DropReason::HandshakeRateLimited),
            MacState::Mac1 => {
                // Both kinds of message have the sender's index there.
                let sender = message[4..].first_chunk().map(|index| u32::from_le_bytes(*index));
                let reply = sender.and_then(|sender| {
                    local.checker.reply(message, sender, from.remote, now, &mut self.rng)
                });
                self.transmits.extend(reply.map(|reply| (reply, from)));
                Err(DropReason::HandshakeCookieSent)
            }
        }
    }

    fn handle_initiation(
        &mut self,
        datagram: &[u8],
        from: Endpoint,
        now: Now,
    ) -> Result<(), DropReason> {
        let message = Initiation::parse(datagram).ok_or(DropReason::InMalformed)?;
        let local = self.local.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let opened = Opened::of(&local.identity, &(*message.ephemeral).into(), message.static_key)
            .ok_or(DropReason::HandshakeForged)?;
        let name = opened.remote;
        let entry = self.peers.get_mut(&name).ok_or(DropReason::HandshakeUnknownPeer)?;
        let static_static = entry
            .handshake
            .static_static(&local.identity, &entry.peer)
            .ok_or(DropReason::HandshakeForged)?;
        let mut timestamp = [0; TAI64N_LEN];
        let responder = opened
            .timestamp(&static_static, (message.timestamp, &mut timestamp))
            .ok_or(DropReason::HandshakeForged)?;
        entry.admit_initiation(timestamp.into(), now.time)?;

        entry.peer.set_endpoint(from);
        entry.peer.count_rx(datagram.len());
        self.respond(&name, responder, message.sender, now.time)?;
        self.plan(&name, now.time);
        Ok(())
    }

    /// Answers an initiation; the session waits as `next` for the peer's first
    /// data.
    fn respond(
        &mut self,
        name: &PublicKey,
        responder: Responder,
        remote_index: u32,
        now: Time,
    ) -> Result<(), DropReason> {
        let ephemeral = PrivateKey::generate(&mut self.rng);
        let local_index = self.device.indices().unused(&mut self.rng);
        let entry = self.peers.get_mut(name).ok_or(DropReason::HandshakeUnknownPeer)?;
        let mut nothing = [0; TAG];
        let (keys, public) = responder
            .answer(&entry.psk, &ephemeral, (&[], &mut nothing))
            .ok_or(DropReason::HandshakeForged)?;
        let message = Response {
            sender: local_index,
            receiver: remote_index,
            ephemeral: public.as_bytes(),
            nothing: &nothing,
        };
        let mut message = message.encode();
        entry.cookies.stamp(&mut message, now);
        let keypair = Keypair::new(&keys, local_index, remote_index, Role::Responder, now);
        self.begin_session(name, keypair, now);
        self.send_handshake(name, message, now);
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
            Some(index_table::Entry::Handshake(peer)) => peer.clone(),
            _ => return Err(DropReason::HandshakeUnexpected),
        };
        let local = self.local.as_ref().ok_or(DropReason::HandshakeNoKey)?;
        let name = *peer.public_key();
        let entry = self.peers.get_mut(&name).ok_or(DropReason::HandshakeUnknownPeer)?;
        let (index, initiator, since) = match &entry.handshake.pending {
            Some(pending) if pending.index == message.receiver => {
                (pending.index, &pending.initiator, pending.since)
            }
            _ => return Err(DropReason::HandshakeUnexpected),
        };
        let ephemeral = (*message.ephemeral).into();
        let keys: TransportKeys = initiator
            .finish(&local.identity, &entry.psk, &ephemeral, (message.nothing, &mut []))
            .ok_or(DropReason::HandshakeForged)?;

        entry.handshake.pending = None;
        self.device.handshakes.count(now.time.since(since));
        peer.set_endpoint(from);
        peer.count_rx(datagram.len());
        let _ = peer.activity.received(false, now.time);
        let keypair = Keypair::new(&keys, index, message.sender, Role::Initiator, now.time);
        self.begin_session(&name, keypair, now.time);
        self.handshake_completed(&name, now);
        // The responder sends nothing until it hears from us.
        self.device.for_outbound.post(&peer, OutboundNotice::Keepalive);
        self.plan(&name, now.time);
        Ok(())
    }

    fn handle_cookie_reply(&mut self, datagram: &[u8], now: Time) -> Result<(), DropReason> {
        let message = CookieReply::parse(datagram).ok_or(DropReason::InMalformed)?;
        let name = match self.device.indices().get(message.receiver) {
            Some(index_table::Entry::Handshake(peer)) => *peer.public_key(),
            Some(index_table::Entry::Session(session)) => *session.peer.public_key(),
            None => return Err(DropReason::HandshakeUnexpected),
        };
        let entry = self.peers.get_mut(&name).ok_or(DropReason::HandshakeUnknownPeer)?;
        if entry.cookies.handle_reply(&message, now) {
            Ok(())
        } else {
            Err(DropReason::HandshakeForged)
        }
    }

    fn begin_session(&mut self, name: &PublicKey, keypair: Keypair, now: Time) {
        let Some(entry) = self.peers.get_mut(name) else { return };
        let keypair = Arc::new(keypair);
        let session = Session { peer: entry.peer.clone(), keypair: keypair.clone() };
        let index = keypair.local_index;
        self.device.indices_mut().set(index, index_table::Entry::Session(session));
        let displaced = entry.peer.with_keypairs(|keypairs| keypairs.begin(keypair));
        self.device.retire(displaced.into_iter().flatten());
        entry.timers.session_derived(now);
    }

    /// Both sides have the keys.
    pub(super) fn handshake_completed(&mut self, name: &PublicKey, now: Now) {
        let Some(entry) = self.peers.get_mut(name) else { return };
        entry.timers.retransmit = None;
        entry.timers.attempt_began = None;
        entry.peer.activity.hold_handshakes(None);
        entry.peer.activity.handshake_completed();
        entry.last_handshake = Some(now.wall);
        self.begin_probing(name, now.time);
    }

    /// Begins a handshake, unless one is on its way already.
    pub(super) fn initiate(&mut self, name: &PublicKey, now: Now) {
        let jitter = self.jitter();
        let Some(entry) = self.peers.get_mut(name) else { return };
        if !self.running {
            return;
        }
        entry.timers.attempt_began = Some(now.time);
        if entry.timers.retransmit.is_some() {
            return;
        }
        match entry.timers.last_handshake_sent.map(|sent| sent + REKEY_TIMEOUT) {
            Some(earliest) if now.time < earliest => {
                let at = earliest + jitter;
                entry.timers.retransmit = Some(at);
                entry.peer.activity.hold_handshakes(Some(at));
            }
            _ => self.send_initiation(name, now),
        }
    }

    pub(super) fn send_initiation(&mut self, name: &PublicKey, now: Now) {
        let Some((message, peer)) = stack::wiped(|| self.initiation(name, now)) else { return };
        let retransmit = now.time + REKEY_TIMEOUT + self.jitter();
        peer.activity.hold_handshakes(Some(retransmit));
        if let Some(entry) = self.peers.get_mut(name) {
            entry.timers.retransmit = Some(retransmit);
        }
        self.send_handshake(name, message, now.time);
    }

    /// Writes an initiation, which becomes the pending one.
    fn initiation(&mut self, name: &PublicKey, now: Now) -> Option<(Handshake, Arc<Peer>)> {
        let local = self.local.as_ref()?;
        let entry = self.peers.get_mut(name)?;
        entry.peer.endpoint()?;
        let static_static = entry.handshake.static_static(&local.identity, &entry.peer)?;
        let timestamp = Tai64N::after(entry.handshake.last_sent_timestamp, now.wall);
        let mut sealed = [0; TAI64N_LEN + TAG];
        let (initiator, parts) = Initiator::start(
            &local.identity,
            name,
            &static_static,
            PrivateKey::generate(&mut self.rng),
            (timestamp.as_bytes(), &mut sealed),
        )?;
        entry.handshake.last_sent_timestamp = timestamp;

        let mut indices = self.device.indices_mut();
        let index = indices.unused(&mut self.rng);
        indices.set(index, index_table::Entry::Handshake(entry.peer.clone()));
        let pending = Box::new(Pending { index, initiator, since: now.time });
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
        entry.cookies.stamp(&mut message, now.time);
        Some((message, entry.peer.clone()))
    }

    fn send_handshake(&mut self, name: &PublicKey, message: Handshake, now: Time) {
        let Some(entry) = self.peers.get_mut(name) else { return };
        let Some(endpoint) = entry.peer.endpoint() else { return };
        entry.timers.last_handshake_sent = Some(now);
        let _ = entry.peer.activity.sent(false, now);
        entry.peer.count_tx(message.as_bytes().len());
        self.transmits.push_back((message, endpoint));
    }
}

impl Entry {
    /// Refuses an initiation that is a replay, or one of too many.
    fn admit_initiation(&mut self, timestamp: Tai64N, now: Time) -> Result<(), DropReason> {
        const APART: std::time::Duration =
            std::time::Duration::from_millis(1000 / INITIATIONS_PER_SECOND as u64);
        let handshake = &mut self.handshake;
        if timestamp <= handshake.greatest_received_timestamp
            || handshake.last_consumed.is_some_and(|last| now.since(last) < APART)
        {
            return Err(DropReason::HandshakeReplayed);
        }
        handshake.greatest_received_timestamp = timestamp;
        handshake.last_consumed = Some(now);
        let _ = self.peer.activity.received(false, now);
        Ok(())
    }
}
