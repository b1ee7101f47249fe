//! Synchronization of a node's authority with the coordinator.
//!
//! ```text
//!            .-- off there -----► bootstrap ──► valid disablement secret ──► no authority
//!   input ───+-- new here ------► bootstrap ──► first checkpoint ─.
//!            `-- different head ----------------------------------+──► offer ──► updates ──► send
//! ```
//!
//! There is one pending request at a time. Only verified answers change the authority. A rejected
//! or missing answer changes nothing, and the request is repeated after a delay.

use std::{fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tailnet::{
    map_messages::TkaInfo,
    tka::{
        Authority, VerifyError,
        sync_requests::{
            BOOTSTRAP_PATH, BootstrapResponse, OFFER_PATH, OfferResponse, Requester, SEND_PATH,
            SendResponse,
        },
    },
};

use crate::backoff::Backoff;

/// The node's copy of the authority.
#[derive(Debug, Default)]
pub enum LocalAuthority {
    /// Tailnet lock is off here.
    #[default]
    Unknown,
    /// Tailnet lock was on, and its stored state is unreadable.
    Damaged,
    /// The trusted keys.
    Trusted(Box<Authority>),
}

impl LocalAuthority {
    /// Returns the authority, if tailnet lock is on.
    pub fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Trusted(authority) => Some(authority),
            _ => None,
        }
    }
}

/// A request to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The ID of the request.
    pub number: u32,
    /// The path.
    pub path: &'static str,
    /// The body, in JSON.
    pub body: Vec<u8>,
}

/// The reason why the copy differs from the coordinator's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// The request failed for this reason.
    NoAnswer(String),
    /// The answer is unreadable.
    BadAnswer,
    /// An update in the answer is rejected.
    Refused(VerifyError),
    /// The coordinator reports that it is off, without a valid secret.
    NoSecret,
    /// The coordinator has other updates, and does not send them.
    Diverged,
}

impl fmt::Display for SyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(why) => write!(f, "its updates cannot be fetched: {why}"),
            Self::BadAnswer => f.write_str("the coordinator's answer cannot be read"),
            Self::Refused(why) => {
                write!(f, "an update from the coordinator is rejected: {why}")
            }
            Self::NoSecret => f.write_str(
                "it stays on, although the coordinator reports that it is off: only a valid disablement \
                 secret turns it off",
            ),
            Self::Diverged => f.write_str(
                "the coordinator has other updates than this node, and does not send them",
            ),
        }
    }
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// None.
    Nothing,
    /// Request the first checkpoint.
    FetchCheckpoint,
    /// Request the disablement secret. Nothing else turns tailnet lock off.
    FetchSecret,
    /// Request updates.
    FetchUpdates,
}

/// Returns the next action for the state in the map and this node's authority.
pub fn next_step(announced: Option<&TkaInfo>, known: Option<&Authority>) -> Step {
    let announced = announced.filter(|lock| !lock.disabled && !lock.head.is_empty());
    match (announced, known) {
        (None, None) => Step::Nothing,
        (Some(_), None) => Step::FetchCheckpoint,
        (None, Some(_)) => Step::FetchSecret,
        (Some(lock), Some(known)) if lock.head == known.head().to_string() => Step::Nothing,
        (Some(_), Some(_)) => Step::FetchUpdates,
    }
}

/// The expected answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Checkpoint,
    Secret,
    Updates,
    Head,
}

/// Synchronizes the node's copy of the authority with the coordinator.
#[derive(Debug)]
pub struct Follower {
    known: LocalAuthority,
    /// Whether a map was received over the current connection.
    is_connected: bool,
    number: u32,
    waiting: Option<Waiting>,
    /// The head in the map when the coordinator last confirmed this node's head. The map may lag
    /// behind.
    confirmed: Option<String>,
    failure: Option<SyncError>,
    failures: Backoff,
    retry: Option<Duration>,
}

/// The inputs of a synchronization step.
#[derive(Clone, Copy, Debug)]
pub struct SyncInput<'a> {
    /// The state in the map.
    pub tka: Option<&'a TkaInfo>,
    /// Creates the requests.
    pub requester: Requester,
    /// The time.
    pub now: Duration,
}

impl Follower {
    /// Starts with the stored copy.
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

    /// Returns the copy of the authority.
    pub fn local_authority(&self) -> &LocalAuthority {
        &self.known
    }

    /// Returns the reason why the copy differs from the coordinator's state.
    pub fn failure(&self) -> Option<&SyncError> {
        self.failure.as_ref()
    }

