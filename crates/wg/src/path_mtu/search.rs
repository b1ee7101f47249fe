//! How long a datagram may be to arrive whole at a peer: packetization layer path MTU
//! discovery (RFC 8899) by questions of a length, which the peer answers when they
//! arrive. No ICMP is needed, and none is believed.
//!
//! ```text
//!   Idle -- long data --> Asking -- no answer --> Silent      a peer that knows nothing of it
//!     |                     |  answer               |
//!     |  the peer asks      v                       |  the peer asks
//!     |        .--->  Trying a length               |
//!     |        |       | arrived: longer            |
//!     |        |       | lost: shorter              |
//!     v        |       v                            v
//!     `--->  long data <-- Resting, nothing to search for at present
//! ```
//!
//! Nothing is asked of a peer to which nothing long is sent.
//!
//! A length counts as too long only when questions of it were lost again and again while
//! short ones beside them were answered ([`doubt`]): what loses all is congestion or a dead
//! path, what loses some is a poor one, and neither is a path MTU. All lengths are of
//! plaintexts, and so of inner packets.
//!
//! Call order: the `handle_*` verbs in any order; after each, [`Search::poll_question`]
//! until it is empty, then [`Search::poll_timeout`] and [`Search::limit`].

mod doubt;

use std::{collections::VecDeque, time::Duration};

use doubt::{Loss, Questions, Verdict, Waits};

use super::{
    PathLimit,
    constants::{
        PROBE_BASE, PROBE_FIRST_TIMEOUT, PROBE_FLOOR, PROBE_LOST, PROBE_RAISE_AFTER, PROBE_STEP,
        PROBE_STRIKES,
    },
    probe::{PROBE_LEN, Probe, ProbeKind},
};
use crate::{message::DATA_OVERHEAD, time::Time};

/// MTUs that paths commonly have: jumbo frames' 9000 and 4470, Ethernet's 1500, PPPoE's
/// 1492, tunnels' from 1480 to 1400, IPv6's least.
const COMMON: [u16; 11] = [9000, 4470, 1500, 1492, 1480, 1472, 1460, 1450, 1420, 1400, 1280];
/// What of a path's MTU is no plaintext, over IPv6; with IPv4 20 bytes stay unused until the
/// middle of two lengths is tried.
const OVERHEAD: u16 = 40 + 8 + DATA_OVERHEAD as u16;

/// The search for one peer's path MTU.
#[derive(Debug)]
pub(super) struct Search {
    phase: Phase,
    /// The longest plaintext that there is to send: the interface's MTU.
    top: u16,
    /// The longest known to arrive, or the floor, which is taken to.
    low: u16,
    /// The shortest known not to arrive, or more than `top`.
    high: u16,
    limit: Option<PathLimit>,
    /// Whether the peer ever answered, or asked.
    answers: bool,
    /// Of a question and its answer, smoothed.
    rtt: Option<Duration>,
    loss: Loss,
    /// Of the trial.
    asked: Questions,
    next_token: u32,
    /// Trials in a row that ended without a verdict.
    strikes: u32,
    /// When a settled limit below `top` is looked at again.
    raise_at: Option<Time>,
    questions: VecDeque<Probe>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing long was sent yet.
    Idle,
    /// Whether the peer answers at all.
    Asking(Trial),
    /// It does not.
    Silent,
    /// Whether a length arrives.
    Trying(Trial),
    /// Nothing is asked; before a time, where there is one, not even for long data.
    Resting(Option<Time>),
}

/// Questions of one length.
#[derive(Clone, Copy, Debug)]
struct Trial {
    len: u16,
    /// The tokens from here on are this trial's; those at an odd distance are of the
    /// short questions beside it.
    first_token: u32,
    /// How many followed the first: of a length alone, or in pairs.
    rounds: u32,
    due: Time,
}

impl Search {
    /// A path of which nothing is known, for an interface's `mtu`.
    pub fn new(mtu: u16) -> Self {
        Self {
            phase: Phase::Idle,
            top: mtu,
            low: PROBE_FLOOR.min(mtu),
            high: mtu.saturating_add(1),
            limit: None,
            answers: false,
            rtt: None,
            loss: Loss::default(),
            asked: Questions::default(),
            next_token: 0,
            strikes: 0,
            raise_at: None,
            questions: VecDeque::new(),
        }
    }

