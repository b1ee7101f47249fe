//! Packetization layer path MTU discovery (RFC 8899): finds the longest datagram that arrives whole
//! at a peer, by probes of different lengths that the peer answers. It does not use ICMP.
//!
//! ```text
//!   Idle -- long data --> CheckingSupport -- no reply --> Unresponsive
//!     |                     |  reply                        |
//!     |  the peer probes    v                               |  the peer probes
//!     |        .--->  Searching: a trial of one length      |
//!     |        |       | arrived: try longer                |
//!     |        |       | lost: try shorter                  |
//!     v        |       v                                    v
//!     `--->  long data <-- Waiting, no trial at present
//! ```
//!
//! A peer is probed only while long data is sent to it.
//!
//! A length is too long only if several of its probes were lost while short probes sent with them
//! were answered ([`loss`]). If all probes are lost, the cause is congestion or a dead path; if
//! some are lost, the path has random loss. Neither shows a path MTU. All lengths are those of
//! plaintexts, which equal those of inner packets.
//!
//! Call order: the `handle_*` methods in any order; after each, [`Search::poll_probe`] until it
//! returns `None`, then [`Search::poll_timeout`] and [`Search::limit`].

mod loss;

use std::{collections::VecDeque, time::Duration};

use loss::{LossRate, Timeouts, TrialProbes, Verdict};

use super::{
    PathLimit,
    constants::{
        BASE_PLPMTU, INITIAL_PROBE_TIMEOUT, MAX_INCONCLUSIVE_TRIALS, MAX_PROBES, MIN_PLPMTU,
        PMTU_RAISE_INTERVAL, SEARCH_STEP,
    },
    probe::{PROBE_LEN, Probe, ProbeKind},
};
use crate::{message::DATA_OVERHEAD, time::Time};

/// Common path MTUs: 9000 and 4470 for jumbo frames, 1500 for Ethernet, 1492 for PPPoE, 1480 to
/// 1400 for tunnels, 1280 as the minimum of IPv6.
const COMMON: [u16; 11] = [9000, 4470, 1500, 1492, 1480, 1472, 1460, 1450, 1420, 1400, 1280];
/// Bytes of headers and tag around a plaintext over IPv6. Over IPv4, 20 bytes remain unused unless
/// the bisection finds them.
const OVERHEAD: u16 = 40 + 8 + DATA_OVERHEAD as u16;

/// The search for one peer's path MTU.
#[derive(Debug)]
pub(crate) struct Search {
    phase: Phase,
    /// The longest plaintext to send: the interface's MTU.
    top: u16,
    /// The longest length known to arrive, or the lower bound, which is assumed to arrive.
    low: u16,
    /// The shortest length known not to arrive, or more than `top`.
    high: u16,
    limit: Option<PathLimit>,
    /// Whether the peer ever replied to a probe, or sent one.
    peer_replies: bool,
    /// Smoothed round trip of a probe and its reply.
    rtt: Option<Duration>,
    loss: LossRate,
    /// Probes of the present trial.
    probes: TrialProbes,
    next_token: u32,
    /// Consecutive trials without a verdict.
    inconclusive_trials: u32,
    /// Time to search above a settled limit below `top`.
    raise_at: Option<Time>,
    outgoing: VecDeque<Probe>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No long data was sent yet.
    Idle,
    /// Short probes show whether the peer replies at all.
    CheckingSupport(Trial),
    /// The peer does not reply.
    Unresponsive,
    /// A trial of one length.
    Searching(Trial),
    /// No trial. Until the given time, if any, even long data does not start one.
    Waiting(Option<Time>),
}

/// A trial of one length.
#[derive(Clone, Copy, Debug)]
struct Trial {
    len: u16,
    /// The first token of this trial. Tokens at an odd distance from it belong to the short probes.
    first_token: u32,
    /// Number of rounds after the first probe: single probes when checking support, otherwise
    /// pairs.
    rounds: u32,
    due: Time,
}

impl Search {
    /// Creates the search for an interface's `mtu`. Nothing is known about the path.
    pub(crate) fn new(mtu: u16) -> Self {
        Self {
            phase: Phase::Idle,
            top: mtu,
            low: MIN_PLPMTU.min(mtu),
            high: mtu.saturating_add(1),
            limit: None,
            peer_replies: false,
            rtt: None,
            loss: LossRate::default(),
            probes: TrialProbes::default(),
            next_token: 0,
            inconclusive_trials: 0,
            raise_at: None,
            outgoing: VecDeque::new(),
        }
    }

    /// Handles a new endpoint of the peer or a new MTU of the interface. The previous limit may be
    /// wrong, but applies until the search finds another one.
    pub(crate) fn handle_change(&mut self, mtu: u16, now: Time) {
        self.top = mtu;
        if matches!(self.phase, Phase::Searching(_) | Phase::Waiting(_)) {
            self.restart_on_long_data(now);
        }
    }

