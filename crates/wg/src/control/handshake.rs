//! Handshake messages, in both roles.
//!
//! ```text
//!   handle_datagrams -> mac1 -> load check -> cookie reply, or limiter
//!        |-> initiations -> answered together (initiations)
//!        |-> response   -> pending initiation          -> current keypair
//!        `-> cookie reply -> the peer's cookie jar
//! ```

use std::sync::Arc;

use crypto::noise::{Initiator, Statics};
use packet::Endpoint;
use rand_core::CryptoRng;

use super::{
    Control,
    entry::{Pending, ResponseState},
};
use crate::{
    PrivateKey, PublicKey,
    constants::REKEY_TIMEOUT,
    cookie::MacState,
    device::OutboundNotice,
    drops::DropReason,
    events::PeerEvent,
    index_table::{self, Session},
    keypair::{Keypair, Role},
    message::{CookieReply, Handshake, Initiation, Kind, Response},
    peer::Peer,
    stack,
    tai64n::{TAI64N_LEN, Tai64N},
    time::{Now, Time},
};

const TAG: usize = crypto::aead::TAG_LEN;

impl<R: CryptoRng> Control<R> {
    /// Handles a datagram other than transport data. Refused datagrams are counted.
    pub fn handle_datagram(&mut self, datagram: &[u8], from: Endpoint, now: Now) {
        self.handle_datagrams([(datagram, from)], now);
    }

    /// Handles several datagrams. Initiations are answered together, after all others.
    pub fn handle_datagrams<'a>(
        &mut self,
        datagrams: impl IntoIterator<Item = (&'a [u8], Endpoint)>,
        now: Now,
    ) {
        let mut initiations = Vec::new();
        for (datagram, from) in datagrams {
            let handled = match Kind::of(datagram) {
                _ if !self.running => Ok(()),
                Some(Kind::Initiation) => self
                    .parse_initiation(datagram, from, now.time)
                    .map(|received| initiations.push(received)),
                Some(Kind::Response) => self
                    .admit(datagram, from, now.time)
                    .and_then(|_| self.handle_response(datagram, from, now)),
                Some(Kind::CookieReply) => self.handle_cookie_reply(datagram, now.time),
                Some(Kind::Data) | None => Err(DropReason::InMalformed),
            };
            self.count(handled);
        }
        self.handle_initiations(&initiations, now);
    }

    pub(super) fn count(&self, handled: Result<(), DropReason>) {
        if let Err(reason) = handled {
            self.device.drops.count(reason, 1);
        }
    }

    /// Checks the MACs. Under load, also checks that the sender receives at its address and is
    /// within its rate limit. Returns whether the message has a valid cookie.
    pub(super) fn admit(
        &mut self,
        message: &[u8],
        from: Endpoint,
        now: Time,
    ) -> Result<bool, DropReason> {
        let Some(own) = &mut self.own else { return Err(DropReason::HandshakeNoKey) };
        let loaded = self.under_load_until.is_some_and(|until| now < until);
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
        // Initiation and response have the sender's index at the same offset.
        let sender = message[4..].first_chunk().map(|index| u32::from_le_bytes(*index));
        let reply = sender
            .and_then(|sender| own.checker.reply(message, sender, from.remote, now, &mut self.rng));
        self.transmits.extend(reply.map(|reply| (reply, from)));
    }

    fn handle_response(
        &mut self,
        datagram: &[u8],
        from: Endpoint,
        now: Now,
    ) -> Result<(), DropReason> {
        let Some(key) = stack::run_and_wipe(|| self.finish(datagram, from, now))? else {
            return Ok(());
        };
        // No secret may lie on the stack while the state below is created: a moved value takes
        // along the former contents of its padding.
        self.agree_after_handshake(&key, now);
        self.plan(&key, now.time);
        Ok(())
    }

