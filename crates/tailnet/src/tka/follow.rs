//! How a node follows tailnet lock: what it knows, and what it asks the coordinator for.
//!
//! ```text
//!            .-- off there ---► bootstrap ──► a secret that counts ──► nothing is known
//!   said ────+-- new here ----► bootstrap ──► first checkpoint ─.
//!            `-- other head ------------------------------------+──► offer ──► updates ──► send
//! ```
//!
//! One question at a time. What is known changes by what was verified alone: an answer that does
//! not count, or none, changes nothing and is asked for again after a while.

use std::{fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Authority, Refused,
    sync::{
        Asking, BOOTSTRAP_PATH, BootstrapResponse, OFFER_PATH, OfferResponse, SEND_PATH,
        SendResponse, Step, step,
    },
};
use crate::{control::backoff::Backoff, messages::LockInfo};

/// What is known of tailnet lock.
#[derive(Debug, Default)]
pub enum Known {
    /// Nothing.
    #[default]
    Nothing,
    /// It was on, and what was kept of it cannot be read.
    Damaged,
    /// Who may sign.
    Keys(Box<Authority>),
}

impl Known {
    /// Who may sign.
    pub fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Keys(authority) => Some(authority),
            _ => None,
        }
    }
}

/// A question for the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// By which its answer is known.
    pub number: u32,
    /// Where it is asked.
    pub path: &'static str,
    /// What is asked, in JSON.
    pub body: Vec<u8>,
}

/// Why what is known here is not what the coordinator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not answered; why, in words.
    NoAnswer(String),
    /// The answer cannot be read.
    BadAnswer,
    /// What was answered does not count.
    Refused(Refused),
    /// It is off for the coordinator, which has no secret that turns it off.
    NoSecret,
    /// The coordinator has other updates, and does not give them.
    Apart,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(why) => write!(f, "its updates cannot be fetched: {why}"),
            Self::BadAnswer => f.write_str("the coordinator's answer cannot be read"),
            Self::Refused(why) => {
                write!(f, "an update from the coordinator is refused, and changes nothing: {why}")
            }
            Self::NoSecret => f.write_str(
                "it stays on, though the coordinator says no more that it is: a valid disablement \
                 secret alone turns it off",
            ),
            Self::Apart => f.write_str(
                "the coordinator has other updates than this node, and does not pass them on",
            ),
        }
    }
}

/// What waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Checkpoint,
    Secret,
    Updates,
    Head,
}

/// What this node knows of tailnet lock, and how it comes to know what the coordinator knows.
#[derive(Debug)]
pub struct Follower {
    known: Known,
    /// Whether a map came over the connection that stands.
    is_connected: bool,
    number: u32,
    waiting: Option<Waiting>,
    /// What the map said when the coordinator last confirmed this node's head: it may lag behind.
    confirmed: Option<String>,
    failure: Option<Failure>,
    failures: Backoff,
    retry: Option<Duration>,
}

/// What the coordinator says of tailnet lock, and what its questions are made with.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// What the map says.
    pub lock: Option<&'a LockInfo>,
    /// What questions are made with.
    pub asking: Asking,
    /// The time.
    pub now: Duration,
}

impl Follower {
    /// Begins with what was kept.
    pub fn new(known: Known) -> Self {
        Self {
            known,
            is_connected: false,
            number: 0,
            waiting: None,
            confirmed: None,
            failure: None,
            failures: Backoff::refusals(),
            retry: None,
        }
    }

