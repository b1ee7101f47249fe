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
//! From then on what is here is_pinged the path alive where the port varies; the other end has a direct
//! path like all of its others.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::Peer;
use crate::{
    disco::{BirthdayMessage, BirthdayStep, Message},
    paths::{
        AuxiliarySocket, BirthdayOutcome, Context, Event, Path, SocketsToOpen, To,
        candidate::may_be_reached,
        timing::{
            BIRTHDAY_AGAIN, BIRTHDAY_ANSWER, BIRTHDAY_ASKS, BIRTHDAY_BURST, BIRTHDAY_CALLED,
            BIRTHDAY_CALLS, BIRTHDAY_DEAD, BIRTHDAY_KEEPALIVE, BIRTHDAY_KEPT, BIRTHDAY_LOST,
            BIRTHDAY_OPEN, BIRTHDAY_REST, BIRTHDAY_SOCKETS, BIRTHDAY_WAIT, BIRTHDAY_WAIT_RELAYS,
            HEARTBEAT, HEARTBEAT_RETRY, PRIMING_HOPS,
        },
    },
};

/// See the module.
#[derive(Debug, Default)]
pub struct BirthdayProbing {
    stage: Stage,
    /// Since when one is wanted.
    wanted: Option<Duration>,
    /// No other before.
    next: Duration,
    /// When something is to be done.
    due: Option<Duration>,
    last: BirthdayOutcome,
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
    socket: AuxiliarySocket,
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
                None => BIRTHDAY_KEEPALIVE,
            }
    }

    /// It is dead then, unless it shows life.
    fn ends(&self) -> Option<Duration> {
        self.unanswered.map(|since| since + BIRTHDAY_DEAD)
    }

    fn path(&self) -> Option<Path> {
        let path = Path::Auxiliary { at: self.at, number: self.socket.number };
        self.latency.map(|_| path)
    }
}

impl BirthdayProbing {
    /// What came for this time was not handled.
    pub fn handle_stall(&mut self, time: Duration) {
        if let Stage::Met(Met { unanswered: Some(since), .. }) = &mut self.stage {
            *since += time;
        }
    }

