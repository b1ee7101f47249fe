//! How two peers agree on a secret. Which of them sends a key is settled by their public keys, so
//! that both may begin at once.
//!
//! ```text
//!   the lower public key                             the greater
//!   Asking      -- Ask ------------------------>
//!               <------------------------ Answer --  or it asks itself
//!   Offering    -- Key (3 parts) -------------->     has the secret
//!               <------------- Ciphertext (3 parts)
//!   Confirming  -- Done ----------------------->     answers handshakes by it
//!               <------------------------- Ready --
//!   begins a handshake
//! ```
//!
//! Each side repeats what it has no answer to, and gives up after a while. A peer that never
//! answered is asked a few times, and then left alone.
//!
//! Call order: the `handle_*` verbs in any order; after each, [`Exchange::poll_message`] until it
//! is empty, then [`Exchange::poll_timeout`].

use std::{collections::VecDeque, time::Duration};

use rand_core::CryptoRng;

use super::{
    constants::{
        ANSWERS_APART, ASK_MOST, ASK_TIMEOUT, CIPHERTEXT_APART, KEPT, REPEAT_FIRST, REPEAT_LAST,
        REPEAT_MOST,
    },
    kem::{self, Seed, Shared},
    message::{ExchangeMessage, Kind, Parts},
};
use crate::time::Time;

/// Which part of the exchange is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// We send a key.
    Offers,
    /// We send a ciphertext.
    Seals,
}

/// What an exchange came to.
pub(super) enum Outcome {
    /// We have a secret.
    Agreed { id: u32, secret: Shared },
    /// The peer has it too; the side that offers begins a handshake now.
    Shared { id: u32 },
    /// The peer does not support it, or does not answer now.
    Failed,
}

pub(super) struct Exchange {
    role: Role,
    phase: Phase,
    /// Whether the peer ever said anything.
    answers: bool,
    /// When we last made a key.
    offered: Option<Time>,
    sealing: Sealing,
    messages: VecDeque<ExchangeMessage>,
}

enum Phase {
    Idle,
    Asking(Repeats),
    /// The peer does not answer questions.
    Silent,
    Offering(Box<Offer>),
    Confirming(u32, Repeats),
}

/// How often something was sent, and when it is again.
#[derive(Clone, Copy)]
struct Repeats {
    sent: u32,
    due: Time,
}

/// Our key, and what has come of the ciphertext for it.
struct Offer {
    id: u32,
    seed: Seed,
    ciphertext: Parts,
    repeats: Repeats,
}

/// What the side that sends a ciphertext keeps.
#[derive(Default)]
struct Sealing {
    key: Option<Parts>,
    sealed: Option<Sealed>,
    /// The last exchange that was done.
    done: Option<u32>,
    /// When the peer's next key may be answered.
    next: Option<Time>,
    /// When what is kept of an exchange that does not go on is dropped.
    until: Option<Time>,
}

struct Sealed {
    id: u32,
    ciphertext: Vec<u8>,
    sent: Time,
}

impl Exchange {
    pub fn new(role: Role) -> Self {
        Self {
            role,
            phase: Phase::Idle,
            answers: false,
            offered: None,
            sealing: Sealing::default(),
            messages: VecDeque::new(),
        }
    }

    /// Whether the peer supports it.
    pub fn answers(&self) -> bool {
        self.answers
    }

    /// Whether there is a peer that was asked and did not answer.
    pub fn is_silent(&self) -> bool {
        matches!(self.phase, Phase::Silent)
    }

    /// A new secret is wanted. Where it is not `urgent`, the side that seals gives the other one
    /// time to begin.
    pub fn handle_want(&mut self, urgent: bool, now: Time, rng: &mut impl CryptoRng) {
        if !matches!(self.phase, Phase::Idle | Phase::Silent) {
            return;
        }
        match self.role {
            Role::Offers if self.answers => self.offer(now, rng),
            Role::Seals if !urgent => {
                self.phase = Phase::Asking(Repeats { sent: 0, due: now + ASK_TIMEOUT });
            }
            _ => self.ask(0, now),
        }
    }

    /// A message of the peer came.
    pub fn handle_message(
        &mut self,
        message: &ExchangeMessage,
        now: Time,
        rng: &mut impl CryptoRng,
    ) -> Option<Outcome> {
        self.answers = true;
        let id = message.id;
        match (self.role, message.kind) {
            (Role::Offers, Kind::Ask) if self.may_offer(now) => self.offer(now, rng),
            (Role::Offers, Kind::Answer) if matches!(self.phase, Phase::Asking(_)) => {
                self.offer(now, rng);
            }
            (Role::Offers, Kind::Ciphertext) => return self.handle_ciphertext(message, now),
            (Role::Offers, Kind::Ready) => {
                if matches!(self.phase, Phase::Confirming(with, _) if with == id) {
                    self.phase = Phase::Idle;
                    return Some(Outcome::Shared { id });
                }
            }
            (Role::Seals, Kind::Ask) => self.say(Kind::Answer, 0),
            (Role::Seals, Kind::Key) => return self.handle_key(message, now, rng),
            (Role::Seals, Kind::Done) => return self.handle_done(id),
            _ => {}
        }
        None
    }

