//! The exchange of secrets against quantum computers, and the handshakes with them.

use rand_core::CryptoRng;

use super::{
    Control,
    entry::{Entry, Reading},
    initiations::OURS_APART,
};
use crate::{
    PresharedKey, PublicKey,
    device::OutboundNotice,
    noise::{Answered, TransportKeys},
    post_quantum::{Agreement, PostQuantum, Step, Tools, UNREADABLE_AFTER},
    time::{Now, Time},
};

impl<R: CryptoRng> Control<R> {
    /// Says whether secrets are agreed with peers against quantum computers. Sessions that do not
    /// comply end.
    pub fn set_post_quantum(&mut self, mode: PostQuantum) {
        if std::mem::replace(&mut self.post_quantum, mode) == mode {
            return;
        }
        for entry in self.peers.values_mut() {
            entry.quantum.reset();
            entry.forget_secrets(&self.device);
            entry.peer.activity.hold_handshakes(None);
            if self.running {
                self.device.outbound_mailbox.post(&entry.peer, OutboundNotice::Flush);
            }
        }
    }

    /// There is a session that both sides have.
    pub(super) fn agree_after_handshake(&mut self, key: &PublicKey, now: Now) {
        if let Some((agreement, mut tools)) = self.exchange_with(key, now)
            && let Some(session) = tools.peer.current_keypair()
        {
            agreement.handle_session(&session, &mut tools);
        }
    }

    /// Begins an exchange that waited for data.
    pub(super) fn agree_after_data(&mut self, key: &PublicKey, now: Now) {
        if let Some((agreement, mut tools)) = self.exchange_with(key, now) {
            agreement.handle_activity(&mut tools);
        }
    }

    /// Reads what the peer said.
    pub(super) fn handle_exchange(&mut self, key: &PublicKey, now: Now) {
        let Some((agreement, mut tools)) = self.exchange_with(key, now) else { return };
        let step = agreement.handle_messages(&mut tools);
        self.take_step(step, key, now);
    }

    pub(super) fn handle_exchange_timeout(&mut self, key: &PublicKey, now: Now) {
        let Some((agreement, mut tools)) = self.exchange_with(key, now) else { return };
        let step = agreement.handle_timeout(&mut tools);
        self.take_step(step, key, now);
    }

    fn take_step(&mut self, step: Step, key: &PublicKey, now: Now) {
        if step == Step::Handshake {
            // It fails where there is no endpoint: then the next handshake has the secret.
            let _ = self.handshake_now(key, now);
        }
    }

    /// The peer's response could not be read: maybe it has a secret that we lost. One more initiation
    /// shows that, and is answered without. It may be forged as well, so where we have a secret that
    /// could be lost by that, the true one has time to come. Returns whether [`Reading::unread`]
    /// counts it later.
    pub(super) fn hurry(&mut self, key: &PublicKey, now: Now) -> bool {
        let Some(entry) = self.peers.get_mut(key) else { return false };
        let Some(pending) = &mut entry.handshake.pending else { return false };
        if self.post_quantum == PostQuantum::Off || pending.reading != Reading::Open {
            return false;
        }
        pending.reading = Reading::Unreadable;
        let apart = if entry.quantum.has_secret() { UNREADABLE_AFTER } else { OURS_APART };
        let earliest = pending.since + apart;
        let at = earliest.max(now.time);
        entry.timers.retransmit = Some(at);
        entry.peer.activity.hold_handshakes(Some(at));
        self.plan(key, now.time);
        true
    }

    fn exchange_with(
        &mut self,
        key: &PublicKey,
        now: Now,
    ) -> Option<(&mut Agreement, Tools<'_, R>)> {
        let own = &self.own.as_ref()?.identity.public;
        let Entry { peer, quantum, .. } = &mut **self.peers.get_mut(key)?;
        let (mode, device, rng) = (self.post_quantum, &*self.device, &mut self.rng);
        Some((quantum, Tools { mode, own, peer, device, now, rng }))
    }
}

impl Entry {
    /// By which preshared key a response is made where it is not the configured one, and the number
    /// of the secret in it.
    pub fn key_for_response(&mut self, own: &PublicKey, now: Time) -> Option<(u32, PresharedKey)> {
        self.quantum.for_response(&self.psk, [own, self.peer.public_key()], now)
    }

    /// The keys of a response by whichever preshared key it was made, and the number of the secret
    /// in that.
    pub fn read_response(
        &self,
        own: &PublicKey,
        answered: &Answered,
        sealed: &[u8],
    ) -> Option<(Option<u32>, TransportKeys)> {
        let read = |psk: &PresharedKey| answered.finish(psk, sealed, &mut []);
        let mut with = self.quantum.candidates(&self.psk, [own, self.peer.public_key()]);
        with.find_map(|(secret, psk)| Some((Some(secret), read(&psk)?)))
            .or_else(|| Some((None, read(&self.psk)?)))
    }

    /// When the secret of the session was agreed on, since the Unix epoch.
    pub fn agreed(&self) -> Option<std::time::Duration> {
        self.peer.current_keypair().and_then(|session| self.quantum.agreed(&session))
    }
}