    /// Completes the handshake of a response. Returns its peer, or `None` if a later response has
    /// to show why this one is unreadable.
    fn finish(
        &mut self,
        datagram: &[u8],
        from: Endpoint,
        now: Now,
    ) -> Result<Option<PublicKey>, DropReason> {
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
        let answered = initiator
            .open_response(&own.identity, &ephemeral)
            .ok_or(DropReason::HandshakeForged)?;
        let read = entry.read_response(&own.identity.public, &answered, message.encrypted_nothing);
        let Some((secret, keys)) = read else {
            return self
                .handle_unreadable_response(&key, now)
                .then_some(None)
                .ok_or(DropReason::HandshakeForged);
        };

        let pending = entry.handshake.pending.take();
        let reason = pending.and_then(|pending| pending.response_state.drop_reason(Some(secret)));
        reason.iter().for_each(|reason| self.device.drops.count(*reason, 1));
        self.device.handshakes.count(now.time.since(since));
        peer.roam_to(from);
        self.device.events.handle_received(&peer, from);
        peer.count_rx(datagram.len());
        let _ = peer.activity.received(false, now.time);
        let keypair = Keypair::new(&keys, index, message.sender, Role::Initiator, now.time)
            .with_secret(secret, self.post_quantum);
        self.begin_session(&key, keypair, now.time);
        self.handshake_completed(&key, now);
        // The responder sends nothing before it receives from us.
        self.device.outbound_mailbox.post(&peer, OutboundNotice::Keepalive);
        Ok(Some(key))
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

    pub(super) fn begin_session(&mut self, key: &PublicKey, keypair: Keypair, now: Time) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        let keypair = Arc::new(keypair);
        let session = Session { peer: entry.peer.clone(), keypair: keypair.clone() };
        let index = keypair.local_index;
        self.device.indices_mut().set(index, index_table::Owner::Session(session));
        let displaced = entry.peer.with_keypairs(|keypairs| keypairs.begin(keypair));
        self.device.retire(displaced.into_iter().flatten());
        entry.timers.session_derived(now);
    }

    /// Handles the end of a handshake: both sides have the keys.
    pub(super) fn handshake_completed(&mut self, key: &PublicKey, now: Now) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        entry.give_up_old_initiation(&self.device);
        entry.timers.retransmit = None;
        entry.timers.attempt_began = None;
        entry.peer.activity.block_handshakes_until(None);
        entry.peer.activity.handshake_completed();
        entry.last_handshake = Some(now.wall);
        self.device.events.post(&entry.peer, PeerEvent::HandshakeDone);
        entry.path.handle_session(self.search_limit, &self.device, now.time);
    }

    /// Starts a handshake unless one is in progress.
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
        self.device.events.post(&entry.peer, PeerEvent::HandshakeWanted);
        match entry.timers.last_handshake_sent.map(|sent| sent + REKEY_TIMEOUT) {
            Some(earliest) if now.time < earliest => {
                let at = earliest + jitter;
                entry.timers.retransmit = Some(at);
                entry.peer.activity.block_handshakes_until(Some(at));
            }
            _ => self.send_initiation(key, now),
        }
    }

    pub(super) fn send_initiation(&mut self, key: &PublicKey, now: Now) {
        let Some((message, peer)) = stack::run_and_wipe(|| self.initiation(key, now)) else {
            return;
        };
        let retransmit = now.time + REKEY_TIMEOUT + self.jitter();
        peer.activity.block_handshakes_until(Some(retransmit));
        if let Some(entry) = self.peers.get_mut(key) {
            entry.timers.retransmit = Some(retransmit);
        }
        self.send_handshake(key, message, now.time);
    }

    /// Writes an initiation and stores it as the pending one.
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
        let was = entry.handshake.pending.as_ref().map(|pending| pending.response_state);
        let response_state = match was {
            Some(ResponseState::Unreadable) => ResponseState::Retry,
            Some(ResponseState::Normal | ResponseState::Retry) | None => ResponseState::Normal,
        };
        if was == Some(ResponseState::Retry) {
            self.device.drops.count(DropReason::HandshakeForged, 1);
        }
        let (since, rx_bytes) = (now.time, entry.rx_bytes());
        let pending = Box::new(Pending { index, initiator, since, rx_bytes, response_state });
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

    pub(super) fn send_handshake(&mut self, key: &PublicKey, message: Handshake, now: Time) {
        let Some(entry) = self.peers.get_mut(key) else { return };
        let Some(endpoint) = entry.peer.endpoint() else { return };
        entry.timers.last_handshake_sent = Some(now);
        let _ = entry.peer.activity.sent(false, false, now);
        entry.peer.count_tx(message.as_bytes().len());
        self.transmits.push_back((message, endpoint));
    }
}
