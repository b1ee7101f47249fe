//! The exchange with each peer as one of its timers, and the peer's secrets.
//!
//! State is allocated only for peers with data that answer. Every other peer takes one byte.

use std::{sync::Arc, time::Duration};

use rand_core::CryptoRng;

use crate::{
    PresharedKey, PublicKey,
    constants::REKEY_TIMEOUT,
    device::{Device, OutboundNotice},
    keypair::Keypair,
    peer::Peer,
    post_quantum::{
        PostQuantum,
        exchange::{Exchange, Outcome, Role},
        secrets::{Secrets, StoredSecret},
    },
    stack,
    time::{Now, Time},
};

/// State of the exchange with one peer in the control half. Call order: the methods in any order.
/// [`Agreement::deadline`] returns the time of the next call of [`Agreement::handle_timeout`].
#[derive(Default)]
pub(crate) struct Agreement {
    state: State,
    running: Option<Box<Running>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// There is a session, and the exchange starts with the first data.
    AwaitsData,
    /// The peer did not answer requests.
    Unresponsive,
}

struct Running {
    exchange: Exchange,
    secrets: Secrets,
    /// Time to start a handshake ourselves, if the peer's handshake with a new secret did not
    /// succeed.
    handshake_at: Option<Time>,
}

/// Values of the control half that an exchange uses.
pub(crate) struct Tools<'a, R> {
    pub mode: PostQuantum,
    pub own: &'a PublicKey,
    pub peer: &'a Arc<Peer>,
    pub device: &'a Device,
    pub now: Now,
    pub rng: &'a mut R,
}

/// Next step of the control half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Step {
    Nothing,
    /// Start a handshake with the new secret.
    Handshake,
}

impl Agreement {
    /// Handles a session that both sides have.
    pub(super) fn handle_session<R: CryptoRng>(
        &mut self,
        session: &Keypair,
        tools: &mut Tools<'_, R>,
    ) {
        let was_lost = self.running.as_mut().is_some_and(|running| {
            running.handshake_at = None;
            running.secrets.handle_session(session.secret)
        });
        let is_renewed = session.secret.is_some();
        match tools.mode {
            PostQuantum::Off => return self.reset(),
            _ if is_renewed => self.state = State::Idle,
            PostQuantum::Require => return self.start_exchange(tools),
            PostQuantum::On if was_lost || self.has_answered() => {
                return self.start_exchange(tools);
            }
            PostQuantum::On if self.state == State::Unresponsive => {}
            PostQuantum::On => self.state = State::AwaitsData,
        }
        let is_expired = |it: &Running| it.secrets.is_expired(tools.now.time);
        if is_renewed && self.running.as_deref().is_some_and(is_expired) {
            self.start_exchange(tools);
        }
    }

