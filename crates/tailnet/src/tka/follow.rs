//! How a node follows tailnet lock: what it knows, and what it asks the coordinator for.
//!
//! ```text
//!            .-- off there ---► bootstrap ──► a secret that counts ──► nothing is known
//!   input ────+-- new here ----► bootstrap ──► first checkpoint ─.
//!            `-- other head ------------------------------------+──► offer ──► updates ──► send
//! ```
//!
//! One request at a time. What is known changes by what was verified alone: an answer that does
//! not count, or none, changes nothing and is asked for again after a while.

use std::{fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Authority, VerifyError,
    sync::{
        BOOTSTRAP_PATH, BootstrapResponse, OFFER_PATH, OfferResponse, Requester, SEND_PATH,
        SendResponse, Step, step,
    },
};
use crate::{control::backoff::Backoff, messages::TkaInfo};

/// What is known of tailnet lock.
#[derive(Debug, Default)]
pub enum LocalAuthority {
    /// Nothing.
    #[default]
    Unknown,
    /// It was on, and what was kept of it cannot be read.
    Damaged,
    /// Who may sign.
    Trusted(Box<Authority>),
}

impl LocalAuthority {
    /// Who may sign.
    pub fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Trusted(authority) => Some(authority),
            _ => None,
        }
    }
}

/// A request for the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// By which its answer is known.
    pub number: u32,
    /// Where it is asked.
    pub path: &'static str,
    /// What is asked, in JSON.
    pub body: Vec<u8>,
}

/// Why what is known here is not what the coordinator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// It was not answered; why, in words.
    NoAnswer(String),
    /// The answer cannot be read.
    BadAnswer,
    /// What was answered does not count.
    Refused(VerifyError),
    /// It is off for the coordinator, which has no secret that turns it off.
    NoSecret,
    /// The coordinator has other updates, and does not give them.
    Apart,
}

impl fmt::Display for SyncError {
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
    known: LocalAuthority,
    /// Whether a map came over the connection that stands.
    is_connected: bool,
    number: u32,
    waiting: Option<Waiting>,
    /// What the map input when the coordinator last confirmed this node's head: it may lag behind.
    confirmed: Option<String>,
    failure: Option<SyncError>,
    failures: Backoff,
    retry: Option<Duration>,
}

/// What the coordinator says of tailnet lock, and what its questions are made with.
#[derive(Clone, Copy, Debug)]
pub struct SyncInput<'a> {
    /// What the map says.
    pub tka: Option<&'a TkaInfo>,
    /// What questions are made with.
    pub requester: Requester,
    /// The time.
    pub now: Duration,
}

