//! Search rounds for a direct path.
//!
//! ```text
//!   prime all -> own endpoints fresh -> call by relay -> pong by relay -> ping all, repeatedly
//!            |     or after 1 s          ^      | no pong
//!            |                           '------'
//!            '-> ping by relay -> call or pong by relay -> own endpoints fresh -> ...
//!       no public address known     or after 500 ms
//! ```
//!
//! A peer that did not receive a call has not primed. A ping to it could leave an entry in its NAT
//! that blocks a direct path for 30 s. Therefore an unanswered call is repeated. After the last
//! repetition the round pings anyway, because the peer may lack a relay and be directly reachable.
//! This happens rarely, so that such entries usually have expired when the peer becomes reachable.

use std::{net::SocketAddr, time::Duration};

use tailnet::disco::Message;

use super::{Direct, Peer};
use crate::peer_paths::{
    Context, Event, To,
    limit::Limit,
    timing::{
        AGAIN, BETTER, BLIND, CALL_DOUBT, CALL_SILENCE, CALL_WAITS, CALLS, GOOD_ENOUGH,
        PEER_PRIMES, PEER_PRIMES_LATE, PRIMING_HOPS, PRIMING_WAIT, RECALLS, REFRESH_WAIT, ROUNDS,
        TRIES,
    },
};

#[derive(Debug, Default)]
pub(super) struct Search {
    round: Option<Round>,
    /// The start of the next round, if it is still needed.
    next: Duration,
    /// The number of unsuccessful rounds.
    rounds: u8,
    /// The time of our last call.
    called: Option<Duration>,
    /// The time of the last pings without an answered call.
    blind: Option<Duration>,
    calls: Limit,
    recalls: Limit,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    began: Duration,
    stage: Stage,
    /// The end of the stage, or the time of the next call or ping.
    until: Duration,
    /// The time of the round's first call.
    called: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a call of the peer, which knows its endpoints better than the map. A stock peer
    /// delays its call by 5 s if we call first.
    AwaitingCall,
    /// Waits until our own endpoints are fresh.
    Refresh,
    /// Waits for the confirmation of our call. The number of repetitions.
    Called(usize),
    /// Pings all candidates. The number of finished attempts.
    Pinging(usize),
}

impl Search {
    /// A path is needed now.
    pub(super) fn want_now(&mut self, now: Duration) {
        self.next = now;
        self.rounds = 0;
    }

    /// A round that did not start until `now` waits until a path is needed again.
    pub(super) fn rest(&mut self, now: Duration) {
        self.next = self.next.max(now);
    }

    pub(super) fn reset(&mut self) {
        *self = Self { calls: self.calls, recalls: self.recalls, ..Self::default() };
    }

    /// A path was found. The round continues until each candidate was tried.
    pub(super) fn handle_path(&mut self, now: Duration) {
        self.next = now + BETTER;
        self.rounds = 0;
        self.round.take_if(|round| matches!(round.stage, Stage::Pinging(1..)));
    }

    /// Returns whether the last search failed.
    pub(super) fn has_failed(&self) -> bool {
        self.round.is_none() && self.rounds > 0
    }

    /// Returns whether the peer was never searched.
    pub(super) fn is_quiet(&self) -> bool {
        self.round.is_none() && self.called.is_none() && self.rounds == 0
    }

    pub(super) fn rounds(&self) -> u8 {
        self.rounds
    }
}

impl Peer {
    pub(crate) fn wants_direct(&self) -> bool {
        self.search.round.is_some() || self.direct.is_none() && self.activity.sent.is_some()
    }

    /// We have new endpoints that the peer does not know.
    pub(crate) fn handle_new_endpoints(&mut self, cx: &mut Context<'_>) {
        let called = self.search.called.is_some() && self.direct.is_none();
        if called && self.search.recalls.admit(cx.now, RECALLS) {
            match self.search.round {
                Some(Round { stage: Stage::AwaitingCall | Stage::Refresh, .. }) => {}
                Some(_) => self.call_and_wait(cx),
                None => self.search.want_now(cx.now),
            }
        }
        self.handle_timeout(cx);
    }

