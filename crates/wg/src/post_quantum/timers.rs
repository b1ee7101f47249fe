//! The exchange with each peer as one of its timers, and its secrets.
//!
//! Nothing is kept of a peer until data passes, and of one that does not answer one byte.

use std::{sync::Arc, time::Duration};

use rand_core::CryptoRng;

use super::{
    PostQuantum,
    exchange::{Exchange, Outcome, Role},
    secrets::{Held, Secrets},
};
use crate::{
    PresharedKey, PublicKey,
    constants::REKEY_TIMEOUT,
    device::{Device, OutboundNotice},
    keypair::Keypair,
    peer::Peer,
    stack,
    time::{Now, Time},
};

/// What the control half keeps of one peer. Call order: the verbs in any order;
/// [`Agreement::deadline`] says when to call [`Agreement::handle_timeout`].
#[derive(Default)]
pub(crate) struct Agreement {
    state: State,
    running: Option<Box<Running>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// There is a session, and the exchange begins with the first data.
    AwaitsData,
    /// The peer was asked, and does not answer.
    Silent,
}

struct Running {
    exchange: Exchange,
    secrets: Secrets,
    /// When we begin a handshake, if the peer's that is to bring a new secret in use did not
    /// succeed.
    begin_at: Option<Time>,
}

/// What an exchange needs of the control half.
pub(crate) struct Tools<'a, R> {
    pub mode: PostQuantum,
    pub own: &'a PublicKey,
    pub peer: &'a Arc<Peer>,
    pub device: &'a Device,
    pub now: Now,
    pub rng: &'a mut R,
}

/// What the control half has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Step {
    Nothing,
    /// To begin a handshake, by which a new secret comes in use.
    Handshake,
}

impl Agreement {
    /// There is a session that both sides have.
    pub fn handle_session<R: CryptoRng>(&mut self, session: &Keypair, tools: &mut Tools<'_, R>) {
        let was_lost = self.running.as_mut().is_some_and(|running| {
            running.begin_at = None;
            running.secrets.handle_session(session.secret)
        });
        let is_renewed = session.secret.is_some();
        match tools.mode {
            PostQuantum::Off => return self.reset(),
            _ if is_renewed => self.state = State::Idle,
            PostQuantum::Require => return self.want(tools),
            PostQuantum::On if was_lost || self.answers() => return self.want(tools),
            PostQuantum::On if self.state == State::Silent => {}
            PostQuantum::On => self.state = State::AwaitsData,
        }
        let is_old = |it: &Running| it.secrets.is_old(tools.now.time);
        if is_renewed && self.running.as_deref().is_some_and(is_old) {
            self.want(tools);
        }
    }

    /// Begins where it waits for data, and there was some.
    pub fn handle_activity<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) {
        if self.state == State::AwaitsData && tools.peer.activity.has_data() {
            self.want(tools);
        }
    }

    /// Reads what the peer said.
    pub fn handle_messages<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) -> Step {
        let heard = tools.peer.exchange.take_heard();
        if heard.is_empty() || tools.mode == PostQuantum::Off {
            return Step::Nothing;
        }
        self.state = State::Idle;
        let mut step = Step::Nothing;
        for message in heard {
            let running = self.running(tools);
            let (time, rng) = (tools.now.time, &mut *tools.rng);
            let done = wiped(|| {
                running.handle(tools.now, |exchange| exchange.handle_message(&message, time, rng))
            });
            match role(tools) {
                Role::Offers if done == Done::Shared => step = Step::Handshake,
                Role::Seals if done == Done::Shared => {
                    running.begin_at = Some(time + REKEY_TIMEOUT)
                }
                Role::Offers | Role::Seals => {}
            }
        }
        self.show(tools);
        step
    }

    /// Works on what is due.
    pub fn handle_timeout<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) -> Step {
        self.handle_activity(tools);
        let Some(running) = &mut self.running else { return Step::Nothing };
        let time = tools.now.time;
        let begins = running.begin_at.take_if(|at| *at <= time).is_some();
        let done = wiped(|| running.handle(tools.now, |exchange| exchange.handle_timeout(time)));
        if running.exchange.is_silent() {
            self.state = State::Silent;
        }
        self.show(tools);
        if done == Done::Failed && tools.mode == PostQuantum::Require {
            tools.device.outbound_mailbox.post(tools.peer, OutboundNotice::Refuse);
        }
        self.running.take_if(|running| running.exchange.is_silent() && running.secrets.is_none());
        if begins { Step::Handshake } else { Step::Nothing }
    }

    /// When there is something to do next.
    pub fn deadline(&self) -> Option<Time> {
        let running = self.running.as_ref()?;
        [running.begin_at, running.exchange.poll_timeout()].into_iter().flatten().min()
    }

    /// By what a response is made: the number of a secret, and the preshared key with it in it.
    pub fn for_response(
        &mut self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
        now: Time,
    ) -> Option<(u32, PresharedKey)> {
        self.running.as_mut()?.secrets.for_response(configured, pair, now)
    }

    /// By what a response may have been made, beside the configured key alone.
    pub fn candidates(
        &self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
    ) -> impl Iterator<Item = (u32, PresharedKey)> {
        let running = self.running.iter();
        running.flat_map(move |running| running.secrets.candidates(configured, pair))
    }

    /// Whether a response may have been made by anything but the configured key alone.
    pub fn has_secret(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.secrets.is_none())
    }

    /// When the secret of a session was agreed on, since the Unix epoch.
    pub fn agreed(&self, session: &Keypair) -> Option<Duration> {
        self.running.as_ref()?.secrets.agreed(session.secret?)
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn answers(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.exchange.answers())
    }

    fn want<R: CryptoRng>(&mut self, tools: &mut Tools<'_, R>) {
        self.state = State::Idle;
        let urgent = tools.mode == PostQuantum::Require;
        let running = self.running(tools);
        let (time, rng) = (tools.now.time, &mut *tools.rng);
        wiped(|| running.exchange.handle_want(urgent, time, rng));
        self.show(tools);
    }

    fn running<R>(&mut self, tools: &Tools<'_, R>) -> &mut Running {
        let begin = || {
            let exchange = Exchange::new(role(tools));
            Box::new(Running { exchange, secrets: Secrets::default(), begin_at: None })
        };
        self.running.get_or_insert_with(begin)
    }

    /// Has messages sent.
    fn show<R>(&mut self, tools: &Tools<'_, R>) {
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

/// What an outcome was, without the secret in it: this may be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Nothing,
    Shared,
    Failed,
}

impl Running {
    /// Does something to the exchange, and keeps what comes of it.
    fn handle(&mut self, now: Now, action: impl FnOnce(&mut Exchange) -> Option<Outcome>) -> Done {
        match action(&mut self.exchange) {
            Some(Outcome::Agreed { id, secret }) => {
                self.secrets.add(Held::new(id, secret, now));
                Done::Nothing
            }
            Some(Outcome::Shared { id }) => {
                self.secrets.shared(id);
                Done::Shared
            }
            Some(Outcome::Failed) => Done::Failed,
            None => Done::Nothing,
        }
    }
}

/// Wipes the stack that a step of the exchange used.
fn wiped<T>(step: impl FnOnce() -> T) -> T {
    stack::run_and_wipe_words::<{ stack::EXCHANGE }, T>(step)
}

/// Whose public key is lower offers.
fn role<R>(tools: &Tools<'_, R>) -> Role {
    if tools.own < tools.peer.public_key() { Role::Offers } else { Role::Seals }
}

#[cfg(test)]
mod tests;