    /// Handles a new session. A peer that replied before and was unresponsive is probed again.
    pub(crate) fn handle_session(&mut self) {
        if self.peer_replies && matches!(self.phase, Phase::Unresponsive) {
            self.phase = Phase::Idle;
        }
    }

    /// Handles a probe request of the peer, which shows that it will reply to ours.
    pub(crate) fn handle_probe_request(&mut self, now: Time) {
        self.peer_replies = true;
        match self.phase {
            Phase::Idle | Phase::Unresponsive => self.restart_on_long_data(now),
            Phase::CheckingSupport(_) => self.search(MIN_PLPMTU, now),
            Phase::Searching(_) | Phase::Waiting(_) => {}
        }
    }

    /// Handles the reply to a probe.
    pub(crate) fn handle_reply(&mut self, token: u32, now: Time) {
        self.peer_replies = true;
        let (Phase::CheckingSupport(trial) | Phase::Searching(trial)) = self.phase else { return };
        let distance = token.wrapping_sub(trial.first_token);
        let (round, is_long) = match self.phase {
            Phase::CheckingSupport(_) => (distance, false),
            _ => (distance.div_ceil(2), distance.is_multiple_of(2)),
        };
        if round > trial.rounds {
            return;
        }
        let round = round as usize;
        if let Some(sent) = self.probes.sent(round) {
            let sample = now.since(sent);
            self.rtt = Some(self.rtt.map_or(sample, |rtt| (7 * rtt + sample) / 8));
        }
        match self.phase {
            Phase::CheckingSupport(_) => self.search(MIN_PLPMTU, now),
            _ if is_long => {
                self.probes.handle_long_reply(&mut self.loss);
                self.handle_arrival(trial.len, now);
            }
            _ => self.probes.handle_short_reply(round, &mut self.loss),
        }
    }

    /// Handles the refusal of a probe by our own link, which it exceeds. The probe was not sent, so
    /// there is no need to wait for its loss.
    pub(crate) fn handle_refusal(&mut self, token: u32, now: Time) {
        if let Phase::Searching(trial) = self.phase
            && token.wrapping_sub(trial.first_token) <= 2 * trial.rounds
        {
            self.handle_too_long(trial.len, now);
        }
    }

    /// Handles long data, some time after the first such data since the last probe of its length.
    pub(crate) fn handle_long_data(&mut self, now: Time) {
        match self.phase {
            Phase::Idle => {
                let mut trial = self.start_trial(PROBE_LEN as u16, now);
                trial.due = now + Timeouts::new(self.rtt).lost;
                self.phase = Phase::CheckingSupport(trial);
            }
            Phase::Waiting(None) if self.raise_at.is_some_and(|at| at <= now) => {
                self.search(self.low, now);
            }
            Phase::Waiting(None) => {
                let trial = self.start_trial(self.low, now);
                self.phase = Phase::Searching(trial);
            }
            Phase::CheckingSupport(_)
            | Phase::Unresponsive
            | Phase::Searching(_)
            | Phase::Waiting(Some(_)) => {}
        }
    }