    /// The peer calls. It has sent packets to our known endpoints, so that its pinholes for them
    /// are open.
    pub(crate) fn handle_call(&mut self, endpoints: &[SocketAddr], cx: &mut Context<'_>) {
        self.activity.called = Some(cx.now);
        let used = self.direct.map(|direct| direct.addr);
        self.candidates.set_call(endpoints, used);
        let lost = |direct: Direct| {
            cx.now >= direct.alive + CALL_SILENCE || !endpoints.contains(&direct.addr)
        };
        if self.direct.is_some_and(lost) {
            self.doubt(CALL_DOUBT, cx);
        }
        if !self.search.calls.admit(cx.now, CALLS) {
            return;
        }
        let answered = self.search.called.is_some_and(|called| cx.now < called + AGAIN);
        match &mut self.search.round {
            None if answered => {
                self.candidates.reset_limits();
                self.begin_round(Stage::Pinging(0), cx);
            }
            None => {
                self.candidates.reset_limits();
                self.begin_round(Stage::Refresh, cx);
            }
            Some(Round { began, stage, until, .. }) => {
                let began = *began;
                let has_called = !matches!(stage, Stage::AwaitingCall | Stage::Refresh);
                match stage {
                    Stage::Pinging(0) => {}
                    Stage::Pinging(_) => (*stage, *until) = (Stage::Pinging(0), cx.now),
                    Stage::AwaitingCall => {
                        (*stage, *until) = (Stage::Refresh, cx.now + REFRESH_WAIT);
                    }
                    _ => {}
                }
                let new = self.candidates.join_round(began);
                self.prime(&new, cx);
                if !new.is_empty() && has_called && self.search.recalls.admit(cx.now, RECALLS) {
                    // The pings of a stock peer after our first call found no pinholes for these.
                    self.call(cx);
                }
            }
        }
        self.continue_round(cx);
    }

    /// Everything that we sent through the relay before `sent` has arrived.
    pub(crate) fn handle_relay_pong(&mut self, sent: Duration, cx: &mut Context<'_>) {
        let Some(round) = self.search.round else { return };
        match round.stage {
            Stage::AwaitingCall => self.set_stage(Stage::Refresh, cx.now + REFRESH_WAIT),
            Stage::Called(_) if round.called.is_some_and(|called| sent >= called) => {
                let primes = cx.now.saturating_sub(sent) / 8;
                let primes = primes.clamp(PEER_PRIMES, PEER_PRIMES_LATE);
                self.set_stage(Stage::Pinging(0), cx.now + primes);
            }
            _ => return,
        }
        self.continue_round(cx);
    }

    /// The peer pings through the relay, because it lacks a direct path.
    pub(crate) fn handle_relay_ping(&mut self, cx: &mut Context<'_>) {
        if self.direct.is_none()
            && self.search.round.is_none()
            && self.search.called.is_none_or(|called| cx.now >= called + AGAIN)
            && self.search.calls.admit(cx.now, CALLS)
        {
            self.begin_round(Stage::Refresh, cx);
            self.continue_round(cx);
        }
    }

    /// Starts a round if it is needed and due.
    pub(crate) fn search_if_due(&mut self, cx: &mut Context<'_>) {
        if self.is_active(cx.now)
            && self.search.round.is_none()
            && self.wants_better()
            && cx.now >= self.search.next
        {
            let knows = self.candidates.any_public();
            self.begin_round(if knows { Stage::Refresh } else { Stage::AwaitingCall }, cx);
            self.continue_round(cx);
        }
    }

    fn wants_better(&self) -> bool {
        !self.disco.is_zero()
            && self
                .direct
                .is_none_or(|direct| direct.doubt.is_some() || direct.latency > GOOD_ENOUGH)
    }

    pub(crate) fn search_deadline(&self) -> Option<Duration> {
        let Some(round) = self.search.round else {
            let next = self.search.next;
            return (self.wants_better() && next < self.active_until()).then_some(next);
        };
        Some(round.until)
    }