    /// Returns the time at which [`Self::poll_request`] may return a new request.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.retry.filter(|_| self.is_connected)
    }

    /// The first map of a connection was received.
    pub fn handle_connected(&mut self) {
        self.is_connected = true;
        (self.waiting, self.confirmed, self.retry) = (None, None, None);
    }

    /// The connection ended, and pending requests get no answer.
    pub fn handle_disconnected(&mut self) {
        (self.is_connected, self.waiting) = (false, None);
    }

    /// Returns the next request.
    pub fn poll_request(&mut self, input: SyncInput<'_>) -> Option<SyncRequest> {
        let waits = self.waiting.is_some() || self.retry.is_some_and(|at| input.now < at);
        if !self.is_connected || waits || matches!(self.known, LocalAuthority::Damaged) {
            return None;
        }
        self.retry = None;
        let known = self.known.authority();
        let is_confirmed = input.tka.is_some_and(|tka| self.confirmed.as_ref() == Some(&tka.head));
        match next_step(input.tka, known) {
            Step::FetchUpdates if !is_confirmed => self.request_updates(input.requester),
            Step::Nothing | Step::FetchUpdates => {
                self.failure = None;
                self.failures.reset();
                None
            }
            Step::FetchCheckpoint => {
                self.request(Waiting::Checkpoint, BOOTSTRAP_PATH, &input.requester.bootstrap(None))
            }
            Step::FetchSecret => {
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

    /// Processes an answer, or the reason why it is missing. Returns whether the copy changed, and
    /// the next request. `random` is any number.
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
        let outcome = answer.map_err(SyncError::NoAnswer).and_then(|text| match waiting {
            Waiting::Checkpoint => self.handle_checkpoint(text, input.requester),
            Waiting::Secret => self.handle_secret(text),
            Waiting::Updates => self.handle_updates(text, input.requester),
            Waiting::Head => self.handle_head(text, input.tka),
        });
        match outcome {
            Ok((changed, Some(request))) => (changed, Some(request)),
            Ok((changed, None)) => (changed, self.poll_request(input)),
            Err(failure) => {
                self.failure = Some(failure);
                self.retry = Some(input.now + self.failures.handle_failure(random));
                (false, None)
            }
        }
    }

    /// The coordinator is trusted here, once, because no other source exists.
    fn handle_checkpoint(&mut self, text: &[u8], requester: Requester) -> Outcome {
        let answer: BootstrapResponse = read(text)?;
        let authority = Authority::bootstrap(&answer.checkpoint).map_err(SyncError::Refused)?;
        self.known = LocalAuthority::Trusted(Box::new(authority));
        // Sent even if nothing is missing: it informs the coordinator that this node has the keys.
        Ok((true, self.request_updates(requester)))
    }

    fn handle_secret(&mut self, text: &[u8]) -> Outcome {
        let secret = read::<BootstrapResponse>(text)?.disablement_secret;
        let known = self.known.authority();
        let is_valid = |known: &Authority| !secret.is_empty() && known.is_disabled_by(&secret);
        if !known.is_some_and(is_valid) {
            return Err(SyncError::NoSecret);
        }
        self.known = LocalAuthority::Unknown;
        Ok((true, None))
    }

    fn handle_updates(&mut self, text: &[u8], requester: Requester) -> Outcome {
        let answer: OfferResponse = read(text)?;
        let LocalAuthority::Trusted(authority) = &mut self.known else { return Ok((false, None)) };
        let (before, missing_at_coordinator) =
            (authority.head(), answer.missing_at_coordinator(authority));
        authority.inform(&answer.missing.unwrap_or_default()).map_err(SyncError::Refused)?;
        let request = requester.send(authority, &missing_at_coordinator, false);
        let changed = authority.head() != before;
        Ok((changed, self.request(Waiting::Head, SEND_PATH, &request)))
    }

    fn handle_head(&mut self, text: &[u8], input: Option<&TkaInfo>) -> Outcome {
        let answer: SendResponse = read(text)?;
        let head = self.known.authority().map(|known| known.head().to_string());
        if head.as_ref() != Some(&answer.head) {
            return Err(SyncError::Diverged);
        }
        self.confirmed = input.map(|tka| tka.head.clone());
        Ok((false, None))
    }
}

/// Whether the copy changed, and the next request.
type Outcome = Result<(bool, Option<SyncRequest>), SyncError>;

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, SyncError> {
    serde_json::from_slice(text).map_err(|_| SyncError::BadAnswer)
}