impl Follower {
    /// Begins with what was kept.
    pub fn new(known: LocalAuthority) -> Self {
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
    pub fn local_authority(&self) -> &LocalAuthority {
        &self.known
    }

    /// Why that is not what the coordinator says.
    pub fn failure(&self) -> Option<&SyncError> {
        self.failure.as_ref()
    }

    /// When [`Self::poll_request`] may have something to ask that it had not before.
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
    pub fn poll_request(&mut self, input: SyncInput<'_>) -> Option<SyncRequest> {
        let waits = self.waiting.is_some() || self.retry.is_some_and(|at| input.now < at);
        if !self.is_connected || waits || matches!(self.known, LocalAuthority::Damaged) {
            return None;
        }
        self.retry = None;
        let known = self.known.authority();
        let is_confirmed = input.tka.is_some_and(|tka| self.confirmed.as_ref() == Some(&tka.head));
        match step(input.tka, known) {
            Step::Update if !is_confirmed => self.request_updates(input.requester),
            Step::Nothing | Step::Update => {
                self.failure = None;
                self.failures.reset();
                None
            }
            Step::Begin => {
                self.request(Waiting::Checkpoint, BOOTSTRAP_PATH, &input.requester.bootstrap(None))
            }
            Step::Disable => {
                let request = input.requester.bootstrap(known);
                self.request(Waiting::Secret, BOOTSTRAP_PATH, &request)
            }
        }
    }

    fn request_updates(&mut self, requester: Requester) -> Option<SyncRequest> {
        let request = requester.offer(self.known.authority()?);
        self.request(Waiting::Updates, OFFER_PATH, &request)
    }

    fn request(
        &mut self,
        waiting: Waiting,
        path: &'static str,
        request: &impl Serialize,
    ) -> Option<SyncRequest> {
        let body = serde_json::to_vec(request).ok()?;
        self.number = self.number.wrapping_add(1);
        self.waiting = Some(waiting);
        Some(SyncRequest { number: self.number, path, body })
    }

    /// Takes the answer to a request, or why there is none. Whether what is known changed, and
    /// what to ask next. `random` is any number.
    pub fn handle_answer(
        &mut self,
        number: u32,
        answer: Result<&[u8], String>,
        input: SyncInput<'_>,
        random: u32,
    ) -> (bool, Option<SyncRequest>) {
        let Some(waiting) = self.waiting.take_if(|_| number == self.number) else {
            return (false, None);
        };
        let taken = answer.map_err(SyncError::NoAnswer).and_then(|text| match waiting {
            Waiting::Checkpoint => self.handle_checkpoint(text, input.requester),
            Waiting::Secret => self.handle_secret(text),
            Waiting::Updates => self.handle_updates(text, input.requester),
            Waiting::Head => self.handle_head(text, input.tka),
        });
        match taken {
            Ok((changed, Some(request))) => (changed, Some(request)),
            Ok((changed, None)) => (changed, self.poll_request(input)),
            Err(failure) => {
                self.failure = Some(failure);
                self.retry = Some(input.now + self.failures.handle_failure(random));
                (false, None)
            }
        }
    }

    /// The coordinator is believed in this, once: there is nobody else to ask.
    fn handle_checkpoint(&mut self, text: &[u8], requester: Requester) -> Taken {
        let answer: BootstrapResponse = read(text)?;
        let authority = Authority::bootstrap(&answer.checkpoint).map_err(SyncError::Refused)?;
        self.known = LocalAuthority::Trusted(Box::new(authority));
        // Even if there is none: the coordinator learns by it that this node knows the keys.
        Ok((true, self.request_updates(requester)))
    }

    fn handle_secret(&mut self, text: &[u8]) -> Taken {
        let secret = read::<BootstrapResponse>(text)?.disablement_secret;
        let known = self.known.authority();
        let is_valid = |known: &Authority| !secret.is_empty() && known.is_disabled_by(&secret);
        if !known.is_some_and(is_valid) {
            return Err(SyncError::NoSecret);
        }
        self.known = LocalAuthority::Unknown;
        Ok((true, None))
    }

    fn handle_updates(&mut self, text: &[u8], requester: Requester) -> Taken {
        let answer: OfferResponse = read(text)?;
        let LocalAuthority::Trusted(authority) = &mut self.known else { return Ok((false, None)) };
        let (before, missing_at_coordinator) =
            (authority.head(), answer.missing_at_coordinator(authority));
        authority.inform(&answer.missing.unwrap_or_default()).map_err(SyncError::Refused)?;
        let request = requester.send(authority, &missing_at_coordinator, false);
        let changed = authority.head() != before;
        Ok((changed, self.request(Waiting::Head, SEND_PATH, &request)))
    }

    fn handle_head(&mut self, text: &[u8], input: Option<&TkaInfo>) -> Taken {
        let answer: SendResponse = read(text)?;
        let head = self.known.authority().map(|known| known.head().to_string());
        if head.as_ref() != Some(&answer.head) {
            return Err(SyncError::Apart);
        }
        self.confirmed = input.map(|tka| tka.head.clone());
        Ok((false, None))
    }
}

/// Whether what is known changed, and what to ask next.
type Taken = Result<(bool, Option<SyncRequest>), SyncError>;

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, SyncError> {
    serde_json::from_slice(text).map_err(|_| SyncError::BadAnswer)
}