    /// The peer is elsewhere, or the interface has another MTU: what was found is no
    /// longer true, but is kept to until something else is found.
    pub fn handle_change(&mut self, mtu: u16, now: Time) {
        self.top = mtu;
        if matches!(self.phase, Phase::Trying(_) | Phase::Resting(_)) {
            self.rest_before_search(now);
        }
    }

    /// There is a new session. Who answered once and then was silent for long may be back.
    pub fn handle_session(&mut self) {
        if self.answers && matches!(self.phase, Phase::Silent) {
            self.phase = Phase::Idle;
        }
    }

    /// The peer asked, and so it will answer.
    pub fn handle_question(&mut self, now: Time) {
        self.answers = true;
        match self.phase {
            Phase::Idle | Phase::Silent => self.rest_before_search(now),
            Phase::Asking(_) => self.search(PROBE_FLOOR, now),
            Phase::Trying(_) | Phase::Resting(_) => {}
        }
    }

    /// A question was answered.
    pub fn handle_answer(&mut self, token: u32, now: Time) {
        self.answers = true;
        let (Phase::Asking(trial) | Phase::Trying(trial)) = self.phase else { return };
        let distance = token.wrapping_sub(trial.first_token);
        let (round, is_long) = match self.phase {
            Phase::Asking(_) => (distance, false),
            _ => (distance.div_ceil(2), distance.is_multiple_of(2)),
        };
        if round > trial.rounds {
            return;
        }
        let round = round as usize;
        if let Some(sent) = self.asked.sent(round) {
            let sample = now.since(sent);
            self.rtt = Some(self.rtt.map_or(sample, |rtt| (7 * rtt + sample) / 8));
        }
        match self.phase {
            Phase::Asking(_) => self.search(PROBE_FLOOR, now),
            _ if is_long => {
                self.asked.long_answered(&mut self.loss);
                self.arrived(trial.len, now);
            }
            _ => self.asked.short_answered(round, &mut self.loss),
        }
    }

    /// Our own link refused a question as too long: nothing was lost, and there is no
    /// need to wait.
    pub fn handle_refusal(&mut self, token: u32, now: Time) {
        if let Phase::Trying(trial) = self.phase
            && token.wrapping_sub(trial.first_token) <= 2 * trial.rounds
        {
            self.too_long(trial.len, now);
        }
    }

    /// Long data was sent, a while ago for the first time since the last question.
    pub fn handle_long_data(&mut self, now: Time) {
        match self.phase {
            Phase::Idle => {
                let mut trial = self.begin(PROBE_LEN as u16, now);
                trial.due = now + Waits::new(self.rtt).lost;
                self.phase = Phase::Asking(trial);
            }
            Phase::Resting(None) if self.raise_at.is_some_and(|at| at <= now) => {
                self.search(self.low, now);
            }
            Phase::Resting(None) => {
                let trial = self.begin(self.low, now);
                self.phase = Phase::Trying(trial);
            }
            Phase::Asking(_) | Phase::Silent | Phase::Trying(_) | Phase::Resting(Some(_)) => {}
        }
    }