    /// Starts an exchange that waited for data, if there was some.
    pub(super) fn handle_activity<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) {
        if self.state == State::AwaitsData && tools.peer.activity.has_data() {
            self.start_exchange(tools);
        }
    }

    /// Handles the received messages.
    pub(super) fn handle_messages<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) -> Step {
        let received = tools.peer.exchange.take_received();
        if received.is_empty() || tools.mode == PostQuantum::Off {
            return Step::Nothing;
        }
        self.state = State::Idle;
        let mut step = Step::Nothing;
        for message in received {
            let running = self.running(tools);
            let (time, rng) = (tools.now.time, &mut *tools.rng);
            let done = run_and_wipe(|| {
                running.handle(tools.now, |exchange| exchange.handle_message(&message, time, rng))
            });
            match role(tools) {
                Role::Offerer if done == Progress::Shared => step = Step::Handshake,
                Role::Encapsulator if done == Progress::Shared => {
                    running.handshake_at = Some(time + REKEY_TIMEOUT);
                }
                Role::Offerer | Role::Encapsulator => {}
            }
        }
        self.send_messages(tools);
        step
    }

    /// Handles timers that are due.
    pub(super) fn handle_timeout<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) -> Step {
        self.handle_activity(tools);
        let Some(running) = &mut self.running else { return Step::Nothing };
        let time = tools.now.time;
        let starts_handshake = running.handshake_at.take_if(|at| *at <= time).is_some();
        let done =
            run_and_wipe(|| running.handle(tools.now, |exchange| exchange.handle_timeout(time)));
        if running.exchange.is_unresponsive() {
            self.state = State::Unresponsive;
        }
        self.send_messages(tools);
        let failed = done == Progress::Failed && tools.mode == PostQuantum::Require;
        if failed {
            tools.device.outbound_mailbox.post(tools.peer, OutboundNotice::Refuse);
        }
        // The peer answered, so the link may be bad. No data passes before another exchange succeeds, and
        // that follows a handshake.
        let starts_handshake = starts_handshake || (failed && self.state != State::Unresponsive);
        self.running
            .take_if(|running| running.exchange.is_unresponsive() && running.secrets.is_empty());
        if starts_handshake { Step::Handshake } else { Step::Nothing }
    }

    /// Returns the time of the next action.
    pub(super) fn deadline(&self) -> Option<Time> {
        let running = self.running.as_ref()?;
        [running.handshake_at, running.exchange.poll_timeout()].into_iter().flatten().min()
    }

    /// Chooses the secret for a response. Returns its ID, and the preshared key that includes it.
    pub(super) fn choose_for_response(
        &mut self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
        now: Time,
    ) -> Option<(u32, PresharedKey)> {
        self.running.as_mut()?.secrets.choose_for_response(configured, pair, now)
    }

    /// Returns the secrets with which a response may have been made, except the configured key
    /// alone.
    pub(super) fn candidates(
        &self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
    ) -> impl Iterator<Item = (u32, PresharedKey)> {
        let running = self.running.iter();
        running.flat_map(move |running| running.secrets.candidates(configured, pair))
    }

    /// Whether a response may have been made with a secret.
    pub(super) fn has_secret(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.secrets.is_empty())
    }

    /// Returns the time when the session's secret was agreed on, since the Unix epoch.
    pub(super) fn agreed(&self, session: &Keypair) -> Option<Duration> {
        self.running.as_ref()?.secrets.agreed(session.secret?)
    }

    /// Drops all state and secrets.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    fn has_answered(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.exchange.has_answered())
    }

    fn start_exchange<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) {
        self.state = State::Idle;
        let urgent = tools.mode == PostQuantum::Require;
        let running = self.running(tools);
        let (time, rng) = (tools.now.time, &mut *tools.rng);
        run_and_wipe(|| running.exchange.start(urgent, time, rng));
        self.send_messages(tools);
    }

    fn running<R>(&mut self, tools: &Tools<'_, R>) -> &mut Running {
        let begin = || {
            let exchange = Exchange::new(role(tools));
            Box::new(Running { exchange, secrets: Secrets::default(), handshake_at: None })
        };
        self.running.get_or_insert_with(begin)
    }

    /// Queues the exchange's messages for the data path.
    fn send_messages<R>(&mut self, tools: &Tools<'_, R>) {
        let Some(running) = &mut self.running else { return };
        let mut any = false;
        while let Some(message) = running.exchange.poll_message() {
            any = true;
            tools.peer.exchange.send(message);
        }
        if any {
            tools.device.outbound_mailbox.post(tools.peer, OutboundNotice::Exchange);
        }
    }
}

/// An outcome without its secret, which may be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Nothing,
    Shared,
    Failed,
}

impl Running {
    /// Applies `action` to the exchange and stores its result.
    fn handle(
        &mut self,
        now: Now,
        action: impl FnOnce(&mut Exchange) -> Option<Outcome>,
    ) -> Progress {
        match action(&mut self.exchange) {
            Some(Outcome::Agreed { id, secret }) => {
                self.secrets.add(StoredSecret::new(id, secret, now));
                Progress::Nothing
            }
            Some(Outcome::Confirmed { id }) => {
                self.secrets.mark_shared(id);
                Progress::Shared
            }
            Some(Outcome::Failed) => Progress::Failed,
            None => Progress::Nothing,
        }
    }
}

/// Wipes the stack that a step of the exchange used.
fn run_and_wipe<T>(step: impl FnOnce() -> T) -> T {
    stack::run_and_wipe_words::<{ stack::EXCHANGE }, T>(step)
}

/// The side with the lower public key offers.
fn role<R>(tools: &Tools<'_, R>) -> Role {
    if tools.own < tools.peer.public_key() { Role::Offerer } else { Role::Encapsulator }
}

#[cfg(test)]
mod tests;
