//! The protocol by which two peers agree on a secret. Their public keys determine which of them
//! sends a key, so that both may start at the same time.
//!
//! ```text
//!   lower public key                                 greater public key
//!   Requesting  -- Request -------------------->
//!               <------------------------ Answer --  or a Request
//!   Offering    -- Key (3 parts) -------------->     has the secret
//!               <------------- Ciphertext (3 parts)
//!   Confirming  -- Done ----------------------->     answers handshakes with it
//!               <------------------------- Ready --
//!   starts a handshake
//! ```
//!
//! Each side retransmits unanswered messages, and gives up after some time. A peer that never
//! answered gets a few requests and then no more.
//!
//! Call order: the `handle_*` methods in any order; after each, [`Exchange::poll_message`] until it
//! returns `None`, then [`Exchange::poll_timeout`].

use std::{collections::VecDeque, time::Duration};

use rand_core::CryptoRng;

use super::{
    constants::{
        FIRST_RETRY, MAX_REQUESTS, MAX_RETRY_INTERVAL, MAX_TRANSMISSIONS, MIN_CIPHERTEXT_INTERVAL,
        MIN_KEY_INTERVAL, REQUEST_TIMEOUT, STATE_LIFETIME,
    },
    kem::{self, Seed, Shared},
    message::{ExchangeMessage, Kind, Reassembly},
};
use crate::time::Time;

/// Our role in the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// We send the key.
    Offerer,
    /// We send the ciphertext.
    Encapsulator,
}

/// Outcome of a step of the exchange.
pub(crate) enum Outcome {
    /// We have a secret.
    Agreed { id: u32, secret: Shared },
    /// The peer has the secret too. The offerer starts a handshake now.
    Confirmed { id: u32 },
    /// The peer does not support the exchange, or does not answer now.
    Failed,
}

pub(crate) struct Exchange {
    role: Role,
    phase: Phase,
    /// Whether the peer ever sent a message of the exchange.
    peer_answers: bool,
    /// Time when we last made a key.
    offered: Option<Time>,
    encapsulation: Encapsulation,
    messages: VecDeque<ExchangeMessage>,
}

enum Phase {
    Idle,
    Requesting(Retries),
    /// The peer does not answer requests.
    Unresponsive,
    Offering(Box<Offer>),
    Confirming(u32, Retries),
}

/// Number of transmissions, and time of the next one.
#[derive(Clone, Copy)]
struct Retries {
    sent: u32,
    due: Time,
}

/// Our key, and the received parts of the ciphertext for it.
struct Offer {
    id: u32,
    seed: Seed,
    ciphertext: Reassembly,
    retries: Retries,
}

/// State of the side that sends a ciphertext.
#[derive(Default)]
struct Encapsulation {
    key: Option<Reassembly>,
    sealed: Option<SentCiphertext>,
    /// ID of the last completed exchange.
    done: Option<u32>,
    /// Time from which on the peer's next key may be answered.
    next: Option<Time>,
    /// Time when the state of an incomplete exchange is dropped.
    until: Option<Time>,
}

struct SentCiphertext {
    id: u32,
    ciphertext: Vec<u8>,
    sent: Time,
}