    /// Handles timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        match self.phase {
            Phase::Waiting(_) => self.phase = Phase::Waiting(None),
            Phase::CheckingSupport(trial) if trial.rounds + 1 == MAX_PROBES => {
                self.phase = Phase::Unresponsive;
            }
            Phase::CheckingSupport(mut trial) => {
                self.push_probe(trial.len);
                self.probes.push(now);
                trial.rounds += 1;
                trial.due = now + Timeouts::new(self.rtt).lost;
                self.phase = Phase::CheckingSupport(trial);
            }
            Phase::Searching(mut trial) => {
                let timeouts = Timeouts::new(self.rtt);
                match self.probes.judge(now, timeouts, &mut self.loss) {
                    Verdict::TooLong => self.handle_too_long(trial.len, now),
                    Verdict::Inconclusive => self.end_without_verdict(trial.len, now),
                    Verdict::Pending => {
                        if self.probes.next_pair_due(timeouts).is_some_and(|at| at <= now) {
                            self.push_pair(&mut trial, now);
                        }
                        trial.due = self.probes.due(timeouts);
                        self.phase = Phase::Searching(trial);
                    }
                }
            }
            Phase::Idle | Phase::Unresponsive => {}
        }
    }

    /// Returns the next probe to send.
    pub(crate) fn poll_probe(&mut self) -> Option<Probe> {
        self.outgoing.pop_front()
    }

    /// Returns the time of the next call of [`Search::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::CheckingSupport(trial) | Phase::Searching(trial) => Some(trial.due),
            Phase::Waiting(until) => until,
            Phase::Idle | Phase::Unresponsive => None,
        }
    }

    /// Returns the path MTU. `None` if it is unknown, or is at least the interface's MTU.
    pub(crate) fn limit(&self) -> Option<PathLimit> {
        self.limit
    }

    /// Returns the longest plaintext that is known to arrive. `None` while unknown.
    pub(crate) fn found(&self) -> Option<u16> {
        (self.low > MIN_PLPMTU).then_some(self.low)
    }

    /// Whether [`Search::handle_long_data`] should be called for the next long data.
    pub(crate) fn needs_long_data(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Waiting(None))
    }

    /// Restarts the search when long data is sent next.
    fn restart_on_long_data(&mut self, now: Time) {
        self.phase = Phase::Waiting(None);
        self.loss = LossRate::default();
        (self.low, self.raise_at) = (MIN_PLPMTU.min(self.top), Some(now));
        // The limit applies, but is not reported to senders.
        if let Some(limit) = &mut self.limit {
            limit.settled = false;
        }
    }

    /// Restarts the search from a length that arrives.
    fn search(&mut self, low: u16, now: Time) {
        self.low = low.min(self.top);
        self.high = self.top.saturating_add(1);
        self.raise_at = None;
        self.continue_search(now);
    }

    /// Starts a trial of the next length. Without a next length, ends the search.
    fn continue_search(&mut self, now: Time) {
        match next_length(self.low, self.high, self.top) {
            Some(len) => {
                let trial = self.start_trial(len, now);
                self.phase = Phase::Searching(trial);
            }
            None => {
                self.phase = Phase::Waiting(None);
                self.raise_at = (self.low < self.top).then_some(now + PMTU_RAISE_INTERVAL);
                if let Some(limit) = &mut self.limit {
                    limit.settled = true;
                }
            }
        }
    }

    fn handle_arrival(&mut self, len: u16, now: Time) {
        self.inconclusive_trials = 0;
        if len == self.low {
            self.phase = Phase::Waiting(None);
            return;
        }
        self.low = len;
        if len >= self.top {
            self.limit = None;
        } else if let Some(limit) = &mut self.limit {
            limit.bytes = limit.bytes.max(len);
        }
        self.continue_search(now);
    }

    fn handle_too_long(&mut self, len: u16, now: Time) {
        self.inconclusive_trials = 0;
        self.high = len;
        let shrank = len <= self.low;
        if shrank {
            self.low = MIN_PLPMTU.min(len);
        }
        let bytes = if self.high > BASE_PLPMTU { self.low.max(BASE_PLPMTU) } else { self.low };
        // A search above a known limit does not unsettle it.
        if shrank || self.limit.is_none_or(|limit| !limit.settled) {
            self.limit = Some(PathLimit { bytes, settled: false });
        }
        self.continue_search(now);
    }

    /// Ends a trial in which no probe, or hardly any, was answered. It is repeated later. After too
    /// many such trials, probing stops until the next session.
    fn end_without_verdict(&mut self, len: u16, now: Time) {
        self.inconclusive_trials =
            if self.probes.has_reply() { 1 } else { self.inconclusive_trials + 1 };
        if self.inconclusive_trials > MAX_INCONCLUSIVE_TRIALS {
            *self = Self {
                phase: Phase::Unresponsive,
                peer_replies: self.peer_replies,
                next_token: self.next_token,
                ..Self::new(self.top)
            };
            return;
        }
        self.phase =
            Phase::Waiting(Some(now + INITIAL_PROBE_TIMEOUT * (1 << self.inconclusive_trials)));
        if len > self.low {
            // The search continues then.
            self.raise_at = Some(now);
        }
    }

    fn start_trial(&mut self, len: u16, now: Time) -> Trial {
        let first_token = self.next_token;
        self.push_probe(len);
        self.probes.start(now);
        let due = self.probes.due(Timeouts::new(self.rtt));
        Trial { len, first_token, rounds: 0, due }
    }

    /// Sends another pair, the short probe first: if a full queue drops one of the two, only the
    /// verdict on the long one is delayed.
    fn push_pair(&mut self, trial: &mut Trial, now: Time) {
        self.push_probe(PROBE_LEN as u16);
        self.push_probe(trial.len);
        self.probes.push(now);
        trial.rounds += 1;
    }

    fn push_probe(&mut self, len: u16) {
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        self.outgoing.push_back(Probe { kind: ProbeKind::Request, token, len });
    }
}

/// Returns the next length to try if `low` arrives and `high` does not: first `top`, then the
/// middle one of the common lengths between them, then the midpoint.
fn next_length(low: u16, high: u16, top: u16) -> Option<u16> {
    if high > top {
        return (low < top).then_some(top);
    }
    if high - low <= SEARCH_STEP {
        return None;
    }
    let common = || COMMON.into_iter().map(|mtu| mtu - OVERHEAD);
    let between = || common().filter(|len| (low + 1..high).contains(len));
    Some(between().nth(between().count() / 2).unwrap_or(low.midpoint(high)))
}

#[cfg(test)]
mod tests;
