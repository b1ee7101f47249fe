//! A direct path by chance (docs/decisions/0013), where one of the two is behind a box that gives each
//! destination another port, and the other's box lets in only ports that it called.
//!
//! ```text
//!   whose port varies                by relay                      whose port is known
//!   Ask ------------------------------------------------------->  one at a time, seldom
//!   opens sockets; a ping by each that    <------------------ Agree
//!     dies on the way opens a port
//!   Go -------------------------------------------------------->  pings random ports
//!   a ping at one of the sockets: that is kept   <------------'
//!   pong, ping by that ---------------------------------------->  direct, as any other
//! ```
//!
//! From then on what is here keeps the path alive where the port varies; the other end has a direct
//! path like all of its others.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::Peer;
use crate::{
    disco::{Meet, Message, Step},
    paths::{
        Auxiliary, Chance, Context, Event, Opening, Path, To,
        candidate::may_be_reached,
        timing::{
            CHANCE_AGAIN, CHANCE_ANSWER, CHANCE_ASKS, CHANCE_BURST, CHANCE_CALLED, CHANCE_CALLS,
            CHANCE_DEAD, CHANCE_KEEPALIVE, CHANCE_KEPT, CHANCE_LOST, CHANCE_OPEN, CHANCE_REST,
            CHANCE_SOCKETS, CHANCE_WAIT, CHANCE_WAIT_RELAYS, HEARTBEAT, HEARTBEAT_RETRY,
            PRIMING_HOPS,
        },
    },
};

/// See the module.
#[derive(Debug, Default)]
pub struct Meets {
    stage: Stage,
    /// Since when one is wanted.
    wanted: Option<Duration>,
    /// No other before.
    next: Duration,
    /// When something is to be done.
    due: Option<Duration>,
    last: Chance,
    /// How often it did not answer.
    unanswered: u8,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Quiet,
    /// We asked, and wait for the other.
    Asked(Try),
    /// It agreed, and our sockets are being opened.
    Opening(Try),
    /// They are open, and it calls.
    Open(Try),
    /// We agreed, and wait until its sockets are open.
    Agreed(Try),
    /// We call.
    Calling(Try, Calls),
    /// A call met one of its sockets, which is to be proven like any address.
    Called(Try),
    /// A call met one of our sockets.
    Met(Met),
}

#[derive(Clone, Copy, Debug)]
struct Try {
    number: u32,
    /// Where the other is; of its port nothing is known if it is called.
    at: SocketAddr,
    ends: Duration,
}

#[derive(Debug, Default)]
struct Calls {
    next: Duration,
    ports: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Met {
    socket: Auxiliary,
    at: SocketAddr,
    /// Of a pong, which proves the path.
    latency: Option<Duration>,
    alive: Duration,
    pinged: Duration,
    /// Since when no ping is answered.
    unanswered: Option<Duration>,
}

impl Met {
    fn next_ping(&self, is_active: bool) -> Duration {
        self.pinged
            + match self.unanswered {
                Some(_) => HEARTBEAT_RETRY,
                None if is_active => HEARTBEAT,
                None => CHANCE_KEEPALIVE,
            }
    }

    /// It is dead then, unless it shows life.
    fn ends(&self) -> Option<Duration> {
        self.unanswered.map(|since| since + CHANCE_DEAD)
    }

    fn path(&self) -> Option<Path> {
        let path = Path::Auxiliary { at: self.at, number: self.socket.number };
        self.latency.map(|_| path)
    }
}

impl Meets {
    /// What came for this time was not handled.
    pub fn handle_stall(&mut self, time: Duration) {
        if let Stage::Met(Met { unanswered: Some(since), .. }) = &mut self.stage {
            *since += time;
        }
    }

    /// Whether nothing is remembered.
    pub fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Quiet) && self.last == Chance::default()
    }

    /// When something has to be done.
    pub fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// The path by an auxiliary socket, where there is one.
    pub fn path(&self) -> Option<Path> {
        self.met().and_then(Met::path)
    }

    pub fn latency(&self) -> Option<Duration> {
        self.met().and_then(|met| met.latency)
    }

    /// What is told of it.
    pub fn shown(&self) -> Chance {
        self.last
    }

    fn met(&self) -> Option<&Met> {
        match &self.stage {
            Stage::Met(met) => Some(met),
            _ => None,
        }
    }

    fn met_by(&mut self, number: u32) -> Option<&mut Met> {
        match &mut self.stage {
            Stage::Met(met) if met.socket.number == number => Some(met),
            _ => None,
        }
    }
}