    /// Whether nothing is remembered.
    pub fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Quiet) && self.last == BirthdayOutcome::default()
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
    pub fn view(&self) -> BirthdayOutcome {
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
        match &self.birthday.stage {
            Stage::Opening(one) | Stage::Open(one) => Some(one.number),
            Stage::Met(met) => Some(met.socket.number),
            Stage::Quiet | Stage::Asked(_) => None,
            Stage::Agreed(_) | Stage::Calling(..) | Stage::Called(_) => None,
        }
    }

    /// Whether datagrams of an auxiliary socket are expected.
    pub fn expects_socket(&self, socket: AuxiliarySocket) -> bool {
        match &self.birthday.stage {
            Stage::Open(one) => one.number == socket.number,
            Stage::Met(met) => met.socket == socket,
            _ => false,
        }
    }

    /// Does what is due.
    pub fn continue_birthday(&mut self, cx: &mut Context<'_>) {
        self.request_if_due(cx);
        let is_reached = self.direct.is_some() || self.relayed.path().is_some();
        let ends = match &self.birthday.stage {
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
                let kept = self.activity.sent.map_or(cx.now, |sent| sent + BIRTHDAY_KEPT);
                Some(met.ends().map_or(kept, |ends| ends.min(kept)))
            }
        };
        if ends.is_some_and(|ends| cx.now >= ends) {
            self.end_birthday(cx);
        }
        self.probe_ports(cx);
        self.ping_met(cx);
        self.birthday.due = self.birthday_due(cx);
    }

    fn birthday_due(&self, cx: &Context<'_>) -> Option<Duration> {
        match &self.birthday.stage {
            Stage::Quiet => self.request_due(cx).filter(|at| *at < self.active_until()),
            Stage::Asked(one) | Stage::Opening(one) | Stage::Open(one) => Some(one.ends),
            Stage::Agreed(one) | Stage::Called(one) => Some(one.ends),
            Stage::Calling(one, calls) => Some(one.ends.min(calls.next)),
            Stage::Met(met) => {
                let kept = self.activity.sent.map_or(cx.now, |sent| sent + BIRTHDAY_KEPT);
                let next = met.next_ping(self.is_active(cx.now)).min(kept);
                Some(met.ends().map_or(next, |ends| ends.min(next)))
            }
        }
    }

    /// Nothing that was known holds.
    pub fn reset_birthday(&mut self, cx: &mut Context<'_>) {
        if let Some(number) = self.sockets() {
            cx.emit(Event::CloseSockets(number));
        }
        cx.own.birthday.end(self.key, cx.now + BIRTHDAY_REST);
        self.birthday = BirthdayProbing { next: self.birthday.next, ..BirthdayProbing::default() };
    }

    fn end_birthday(&mut self, cx: &mut Context<'_>) {
        if let Some(number) = self.sockets() {
            cx.emit(Event::CloseSockets(number));
        }
        let was_met = self.birthday.path().is_some();
        let stage = std::mem::take(&mut self.birthday.stage);
        let was_asked = matches!(stage, Stage::Asked(_));
        self.birthday.next = cx.now
            + if was_met || self.direct.is_some() {
                BIRTHDAY_LOST
            } else if was_asked {
                BIRTHDAY_ASKS[usize::from(self.birthday.unanswered).min(BIRTHDAY_ASKS.len() - 1)]
            } else {
                BIRTHDAY_AGAIN
            };
        let unanswered = self.birthday.unanswered.saturating_add(1);
        self.birthday.unanswered = if was_asked { unanswered } else { 0 };
        self.birthday.last = match stage {
            _ if self.direct.is_some() => BirthdayOutcome::Succeeded(cx.now),
            _ if was_met => BirthdayOutcome::Lost(cx.now),
            Stage::Asked(_) => BirthdayOutcome::NotAnswered(cx.now),
            _ => BirthdayOutcome::Failed(cx.now),
        };
        self.birthday.wanted = None;
        // To ask costs nobody anything.
        let rest = if was_asked { Duration::ZERO } else { BIRTHDAY_REST };
        cx.own.birthday.end(self.key, cx.now + rest);
        if was_met {
            self.search.want_now(cx.now);
        }
    }

    /// When to ask, if nothing changes.
    fn request_due(&self, cx: &Context<'_>) -> Option<Duration> {
        let relays = self.supports_peer_relays && !cx.own.relays.is_empty();
        let wait = if relays { BIRTHDAY_WAIT_RELAYS } else { BIRTHDAY_WAIT };
        let wanted = self.birthday.wanted?;
        Some((wanted + wait).max(self.birthday.next).max(cx.own.birthday.next()))
    }

    fn request_if_due(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.birthday.stage, Stage::Quiet) {
            return;
        }
        if !self.may_request(cx) {
            self.birthday.wanted = None;
            return;
        }
        if self.birthday.wanted.is_none() && self.search.has_failed() {
            self.birthday.wanted = Some(cx.now);
        }
        let is_due = self.request_due(cx).is_some_and(|at| cx.now >= at);
        if is_due && cx.own.birthday.begin(self.key, cx.now) {
            let number = cx.generation();
            // Where it is, it says.
            let at = SocketAddr::from(([0; 4], 0));
            let ends = cx.now + BIRTHDAY_ANSWER;
            self.birthday.stage = Stage::Asked(Try { number, at, ends });
            self.send_step(BirthdayStep::Request, number, cx);
        }
    }

    /// Whether it is our port that varies, and all else was tried.
    fn may_request(&self, cx: &Context<'_>) -> bool {
        let is_there = |at: Duration| cx.now < at + BIRTHDAY_CALLED;
        cx.own.birthday.place.is_some_and(|place| place.varies)
            && !self.disco.is_zero()
            && self.direct.is_none()
            && self.relayed.path().is_none()
            && self.is_active(cx.now)
            && self.search.rounds() > 0
            && self.activity.called.is_some_and(is_there)
            && self.region_up(cx).is_some()
    }

    fn send_step(&self, step: BirthdayStep, number: u32, cx: &mut Context<'_>) {
        let (Some(region), Some(place)) = (self.region_up(cx), cx.own.birthday.place) else {
            return;
        };
        let to = To::Relay { region, peer: self.key };
        cx.send(to, self.disco, Message::Birthday(BirthdayMessage { step, number, at: place.at }));
    }

    /// The peer takes a step.
    pub fn handle_step(&mut self, meet: BirthdayMessage, cx: &mut Context<'_>) {
        let BirthdayMessage { step, number, at } = meet;
        match (step, &self.birthday.stage) {
            (BirthdayStep::Request, Stage::Quiet) => self.handle_request(number, at, cx),
            (BirthdayStep::Accept, Stage::Asked(one))
                if one.number == number && may_be_probed(at, cx) =>
            {
                let (ends, mut tx) = (cx.now + BIRTHDAY_ANSWER, [0; 12]);
                cx.numbers.rng.fill_bytes(&mut tx);
                self.birthday.stage = Stage::Opening(Try { number, at, ends });
                cx.emit(Event::OpenSockets(SocketsToOpen {
                    peer: self.key,
                    disco: self.disco,
                    number,
                    to: at,
                    count: BIRTHDAY_SOCKETS,
                    hops: PRIMING_HOPS,
                    tx,
                }));
            }
            (BirthdayStep::Start, Stage::Agreed(one)) if one.number == number => {
                let one = Try { ends: cx.now + BIRTHDAY_CALLS, ..*one };
                let calls = Calls { next: cx.now, ports: BTreeSet::new() };
                self.birthday.stage = Stage::Calling(one, calls);
            }
            _ => {}
        }
    }

    /// The peer wants to be called, where its map entry or its calls have it as well. That is_pinged us from
    /// addresses that a stale question names; a hostile peer can name any in its calls, and what we send
    /// there is bounded by the pace alone (docs/decisions/0013).
    fn handle_request(&mut self, number: u32, at: SocketAddr, cx: &mut Context<'_>) {
        let willing = cx.own.birthday.place.is_some_and(|place| !place.varies)
            && may_be_probed(at, cx)
            && self.candidates.has_ip(at.ip())
            && self.direct.is_none()
            && self.relayed.path().is_none()
            && cx.now >= self.birthday.next
            && self.region_up(cx).is_some();
        if willing && cx.own.birthday.begin(self.key, cx.now) {
            let ends = cx.now + BIRTHDAY_ANSWER;
            self.birthday.stage = Stage::Agreed(Try { number, at, ends });
            self.send_step(BirthdayStep::Accept, number, cx);
        }
    }

    /// Our sockets are open.
    pub fn handle_sockets_opened(&mut self, number: u32, count: u16, cx: &mut Context<'_>) {
        let Stage::Opening(one) = self.birthday.stage else { return };
        if one.number != number {
            return;
        }
        if count == 0 {
            self.end_birthday(cx);
        } else {
            self.birthday.stage = Stage::Open(Try { ends: cx.now + BIRTHDAY_OPEN, ..one });
            self.send_step(BirthdayStep::Start, number, cx);
        }
    }

    /// Calls some more ports, each once.
    fn probe_ports(&mut self, cx: &mut Context<'_>) {
        let Stage::Calling(one, calls) = &mut self.birthday.stage else { return };
        if cx.now < calls.next {
            return;
        }
        calls.next = cx.now + BIRTHDAY_BURST.1;
        let mut new = Vec::new();
        while new.len() < BIRTHDAY_BURST.0 as usize {
            let port = cx.random_port();
            if calls.ports.insert(port) {
                new.push(SocketAddr::new(one.at.ip(), port));
            }
        }
        for addr in new {
            let (message, _) = cx.new_ping(Path::Direct(addr), None);
            cx.send(To::BirthdayProbe(addr), self.disco, message);
        }
    }

    /// A ping of the peer came to the usual socket: if a call has met it, that is enough of them.
    pub fn handle_usual_ping(&mut self, from: IpAddr, now: Duration) {
        if let Stage::Calling(one, _) = &self.birthday.stage
            && one.at.ip() == from
        {
            // Its pong has to come yet.
            let one = Try { ends: one.ends.min(now + BIRTHDAY_DEAD), ..*one };
            self.birthday.stage = Stage::Called(one);
        }
    }

    /// A ping of the peer came to an auxiliary socket.
    pub fn handle_auxiliary_ping(
        &mut self,
        at: SocketAddr,
        socket: AuxiliarySocket,
        cx: &mut Context<'_>,
    ) {
        match &mut self.birthday.stage {
            Stage::Open(_) => {
                let (alive, pinged) = (cx.now, cx.now);
                let met = Met { socket, at, latency: None, alive, pinged, unanswered: None };
                self.birthday.stage = Stage::Met(met);
                cx.emit(Event::RetainSocket(socket));
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
        let Some(met) = self.birthday.met_by(number) else { return };
        let smooth = met.latency.map_or(latency, |before| (before * 3 + latency) / 4);
        let is_first = met.latency.is_none();
        (met.alive, met.latency, met.unanswered) = (cx.now, Some(smooth), None);
        if is_first {
            self.birthday.last = BirthdayOutcome::Succeeded(cx.now);
            cx.own.birthday.end(self.key, cx.now + BIRTHDAY_REST);
        }
    }

    /// Data came by an auxiliary socket.
    pub fn handle_auxiliary_data(&mut self, number: u32, now: Duration) {
        if let Some(met) = self.birthday.met_by(number) {
            (met.alive, met.unanswered) = (now, None);
        }
    }

    /// Something was sent, or we have moved: whether the path lives is asked at once.
    pub fn doubt_auxiliary(&mut self, after: Duration, cx: &mut Context<'_>) {
        let doubted = |met: &Met| met.unanswered.is_none() && cx.now >= met.alive + after;
        if self.birthday.met().is_some_and(doubted) {
            self.ping_auxiliary(None, cx);
        }
    }

    fn ping_met(&mut self, cx: &mut Context<'_>) {
        let is_active = self.is_active(cx.now);
        if self.birthday.met().is_some_and(|met| cx.now >= met.next_ping(is_active)) {
            self.ping_auxiliary(None, cx);
        }
    }

    pub fn ping_auxiliary(&mut self, number: Option<u32>, cx: &mut Context<'_>) {
        let Stage::Met(met) = &mut self.birthday.stage else { return };
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
fn may_be_probed(at: SocketAddr, cx: &Context<'_>) -> bool {
    at.is_ipv4()
        && may_be_reached(&at)
        && cx.own.birthday.place.is_none_or(|place| place.at.ip() != at.ip())
}