    /// What is known.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Why that is not what the coordinator says.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// When [`Self::poll_question`] may have something to ask that it had not before.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.retry.filter(|_| self.is_connected)
    }

    /// The first map over a connection is here.
    pub fn handle_connected(&mut self) {
        self.is_connected = true;
        (self.waiting, self.confirmed, self.retry) = (None, None, None);
    }

    /// The connection ended: nothing is answered any more.
    pub fn handle_disconnected(&mut self) {
        (self.is_connected, self.waiting) = (false, None);
    }

    /// What to ask now.
    pub fn poll_question(&mut self, said: Said<'_>) -> Option<Question> {
        let waits = self.waiting.is_some() || self.retry.is_some_and(|at| said.now < at);
        if !self.is_connected || waits || matches!(self.known, Known::Damaged) {
            return None;
        }
        self.retry = None;
        let known = self.known.authority();
        let is_confirmed =
            said.lock.is_some_and(|lock| self.confirmed.as_ref() == Some(&lock.head));
        match step(said.lock, known) {
            Step::Update if !is_confirmed => self.ask_for_updates(said.asking),
            Step::Nothing | Step::Update => {
                self.failure = None;
                self.failures.reset();
                None
            }
            Step::Begin => {
                self.ask(Waiting::Checkpoint, BOOTSTRAP_PATH, &said.asking.bootstrap(None))
            }
            Step::Disable => {
                let request = said.asking.bootstrap(known);
                self.ask(Waiting::Secret, BOOTSTRAP_PATH, &request)
            }
        }
    }

    fn ask_for_updates(&mut self, asking: Asking) -> Option<Question> {
        let request = asking.offer(self.known.authority()?);
        self.ask(Waiting::Updates, OFFER_PATH, &request)
    }

    fn ask(
        &mut self,
        waiting: Waiting,
        path: &'static str,
        request: &impl Serialize,
    ) -> Option<Question> {
        let body = serde_json::to_vec(request).ok()?;
        self.number = self.number.wrapping_add(1);
        self.waiting = Some(waiting);
        Some(Question { number: self.number, path, body })
    }

    /// Takes the answer to a question, or why there is none. Whether what is known changed, and
    /// what to ask next. `random` is any number.
    pub fn handle_answer(
        &mut self,
        number: u32,
        answer: Result<&[u8], String>,
        said: Said<'_>,
        random: u32,
    ) -> (bool, Option<Question>) {
        let Some(waiting) = self.waiting.take_if(|_| number == self.number) else {
            return (false, None);
        };
        let taken = answer.map_err(Failure::NoAnswer).and_then(|text| match waiting {
            Waiting::Checkpoint => self.handle_checkpoint(text, said.asking),
            Waiting::Secret => self.handle_secret(text),
            Waiting::Updates => self.handle_updates(text, said.asking),
            Waiting::Head => self.handle_head(text, said.lock),
        });
        match taken {
            Ok((changed, Some(question))) => (changed, Some(question)),
            Ok((changed, None)) => (changed, self.poll_question(said)),
            Err(failure) => {
                self.failure = Some(failure);
                self.retry = Some(said.now + self.failures.handle_failure(random));
                (false, None)
            }
        }
    }

    /// The coordinator is believed in this, once: there is nobody else to ask.
    fn handle_checkpoint(&mut self, text: &[u8], asking: Asking) -> Taken {
        let answer: BootstrapResponse = read(text)?;
        let authority = Authority::begin(&answer.checkpoint).map_err(Failure::Refused)?;
        self.known = Known::Keys(Box::new(authority));
        // Even if there is none: the coordinator learns by it that this node knows the keys.
        Ok((true, self.ask_for_updates(asking)))
    }

    fn handle_secret(&mut self, text: &[u8]) -> Taken {
        let secret = read::<BootstrapResponse>(text)?.disablement_secret;
        let known = self.known.authority();
        let is_valid = |known: &Authority| !secret.is_empty() && known.is_disabled_by(&secret);
        if !known.is_some_and(is_valid) {
            return Err(Failure::NoSecret);
        }
        self.known = Known::Nothing;
        Ok((true, None))
    }

    fn handle_updates(&mut self, text: &[u8], asking: Asking) -> Taken {
        let answer: OfferResponse = read(text)?;
        let Known::Keys(authority) = &mut self.known else { return Ok((false, None)) };
        let (before, lacking) = (authority.head(), answer.lacking(authority));
        authority.inform(&answer.missing.unwrap_or_default()).map_err(Failure::Refused)?;
        let request = asking.send(authority, &lacking, false);
        let changed = authority.head() != before;
        Ok((changed, self.ask(Waiting::Head, SEND_PATH, &request)))
    }

    fn handle_head(&mut self, text: &[u8], said: Option<&LockInfo>) -> Taken {
        let answer: SendResponse = read(text)?;
        let head = self.known.authority().map(|known| known.head().to_string());
        if head.as_ref() != Some(&answer.head) {
            return Err(Failure::Apart);
        }
        self.confirmed = said.map(|lock| lock.head.clone());
        Ok((false, None))
    }
}

/// Whether what is known changed, and what to ask next.
type Taken = Result<(bool, Option<Question>), Failure>;

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|_| Failure::BadAnswer)
}