impl Peer {
    /// The number of the auxiliary sockets that there are, or that are being opened.
    pub fn sockets(&self) -> Option<u32> {
        match &self.meets.stage {
            Stage::Opening(one) | Stage::Open(one) => Some(one.number),
            Stage::Met(met) => Some(met.socket.number),
            Stage::Quiet | Stage::Asked(_) => None,
            Stage::Agreed(_) | Stage::Calling(..) | Stage::Called(_) => None,
        }
    }

    /// Whether datagrams of an auxiliary socket are expected.
    pub fn hears_by(&self, socket: Auxiliary) -> bool {
        match &self.meets.stage {
            Stage::Open(one) => one.number == socket.number,
            Stage::Met(met) => met.socket == socket,
            _ => false,
        }
    }

    /// Does what is due.
    pub fn continue_meeting(&mut self, cx: &mut Context<'_>) {
        self.ask_if_due(cx);
        let is_reached = self.direct.is_some() || self.passed.path().is_some();
        let ends = match &self.meets.stage {
            Stage::Quiet => None,
            Stage::Asked(one) | Stage::Opening(one) | Stage::Open(one) => {
                Some(if is_reached { cx.now } else { one.ends })
            }
            Stage::Agreed(one) | Stage::Calling(one, _) | Stage::Called(one) => {
                Some(if is_reached { cx.now } else { one.ends })
            }
            // A direct path by the usual socket is as good, and costs nothing.
            Stage::Met(_) if self.direct.is_some() => Some(cx.now),
            Stage::Met(met) => {
                let kept = self.heard.sent.map_or(cx.now, |sent| sent + CHANCE_KEPT);
                Some(met.ends().map_or(kept, |ends| ends.min(kept)))
            }
        };
        if ends.is_some_and(|ends| cx.now >= ends) {
            self.end_meeting(cx);
        }
        self.call_ports(cx);
        self.keep_met(cx);
        self.meets.due = self.meeting_due(cx);
    }

    fn meeting_due(&self, cx: &Context<'_>) -> Option<Duration> {
        match &self.meets.stage {
            Stage::Quiet => self.asks_at(cx).filter(|at| *at < self.active_until()),
            Stage::Asked(one) | Stage::Opening(one) | Stage::Open(one) => Some(one.ends),
            Stage::Agreed(one) | Stage::Called(one) => Some(one.ends),
            Stage::Calling(one, calls) => Some(one.ends.min(calls.next)),
            Stage::Met(met) => {
                let kept = self.heard.sent.map_or(cx.now, |sent| sent + CHANCE_KEPT);
                let next = met.next_ping(self.is_active(cx.now)).min(kept);
                Some(met.ends().map_or(next, |ends| ends.min(next)))
            }
        }
    }

    /// Nothing that was known holds.
    pub fn forget_meeting(&mut self, cx: &mut Context<'_>) {
        if let Some(number) = self.sockets() {
            cx.tell(Event::Close(number));
        }
        cx.own.meeting.end(self.key, cx.now + CHANCE_REST);
        self.meets = Meets { next: self.meets.next, ..Meets::default() };
    }

    fn end_meeting(&mut self, cx: &mut Context<'_>) {
        if let Some(number) = self.sockets() {
            cx.tell(Event::Close(number));
        }
        let was_met = self.meets.path().is_some();
        let stage = std::mem::take(&mut self.meets.stage);
        let was_asked = matches!(stage, Stage::Asked(_));
        self.meets.next = cx.now
            + if was_met || self.direct.is_some() {
                CHANCE_LOST
            } else if was_asked {
                CHANCE_ASKS[usize::from(self.meets.unanswered).min(CHANCE_ASKS.len() - 1)]
            } else {
                CHANCE_AGAIN
            };
        let unanswered = self.meets.unanswered.saturating_add(1);
        self.meets.unanswered = if was_asked { unanswered } else { 0 };
        self.meets.last = match stage {
            _ if self.direct.is_some() => Chance::Met(cx.now),
            _ if was_met => Chance::Lost(cx.now),
            Stage::Asked(_) => Chance::NotAnswered(cx.now),
            _ => Chance::InVain(cx.now),
        };
        self.meets.wanted = None;
        // To ask costs nobody anything.
        let rest = if was_asked { Duration::ZERO } else { CHANCE_REST };
        cx.own.meeting.end(self.key, cx.now + rest);
        if was_met {
            self.search.want_now(cx.now);
        }
    }

