//! The exchange of post-quantum secrets, and the handshakes that use them.

use crypto::noise::{OpenedResponse, TransportKeys};
use rand_core::CryptoRng;

use super::{
    Control,
    agreement::{Agreement, Step, Tools},
    entry::{Entry, ResponseState},
    initiations::MIN_OWN_INITIATION_INTERVAL,
};
use crate::{
    PresharedKey, PublicKey,
    device::OutboundNotice,
    post_quantum::{PostQuantum, UNREADABLE_RETRY_DELAY},
    time::{Now, Time},
};

impl<R: CryptoRng> Control<R> {
    /// Sets the mode of the post-quantum exchange. Ends the sessions of all peers.
    pub fn set_post_quantum(&mut self, mode: PostQuantum) {
        if std::mem::replace(&mut self.post_quantum, mode) == mode {
            return;
        }
        for entry in self.peers.values_mut() {
            entry.agreement.reset();
            entry.wipe_secrets(&self.device);
            entry.peer.activity.block_handshakes_until(None);
            if self.running {
                self.device.outbound_mailbox.post(&entry.peer, OutboundNotice::Flush);
            }
        }
    }

    /// Handles a session that both sides have.
    pub(super) fn agree_after_handshake(&mut self, key: &PublicKey, now: Now) {
        if let Some((agreement, mut tools)) = self.exchange_with(key, now)
            && let Some(session) = tools.peer.current_keypair()
        {
            agreement.handle_session(&session, &mut tools);
        }
    }

    /// Starts an exchange that waits for data.
    pub(super) fn agree_after_data(&mut self, key: &PublicKey, now: Now) {
        if let Some((agreement, mut tools)) = self.exchange_with(key, now) {
            agreement.handle_activity(&mut tools);
        }
    }

    /// Handles the received messages of the exchange.
    pub(super) fn handle_exchange(&mut self, key: &PublicKey, now: Now) {
        let Some((agreement, mut tools)) = self.exchange_with(key, now) else { return };
        let step = agreement.handle_messages(&mut tools);
        self.apply_step(step, key, now);
    }

    pub(super) fn handle_exchange_timeout(&mut self, key: &PublicKey, now: Now) {
        let Some((agreement, mut tools)) = self.exchange_with(key, now) else { return };
        let step = agreement.handle_timeout(&mut tools);
        self.apply_step(step, key, now);
    }

    fn apply_step(&mut self, step: Step, key: &PublicKey, now: Now) {
        if step == Step::Handshake {
            // It fails without an endpoint. Then the next handshake uses the secret.
            let _ = self.handshake_now(key, now);
        }
    }

    /// Handles an unreadable response. The peer may use a secret that we lost: one more initiation
    /// shows that, and the peer answers it without a secret. The response may also be forged. If we
    /// have a secret that a new handshake would lose, the retry is delayed so that the true
    /// response can arrive. Returns whether [`ResponseState::drop_reason`] counts the response
    /// later.
    pub(super) fn handle_unreadable_response(&mut self, key: &PublicKey, now: Now) -> bool {
        let Some(entry) = self.peers.get_mut(key) else { return false };
        let Some(pending) = &mut entry.handshake.pending else { return false };
        if self.post_quantum == PostQuantum::Off || pending.response_state != ResponseState::Normal
        {
            return false;
        }
        pending.response_state = ResponseState::Unreadable;
        let apart = if entry.agreement.has_secret() {
            UNREADABLE_RETRY_DELAY
        } else {
            MIN_OWN_INITIATION_INTERVAL
        };
        let earliest = pending.since + apart;
        let at = earliest.max(now.time);
        entry.timers.retransmit = Some(at);
        entry.peer.activity.block_handshakes_until(Some(at));
        self.plan(key, now.time);
        true
    }

    fn exchange_with(
        &mut self,
        key: &PublicKey,
        now: Now,
    ) -> Option<(&mut Agreement, Tools<'_, R>)> {
        let own = &self.own.as_ref()?.identity.public;
        let Entry { peer, agreement, .. } = &mut **self.peers.get_mut(key)?;
        let (mode, device, rng) = (self.post_quantum, &*self.device, &mut self.rng);
        Some((agreement, Tools { mode, own, peer, device, now, rng }))
    }
}

impl Entry {
    /// Returns the preshared key for a response and the ID of the secret in it, or `None` if the
    /// configured key applies alone.
    pub(super) fn key_for_response(
        &mut self,
        own: &PublicKey,
        now: Time,
    ) -> Option<(u32, PresharedKey)> {
        self.agreement.choose_for_response(&self.psk, [own, self.peer.public_key()], now)
    }

    /// Reads a response with each preshared key that the peer may have used. Returns the session
    /// keys and the ID of the secret in that preshared key.
    pub(super) fn read_response(
        &self,
        own: &PublicKey,
        answered: &OpenedResponse,
        sealed: &[u8],
    ) -> Option<(Option<u32>, TransportKeys)> {
        let read = |psk: &PresharedKey| answered.finish(psk, sealed, &mut []);
        let mut with = self.agreement.candidates(&self.psk, [own, self.peer.public_key()]);
        with.find_map(|(secret, psk)| Some((Some(secret), read(&psk)?)))
            .or_else(|| Some((None, read(&self.psk)?)))
    }

    /// Returns the time when the session's secret was agreed on, since the Unix epoch.
    pub(super) fn agreed(&self) -> Option<std::time::Duration> {
        self.peer.current_keypair().and_then(|session| self.agreement.agreed(&session))
    }
}