    /// Works on what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        match self.phase {
            Phase::Resting(_) => self.phase = Phase::Resting(None),
            Phase::Asking(trial) if trial.rounds + 1 == PROBE_LOST => self.phase = Phase::Silent,
            Phase::Asking(mut trial) => {
                self.push_question(trial.len);
                self.asked.push(now);
                trial.rounds += 1;
                trial.due = now + Waits::new(self.rtt).lost;
                self.phase = Phase::Asking(trial);
            }
            Phase::Trying(mut trial) => {
                let waits = Waits::new(self.rtt);
                match self.asked.judge(now, waits, &mut self.loss) {
                    Verdict::TooLong => self.too_long(trial.len, now),
                    Verdict::Unknown => self.give_up(trial.len, now),
                    Verdict::Open => {
                        if self.asked.next_pair(waits).is_some_and(|at| at <= now) {
                            self.ask_again(&mut trial, now);
                        }
                        trial.due = self.asked.due(waits);
                        self.phase = Phase::Trying(trial);
                    }
                }
            }
            Phase::Idle | Phase::Silent => {}
        }
    }

    /// The next question to send.
    pub fn poll_question(&mut self) -> Option<Probe> {
        self.questions.pop_front()
    }

    /// When [`Search::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Asking(trial) | Phase::Trying(trial) => Some(trial.due),
            Phase::Resting(until) => until,
            Phase::Idle | Phase::Silent => None,
        }
    }

    /// What may be sent; `None` where that is all that the interface sends, or nobody
    /// knows.
    pub fn limit(&self) -> Option<PathLimit> {
        self.limit
    }

    /// The longest plaintext that was seen to arrive; `None` while nobody knows.
    pub fn found(&self) -> Option<u16> {
        (self.low > PROBE_FLOOR).then_some(self.low)
    }

    /// Whether it is to be told when long data is sent next.
    pub fn wants_long_data(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Resting(None))
    }

    /// Searches anew, but only once long data is sent.
    fn rest_before_search(&mut self, now: Time) {
        self.phase = Phase::Resting(None);
        self.loss = Loss::default();
        (self.low, self.raise_at) = (PROBE_FLOOR.min(self.top), Some(now));
        // It is kept to, but nobody is told of it.
        if let Some(limit) = &mut self.limit {
            limit.settled = false;
        }
    }

    /// Searches anew from a length on that arrives.
    fn search(&mut self, low: u16, now: Time) {
        self.low = low.min(self.top);
        self.high = self.top.saturating_add(1);
        self.raise_at = None;
        self.go_on(now);
    }

    /// Tries the next length, or rests where there is none.
    fn go_on(&mut self, now: Time) {
        match next_length(self.low, self.high, self.top) {
            Some(len) => {
                let trial = self.begin(len, now);
                self.phase = Phase::Trying(trial);
            }
            None => {
                self.phase = Phase::Resting(None);
                self.raise_at = (self.low < self.top).then_some(now + PROBE_RAISE_AFTER);
                if let Some(limit) = &mut self.limit {
                    limit.settled = true;
                }
            }
        }
    }

    fn arrived(&mut self, len: u16, now: Time) {
        self.strikes = 0;
        if len == self.low {
            self.phase = Phase::Resting(None);
            return;
        }
        self.low = len;
        if len >= self.top {
            self.limit = None;
        } else if let Some(limit) = &mut self.limit {
            limit.bytes = limit.bytes.max(len);
        }
        self.go_on(now);
    }

    fn too_long(&mut self, len: u16, now: Time) {
        self.strikes = 0;
        self.high = len;
        let shrank = len <= self.low;
        if shrank {
            self.low = PROBE_FLOOR.min(len);
        }
        let bytes = if self.high > PROBE_BASE { self.low.max(PROBE_BASE) } else { self.low };
        // A look whether a known limit may be raised takes nothing back.
        if shrank || self.limit.is_none_or(|limit| !limit.settled) {
            self.limit = Some(PathLimit { bytes, settled: false });
        }
        self.go_on(now);
    }

    /// Nothing at all is answered, or hardly anything: it is asked again later, and in the end no more before
    /// there is another session.
    fn give_up(&mut self, len: u16, now: Time) {
        self.strikes = if self.asked.is_heard() { 1 } else { self.strikes + 1 };
        if self.strikes > PROBE_STRIKES {
            *self = Self {
                phase: Phase::Silent,
                answers: self.answers,
                next_token: self.next_token,
                ..Self::new(self.top)
            };
            return;
        }
        self.phase = Phase::Resting(Some(now + PROBE_FIRST_TIMEOUT * (1 << self.strikes)));
        if len > self.low {
            // The search goes on then.
            self.raise_at = Some(now);
        }
    }

    fn begin(&mut self, len: u16, now: Time) -> Trial {
        let first_token = self.next_token;
        self.push_question(len);
        self.asked.begin(now);
        let due = self.asked.due(Waits::new(self.rtt));
        Trial { len, first_token, rounds: 0, due }
    }

    /// Asks again, a short question first: should a full queue drop one of them, it is
    /// the longer one's verdict that waits.
    fn ask_again(&mut self, trial: &mut Trial, now: Time) {
        self.push_question(PROBE_LEN as u16);
        self.push_question(trial.len);
        self.asked.push(now);
        trial.rounds += 1;
    }

    fn push_question(&mut self, len: u16) {
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        self.questions.push_back(Probe { kind: ProbeKind::Question, token, len });
    }
}

/// The length to try next where `low` arrives and `high` does not: all that there is to
/// send first, then among the common ones between the two, then the middle.
fn next_length(low: u16, high: u16, top: u16) -> Option<u16> {
    if high > top {
        return (low < top).then_some(top);
    }
    if high - low <= PROBE_STEP {
        return None;
    }
    let common = || COMMON.into_iter().map(|mtu| mtu - OVERHEAD);
    let between = || common().filter(|len| (low + 1..high).contains(len));
    Some(between().nth(between().count() / 2).unwrap_or(low.midpoint(high)))
}

#[cfg(test)]
mod tests;