    /// Works on what is due.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Outcome> {
        if self.sealing.until.is_some_and(|until| until <= now) {
            self.sealing = Sealing { done: self.sealing.done, ..Sealing::default() };
        }
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let again = match &mut self.phase {
            Phase::Asking(repeats) if repeats.sent < ASK_MOST => {
                let sent = repeats.sent;
                self.ask(sent, now);
                return None;
            }
            Phase::Asking(_) => {
                self.phase = Phase::Silent;
                return Some(Outcome::Failed);
            }
            Phase::Offering(offer) => offer.repeats.again(now),
            Phase::Confirming(_, repeats) => repeats.again(now),
            Phase::Idle | Phase::Silent => return None,
        };
        if again {
            self.repeat();
            return None;
        }
        self.phase = Phase::Idle;
        // Another WireGuard may have its place now.
        self.answers = false;
        Some(Outcome::Failed)
    }

    fn repeat(&mut self) {
        match &self.phase {
            Phase::Offering(offer) => {
                let key = offer.seed.key();
                self.messages.extend(ExchangeMessage::parts(Kind::Key, offer.id, &key));
            }
            &Phase::Confirming(id, _) => self.say(Kind::Done, id),
            Phase::Idle | Phase::Asking(_) | Phase::Silent => {}
        }
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<ExchangeMessage> {
        self.messages.pop_front()
    }

    /// When [`Exchange::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.due(), self.sealing.until].into_iter().flatten().min()
    }

    fn due(&self) -> Option<Time> {
        match &self.phase {
            Phase::Asking(repeats) | Phase::Confirming(_, repeats) => Some(repeats.due),
            Phase::Offering(offer) => Some(offer.repeats.due),
            Phase::Idle | Phase::Silent => None,
        }
    }

    fn say(&mut self, kind: Kind, id: u32) {
        self.messages.push_back(ExchangeMessage::short(kind, id));
    }

    fn ask(&mut self, sent: u32, now: Time) {
        self.say(Kind::Ask, 0);
        self.phase = Phase::Asking(Repeats { sent: sent + 1, due: now + ASK_TIMEOUT });
    }

    /// Whether a peer that asks is sent another key.
    fn may_offer(&self, now: Time) -> bool {
        let is_paced = self.offered.is_some_and(|offered| now.since(offered) < ANSWERS_APART);
        !is_paced && !matches!(self.phase, Phase::Offering(_))
    }

    fn offer(&mut self, now: Time, rng: &mut impl CryptoRng) {
        self.offered = Some(now);
        let (id, seed) = (rng.next_u32(), Seed::generate(rng));
        self.messages.extend(ExchangeMessage::parts(Kind::Key, id, &seed.key()));
        let ciphertext = Parts::new(Kind::Ciphertext, id);
        let repeats = Repeats::begin(now);
        self.phase = Phase::Offering(Box::new(Offer { id, seed, ciphertext, repeats }));
    }

    fn handle_ciphertext(&mut self, message: &ExchangeMessage, now: Time) -> Option<Outcome> {
        let Phase::Offering(offer) = &mut self.phase else { return None };
        let (id, ciphertext) = (offer.id, offer.ciphertext.take(message)?);
        let secret = offer.seed.open(ciphertext)?;
        self.say(Kind::Done, id);
        self.phase = Phase::Confirming(id, Repeats::begin(now));
        Some(Outcome::Agreed { id, secret })
    }

    fn handle_key(
        &mut self,
        message: &ExchangeMessage,
        now: Time,
        rng: &mut impl CryptoRng,
    ) -> Option<Outcome> {
        if let Phase::Asking(_) | Phase::Silent = self.phase {
            self.phase = Phase::Idle;
        }
        let Sealing { key, sealed, done, next, until } = &mut self.sealing;
        let id = message.id;
        if *done == Some(id) {
            return None;
        }
        if let Some(sealed) = sealed.as_mut().filter(|sealed| sealed.id == id) {
            if now.since(sealed.sent) >= CIPHERTEXT_APART {
                sealed.sent = now;
                let parts = ExchangeMessage::parts(Kind::Ciphertext, id, &sealed.ciphertext);
                self.messages.extend(parts);
            }
            return None;
        }
        *until = Some(now + KEPT);
        if key.as_ref().is_none_or(|key| key.id != id) {
            *key = Some(Parts::new(Kind::Key, id));
        }
        let whole = key.as_mut()?.take(message)?;
        if next.is_some_and(|next| now < next) {
            return None;
        }
        *next = Some(now + ANSWERS_APART);
        let answer = kem::seal(whole, rng);
        *key = None;
        let (ciphertext, secret) = answer?;
        self.messages.extend(ExchangeMessage::parts(Kind::Ciphertext, id, &ciphertext));
        *sealed = Some(Sealed { id, ciphertext, sent: now });
        Some(Outcome::Agreed { id, secret })
    }

    fn handle_done(&mut self, id: u32) -> Option<Outcome> {
        let sealed = self.sealing.sealed.take_if(|sealed| sealed.id == id);
        if sealed.is_none() && self.sealing.done != Some(id) {
            // It was forgotten here: to begin anew is quicker than to be silent.
            self.say(Kind::Ask, 0);
            return None;
        }
        self.say(Kind::Ready, id);
        if sealed.is_some() {
            self.sealing =
                Sealing { done: Some(id), next: self.sealing.next, ..Sealing::default() };
            return Some(Outcome::Shared { id });
        }
        None
    }
}

impl Repeats {
    fn begin(now: Time) -> Self {
        Self { sent: 1, due: now + REPEAT_FIRST }
    }

    /// Whether it is sent once more.
    fn again(&mut self, now: Time) -> bool {
        let may = self.sent < REPEAT_MOST;
        let doubled: Duration = REPEAT_FIRST * (1 << self.sent.min(REPEAT_MOST));
        self.sent += 1;
        self.due = now + doubled.min(REPEAT_LAST);
        may
    }
}

#[cfg(test)]
mod tests;