impl Exchange {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            phase: Phase::Idle,
            peer_answers: false,
            offered: None,
            encapsulation: Encapsulation::default(),
            messages: VecDeque::new(),
        }
    }

    /// Whether the peer is known to support the exchange.
    pub(crate) fn has_answered(&self) -> bool {
        self.peer_answers
    }

    /// Whether the peer did not answer requests.
    pub(crate) fn is_unresponsive(&self) -> bool {
        matches!(self.phase, Phase::Unresponsive)
    }

    /// Starts the exchange of a new secret. Unless `urgent`, the encapsulator first waits for the
    /// offerer to start.
    pub(crate) fn start(&mut self, urgent: bool, now: Time, rng: &mut impl CryptoRng) {
        if !matches!(self.phase, Phase::Idle | Phase::Unresponsive) {
            return;
        }
        match self.role {
            Role::Offerer if self.peer_answers => self.offer(now, rng),
            Role::Encapsulator if !urgent => {
                self.phase = Phase::Requesting(Retries { sent: 0, due: now + REQUEST_TIMEOUT });
            }
            _ => self.push_request(0, now),
        }
    }

    /// Handles a message of the peer.
    pub(crate) fn handle_message(
        &mut self,
        message: &ExchangeMessage,
        now: Time,
        rng: &mut impl CryptoRng,
    ) -> Option<Outcome> {
        self.peer_answers = true;
        let id = message.id;
        match (self.role, message.kind) {
            (Role::Offerer, Kind::Request) if self.can_offer(now) => self.offer(now, rng),
            (Role::Offerer, Kind::Answer) if matches!(self.phase, Phase::Requesting(_)) => {
                self.offer(now, rng);
            }
            (Role::Offerer, Kind::Ciphertext) => return self.handle_ciphertext(message, now),
            (Role::Offerer, Kind::Ready) => {
                if matches!(self.phase, Phase::Confirming(with, _) if with == id) {
                    self.phase = Phase::Idle;
                    return Some(Outcome::Confirmed { id });
                }
            }
            (Role::Encapsulator, Kind::Request) => self.push_message(Kind::Answer, 0),
            (Role::Encapsulator, Kind::Key) => return self.handle_key(message, now, rng),
            (Role::Encapsulator, Kind::Done) => return self.handle_done(id),
            _ => {}
        }
        None
    }

    /// Handles timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Option<Outcome> {
        if self.encapsulation.until.is_some_and(|until| until <= now) {
            self.encapsulation =
                Encapsulation { done: self.encapsulation.done, ..Encapsulation::default() };
        }
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let retry = match &mut self.phase {
            Phase::Requesting(retries) if retries.sent < MAX_REQUESTS => {
                let sent = retries.sent;
                self.push_request(sent, now);
                return None;
            }
            Phase::Requesting(_) => {
                self.phase = Phase::Unresponsive;
                return Some(Outcome::Failed);
            }
            Phase::Offering(offer) => offer.retries.retry(now),
            Phase::Confirming(_, retries) => retries.retry(now),
            Phase::Idle | Phase::Unresponsive => return None,
        };
        if retry {
            self.resend();
            return None;
        }
        self.phase = Phase::Idle;
        // Another WireGuard implementation may have replaced the peer.
        self.peer_answers = false;
        Some(Outcome::Failed)
    }

    fn resend(&mut self) {
        match &self.phase {
            Phase::Offering(offer) => {
                let key = offer.seed.key();
                self.messages.extend(ExchangeMessage::parts(Kind::Key, offer.id, &key));
            }
            &Phase::Confirming(id, _) => self.push_message(Kind::Done, id),
            Phase::Idle | Phase::Requesting(_) | Phase::Unresponsive => {}
        }
    }

    /// Returns the next message to send.
    pub(crate) fn poll_message(&mut self) -> Option<ExchangeMessage> {
        self.messages.pop_front()
    }

    /// Returns the time of the next call of [`Exchange::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        [self.due(), self.encapsulation.until].into_iter().flatten().min()
    }

    fn due(&self) -> Option<Time> {
        match &self.phase {
            Phase::Requesting(retries) | Phase::Confirming(_, retries) => Some(retries.due),
            Phase::Offering(offer) => Some(offer.retries.due),
            Phase::Idle | Phase::Unresponsive => None,
        }
    }

    fn push_message(&mut self, kind: Kind, id: u32) {
        self.messages.push_back(ExchangeMessage::short(kind, id));
    }

    fn push_request(&mut self, sent: u32, now: Time) {
        self.push_message(Kind::Request, 0);
        self.phase = Phase::Requesting(Retries { sent: sent + 1, due: now + REQUEST_TIMEOUT });
    }

    /// Whether another key may be sent on request.
    fn can_offer(&self, now: Time) -> bool {
        let is_paced = self.offered.is_some_and(|offered| now.since(offered) < MIN_KEY_INTERVAL);
        !is_paced && !matches!(self.phase, Phase::Offering(_))
    }

    fn offer(&mut self, now: Time, rng: &mut impl CryptoRng) {
        self.offered = Some(now);
        let (id, seed) = (rng.next_u32(), Seed::generate(rng));
        self.messages.extend(ExchangeMessage::parts(Kind::Key, id, &seed.key()));
        let ciphertext = Reassembly::new(Kind::Ciphertext, id);
        let retries = Retries::start(now);
        self.phase = Phase::Offering(Box::new(Offer { id, seed, ciphertext, retries }));
    }

    fn handle_ciphertext(&mut self, message: &ExchangeMessage, now: Time) -> Option<Outcome> {
        let Phase::Offering(offer) = &mut self.phase else { return None };
        let (id, ciphertext) = (offer.id, offer.ciphertext.add(message)?);
        let secret = offer.seed.open(ciphertext)?;
        self.push_message(Kind::Done, id);
        self.phase = Phase::Confirming(id, Retries::start(now));
        Some(Outcome::Agreed { id, secret })
    }

    fn handle_key(
        &mut self,
        message: &ExchangeMessage,
        now: Time,
        rng: &mut impl CryptoRng,
    ) -> Option<Outcome> {
        if let Phase::Requesting(_) | Phase::Unresponsive = self.phase {
            self.phase = Phase::Idle;
        }
        let Encapsulation { key, sealed, done, next, until } = &mut self.encapsulation;
        let id = message.id;
        if *done == Some(id) {
            return None;
        }
        if let Some(sealed) = sealed.as_mut().filter(|sealed| sealed.id == id) {
            if now.since(sealed.sent) >= MIN_CIPHERTEXT_INTERVAL {
                sealed.sent = now;
                let parts = ExchangeMessage::parts(Kind::Ciphertext, id, &sealed.ciphertext);
                self.messages.extend(parts);
            }
            return None;
        }
        *until = Some(now + STATE_LIFETIME);
        if key.as_ref().is_none_or(|key| key.id != id) {
            *key = Some(Reassembly::new(Kind::Key, id));
        }
        let whole = key.as_mut()?.add(message)?;
        if next.is_some_and(|next| now < next) {
            return None;
        }
        *next = Some(now + MIN_KEY_INTERVAL);
        let answer = kem::seal(whole, rng);
        *key = None;
        let (ciphertext, secret) = answer?;
        self.messages.extend(ExchangeMessage::parts(Kind::Ciphertext, id, &ciphertext));
        *sealed = Some(SentCiphertext { id, ciphertext, sent: now });
        Some(Outcome::Agreed { id, secret })
    }

    fn handle_done(&mut self, id: u32) -> Option<Outcome> {
        let sealed = self.encapsulation.sealed.take_if(|sealed| sealed.id == id);
        if sealed.is_none() && self.encapsulation.done != Some(id) {
            // The state was dropped here. Starting again is faster than not answering.
            self.push_message(Kind::Request, 0);
            return None;
        }
        self.push_message(Kind::Ready, id);
        if sealed.is_some() {
            self.encapsulation = Encapsulation {
                done: Some(id),
                next: self.encapsulation.next,
                ..Encapsulation::default()
            };
            return Some(Outcome::Confirmed { id });
        }
        None
    }
}

impl Retries {
    fn start(now: Time) -> Self {
        Self { sent: 1, due: now + FIRST_RETRY }
    }

    /// Whether to transmit once more. Schedules the next transmission.
    fn retry(&mut self, now: Time) -> bool {
        let may = self.sent < MAX_TRANSMISSIONS;
        let doubled: Duration = FIRST_RETRY * (1 << self.sent.min(MAX_TRANSMISSIONS));
        self.sent += 1;
        self.due = now + doubled.min(MAX_RETRY_INTERVAL);
        may
    }
}

#[cfg(test)]
mod tests;