    /// When to ask, if nothing changes.
    fn asks_at(&self, cx: &Context<'_>) -> Option<Duration> {
        let relays = self.passes && !cx.own.relays.is_empty();
        let wait = if relays { CHANCE_WAIT_RELAYS } else { CHANCE_WAIT };
        let wanted = self.meets.wanted?;
        Some((wanted + wait).max(self.meets.next).max(cx.own.meeting.next()))
    }

    fn ask_if_due(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.meets.stage, Stage::Quiet) {
            return;
        }
        if !self.may_ask(cx) {
            self.meets.wanted = None;
            return;
        }
        if self.meets.wanted.is_none() && self.search.has_failed() {
            self.meets.wanted = Some(cx.now);
        }
        let is_due = self.asks_at(cx).is_some_and(|at| cx.now >= at);
        if is_due && cx.own.meeting.begin(self.key, cx.now) {
            let number = cx.generation();
            // Where it is, it says.
            let at = SocketAddr::from(([0; 4], 0));
            let ends = cx.now + CHANCE_ANSWER;
            self.meets.stage = Stage::Asked(Try { number, at, ends });
            self.say_meet(Step::Ask, number, cx);
        }
    }

    /// Whether it is our port that varies, and all else was tried.
    fn may_ask(&self, cx: &Context<'_>) -> bool {
        let is_there = |at: Duration| cx.now < at + CHANCE_CALLED;
        cx.own.meeting.place.is_some_and(|place| place.varies)
            && !self.disco.is_zero()
            && self.direct.is_none()
            && self.passed.path().is_none()
            && self.is_active(cx.now)
            && self.search.rounds() > 0
            && self.heard.called.is_some_and(is_there)
            && self.region_up(cx).is_some()
    }

    fn say_meet(&self, step: Step, number: u32, cx: &mut Context<'_>) {
        let (Some(region), Some(place)) = (self.region_up(cx), cx.own.meeting.place) else {
            return;
        };
        let to = To::Relay { region, peer: self.key };
        cx.send(to, self.disco, Message::Meet(Meet { step, number, at: place.at }));
    }

    /// The peer takes a step.
    pub fn handle_meet(&mut self, meet: Meet, cx: &mut Context<'_>) {
        let Meet { step, number, at } = meet;
        match (step, &self.meets.stage) {
            (Step::Ask, Stage::Quiet) => self.handle_ask(number, at, cx),
            (Step::Agree, Stage::Asked(one)) if one.number == number && may_be_met(at, cx) => {
                let (ends, mut tx) = (cx.now + CHANCE_ANSWER, [0; 12]);
                cx.numbers.rng.fill_bytes(&mut tx);
                self.meets.stage = Stage::Opening(Try { number, at, ends });
                cx.tell(Event::Open(Opening {
                    peer: self.key,
                    disco: self.disco,
                    number,
                    to: at,
                    count: CHANCE_SOCKETS,
                    hops: PRIMING_HOPS,
                    tx,
                }));
            }
            (Step::Go, Stage::Agreed(one)) if one.number == number => {
                let one = Try { ends: cx.now + CHANCE_CALLS, ..*one };
                let calls = Calls { next: cx.now, ports: BTreeSet::new() };
                self.meets.stage = Stage::Calling(one, calls);
            }
            _ => {}
        }
    }

    /// The peer wants to be called, where its map entry or its calls have it as well. That keeps us from
    /// addresses that a stale question names; a hostile peer can name any in its calls, and what we send
    /// there is bounded by the pace alone (docs/decisions/0013).
    fn handle_ask(&mut self, number: u32, at: SocketAddr, cx: &mut Context<'_>) {
        let willing = cx.own.meeting.place.is_some_and(|place| !place.varies)
            && may_be_met(at, cx)
            && self.candidates.has_ip(at.ip())
            && self.direct.is_none()
            && self.passed.path().is_none()
            && cx.now >= self.meets.next
            && self.region_up(cx).is_some();
        if willing && cx.own.meeting.begin(self.key, cx.now) {
            let ends = cx.now + CHANCE_ANSWER;
            self.meets.stage = Stage::Agreed(Try { number, at, ends });
            self.say_meet(Step::Agree, number, cx);
        }
    }

    /// Our sockets are open.
    pub fn handle_opened(&mut self, number: u32, count: u16, cx: &mut Context<'_>) {
        let Stage::Opening(one) = self.meets.stage else { return };
        if one.number != number {
            return;
        }
        if count == 0 {
            self.end_meeting(cx);
        } else {
            self.meets.stage = Stage::Open(Try { ends: cx.now + CHANCE_OPEN, ..one });
            self.say_meet(Step::Go, number, cx);
        }
    }

    /// Calls some more ports, each once.
    fn call_ports(&mut self, cx: &mut Context<'_>) {
        let Stage::Calling(one, calls) = &mut self.meets.stage else { return };
        if cx.now < calls.next {
            return;
        }
        calls.next = cx.now + CHANCE_BURST.1;
        let mut new = Vec::new();
        while new.len() < CHANCE_BURST.0 as usize {
            let port = cx.random_port();
            if calls.ports.insert(port) {
                new.push(SocketAddr::new(one.at.ip(), port));
            }
        }
        for addr in new {
            let (message, _) = cx.new_ping(Path::Direct(addr), None);
            cx.send(To::Chance(addr), self.disco, message);
        }
    }

    /// A ping of the peer came to the usual socket: if a call has met it, that is enough of them.
    pub fn handle_met_by(&mut self, from: IpAddr, now: Duration) {
        if let Stage::Calling(one, _) = &self.meets.stage
            && one.at.ip() == from
        {
            // Its pong has to come yet.
            let one = Try { ends: one.ends.min(now + CHANCE_DEAD), ..*one };
            self.meets.stage = Stage::Called(one);
        }
    }

    /// A ping of the peer came to an auxiliary socket.
    pub fn handle_auxiliary_ping(
        &mut self,
        at: SocketAddr,
        socket: Auxiliary,
        cx: &mut Context<'_>,
    ) {
        match &mut self.meets.stage {
            Stage::Open(_) => {
                let (alive, pinged) = (cx.now, cx.now);
                let met = Met { socket, at, latency: None, alive, pinged, unanswered: None };
                self.meets.stage = Stage::Met(met);
                cx.tell(Event::Keep(socket));
                self.ping_auxiliary(None, cx);
            }
            Stage::Met(met) if met.latency.is_none() && cx.now >= met.pinged + HEARTBEAT_RETRY => {
                self.ping_auxiliary(None, cx);
            }
            _ => {}
        }
    }

    /// A pong came by an auxiliary socket.
    pub fn prove_auxiliary(&mut self, number: u32, latency: Duration, cx: &mut Context<'_>) {
        let Some(met) = self.meets.met_by(number) else { return };
        let smooth = met.latency.map_or(latency, |before| (before * 3 + latency) / 4);
        let is_first = met.latency.is_none();
        (met.alive, met.latency, met.unanswered) = (cx.now, Some(smooth), None);
        if is_first {
            self.meets.last = Chance::Met(cx.now);
            cx.own.meeting.end(self.key, cx.now + CHANCE_REST);
        }
    }

    /// Data came by an auxiliary socket.
    pub fn hear_auxiliary(&mut self, number: u32, now: Duration) {
        if let Some(met) = self.meets.met_by(number) {
            (met.alive, met.unanswered) = (now, None);
        }
    }

    /// Something was sent, or we have moved: whether the path lives is asked at once.
    pub fn doubt_auxiliary(&mut self, after: Duration, cx: &mut Context<'_>) {
        let doubted = |met: &Met| met.unanswered.is_none() && cx.now >= met.alive + after;
        if self.meets.met().is_some_and(doubted) {
            self.ping_auxiliary(None, cx);
        }
    }

    fn keep_met(&mut self, cx: &mut Context<'_>) {
        let is_active = self.is_active(cx.now);
        if self.meets.met().is_some_and(|met| cx.now >= met.next_ping(is_active)) {
            self.ping_auxiliary(None, cx);
        }
    }

    pub fn ping_auxiliary(&mut self, number: Option<u32>, cx: &mut Context<'_>) {
        let Stage::Met(met) = &mut self.meets.stage else { return };
        met.pinged = cx.now;
        met.unanswered.get_or_insert(cx.now);
        let (addr, socket) = (met.at, met.socket);
        let path = Path::Auxiliary { at: addr, number: socket.number };
        let (message, pinged) = cx.new_ping(path, number);
        self.await_pong(pinged);
        cx.send(To::Auxiliary { addr, socket }, self.disco, message);
    }
}

/// Whether it is an address of IPv4 at which a box may be, and not that of our own.
fn may_be_met(at: SocketAddr, cx: &Context<'_>) -> bool {
    at.is_ipv4()
        && may_be_reached(&at)
        && cx.own.meeting.place.is_none_or(|place| place.at.ip() != at.ip())
}