    fn begin_round(&mut self, first: Stage, cx: &mut Context<'_>) {
        let now = cx.now;
        self.candidates.begin_round(now, self.direct.map(|direct| direct.addr));
        let addrs: Vec<_> = self.candidates.of_round(now).map(|entry| entry.addr).collect();
        self.prime(&addrs, cx);
        let pause = ROUNDS[usize::from(self.search.rounds).min(ROUNDS.len() - 1)];
        let pause = if self.direct.is_some() { BETTER } else { pause };
        self.search.next = now + cx.jittered(pause);
        if self.direct.is_none() {
            self.search.rounds = self.search.rounds.saturating_add(1);
        }
        let region = self.region_up(cx);
        let (stage, wait) = match (first, region) {
            (Stage::Pinging(_), _) => (first, PEER_PRIMES),
            (_, None) => (Stage::Called(0), PRIMING_WAIT),
            (Stage::AwaitingCall, _) => (first, CALL_WAITS[0]),
            _ => (first, REFRESH_WAIT),
        };
        self.search.round = Some(Round { began: now, stage, until: now + wait, called: None });
        if let Some(region) = region.filter(|_| stage == Stage::AwaitingCall) {
            self.ping_by_relay(region, None, cx);
        }
        if !matches!(stage, Stage::Pinging(_)) && !cx.own.is_fresh(now) && cx.own.request(now) {
            cx.emit(Event::RefreshEndpoints);
        }
    }

    fn prime(&mut self, addrs: &[SocketAddr], cx: &mut Context<'_>) {
        for addr in addrs {
            self.send_ping(*addr, Some(PRIMING_HOPS), None, cx);
        }
    }

    /// Processes the stages of the round that are due.
    pub(crate) fn continue_round(&mut self, cx: &mut Context<'_>) {
        while let Some(round) = self.search.round {
            let due = cx.now >= round.until;
            match round.stage {
                Stage::AwaitingCall if due => self.set_stage(Stage::Refresh, cx.now + REFRESH_WAIT),
                Stage::Refresh if due || cx.own.is_fresh(cx.now) => {
                    self.call_and_wait(cx);
                }
                Stage::Called(more) if due => self.call_again(more, cx),
                Stage::Pinging(tries) if due => {
                    self.ping_unanswered(round.began, cx);
                    match TRIES.get(tries + 1) {
                        Some(at) => {
                            self.set_stage(Stage::Pinging(tries + 1), cx.now + *at - TRIES[tries]);
                        }
                        None => self.search.round = None,
                    }
                }
                _ => return,
            }
        }
    }

    fn set_stage(&mut self, stage: Stage, until: Duration) {
        if let Some(round) = &mut self.search.round {
            (round.stage, round.until) = (stage, until);
        }
    }

    fn call_and_wait(&mut self, cx: &mut Context<'_>) {
        self.call(cx);
        self.set_stage(Stage::Called(0), cx.now + CALL_WAITS[0]);
        if let Some(round) = &mut self.search.round {
            round.called = Some(cx.now);
        }
    }

    /// The call was not confirmed.
    fn call_again(&mut self, more: usize, cx: &mut Context<'_>) {
        if self.region_up(cx).is_none() {
            return self.set_stage(Stage::Pinging(0), cx.now);
        }
        match CALL_WAITS.get(more + 1) {
            Some(wait) => {
                self.call(cx);
                self.set_stage(Stage::Called(more + 1), cx.now + *wait);
            }
            None if self.search.blind.is_none_or(|at| cx.now >= at + BLIND) => {
                self.search.blind = Some(cx.now);
                self.set_stage(Stage::Pinging(0), cx.now);
            }
            None => self.search.round = None,
        }
    }

    /// Sends our endpoints to the peer, and then a ping that confirms their arrival.
    fn call(&mut self, cx: &mut Context<'_>) {
        let Some(region) = self.region(cx) else { return };
        if !cx.own.endpoints.is_empty() {
            let message = Message::CallMeMaybe { endpoints: cx.own.endpoints.clone() };
            cx.send(To::Relay { region, peer: self.key }, self.disco, message);
            self.search.called = Some(cx.now);
        }
        self.ping_by_relay(region, None, cx);
    }

    fn ping_unanswered(&mut self, began: Duration, cx: &mut Context<'_>) {
        let waits = self
            .candidates
            .of_round(began)
            .filter(|entry| entry.pong.is_none_or(|pong| pong < began))
            .map(|entry| entry.addr)
            .collect::<Vec<_>>();
        for addr in waits {
            self.ping(addr, None, cx);
        }
    }
}
