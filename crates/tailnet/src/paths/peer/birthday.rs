//! Birthday probing (docs/decisions/0013), for a pair in which one node is behind a NAT that maps
//! each destination to another port, and the other behind a NAT that accepts only packets from
//! contacted ports.
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
//! Afterwards the node whose port varies maintains the path in this module. For the other node it
//! is an ordinary direct path.

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

/// The state of birthday probing with a peer.
#[derive(Debug, Default)]
pub struct BirthdayProbing {
    stage: Stage,
    /// The time since when it is needed.
    wanted: Option<Duration>,
    /// Not before this time.
    next: Duration,
    /// The time of the next timer.
    due: Option<Duration>,
    last: BirthdayOutcome,
    /// The number of unanswered requests.
    unanswered: u8,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Quiet,
    /// We sent a request, and wait for the answer.
    Asked(Try),
    /// The peer accepted, and our sockets are being opened.
    Opening(Try),
    /// Our sockets are open, and the peer probes.
    Open(Try),
    /// We accepted, and wait until the peer's sockets are open.
    Agreed(Try),
    /// We probe ports.
    Calling(Try, Calls),
    /// A probe reached one of the peer's sockets. Its address must be proven like any other.
    Called(Try),
    /// A probe reached one of our sockets.
    Met(Met),
}

#[derive(Clone, Copy, Debug)]
struct Try {
    number: u32,
    /// The peer's public endpoint. The port of a requesting peer is not used.
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
    /// The latency of a pong, which proves the path.
    latency: Option<Duration>,
    alive: Duration,
    pinged: Duration,
    /// The time since when pings are unanswered.
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

    /// Returns the time at which the path is lost without a sign of life.
    fn ends(&self) -> Option<Duration> {
        self.unanswered.map(|since| since + BIRTHDAY_DEAD)
    }

    fn path(&self) -> Option<Path> {
        let path = Path::Auxiliary { at: self.at, number: self.socket.number };
        self.latency.map(|_| path)
    }
}

impl BirthdayProbing {
    /// Received packets were not processed for this time.
    pub fn handle_stall(&mut self, time: Duration) {
        if let Stage::Met(Met { unanswered: Some(since), .. }) = &mut self.stage {
            *since += time;
        }
    }

    /// Returns whether there is no state.
    pub fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Quiet) && self.last == BirthdayOutcome::default()
    }

    /// Returns the time of the next timer.
    pub fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the path through an auxiliary socket, if it is proven.
    pub fn path(&self) -> Option<Path> {
        self.met().and_then(Met::path)
    }

    pub fn latency(&self) -> Option<Duration> {
        self.met().and_then(|met| met.latency)
    }

    /// Returns the outcome for the view.
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
    /// Returns the number of the group of auxiliary sockets that are open or being opened.
    pub fn sockets(&self) -> Option<u32> {
        match &self.birthday.stage {
            Stage::Opening(one) | Stage::Open(one) => Some(one.number),
            Stage::Met(met) => Some(met.socket.number),
            Stage::Quiet | Stage::Asked(_) => None,
            Stage::Agreed(_) | Stage::Calling(..) | Stage::Called(_) => None,
        }
    }

    /// Returns whether datagrams of an auxiliary socket are expected.
    pub fn expects_socket(&self, socket: AuxiliarySocket) -> bool {
        match &self.birthday.stage {
            Stage::Open(one) => one.number == socket.number,
            Stage::Met(met) => met.socket == socket,
            _ => false,
        }
    }

    /// Processes expired timers.
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
            // A direct path through the main socket is equivalent and cheaper.
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

    /// Resets the state.
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
        // A request has no cost.
        let rest = if was_asked { Duration::ZERO } else { BIRTHDAY_REST };
        cx.own.birthday.end(self.key, cx.now + rest);
        if was_met {
            self.search.want_now(cx.now);
        }
    }

    /// Returns the time of the next request.
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
            // The answer contains the peer's endpoint.
            let at = SocketAddr::from(([0; 4], 0));
            let ends = cx.now + BIRTHDAY_ANSWER;
            self.birthday.stage = Stage::Asked(Try { number, at, ends });
            self.send_step(BirthdayStep::Request, number, cx);
        }
    }

    /// Returns whether our port varies and all other methods failed.
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

    /// Processes a message of the peer.
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

    /// The peer requests probes of its address. The address must also be in its map entry or in its
    /// calls, which excludes stale addresses. A hostile peer can put any address into its calls:
    /// only the rate of the probes is limited (docs/decisions/0013).
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

    /// Probes more ports, each once.
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

    /// A ping of the peer reached the main socket. If a probe caused it, no more probes are needed.
    pub fn handle_usual_ping(&mut self, from: IpAddr, now: Duration) {
        if let Stage::Calling(one, _) = &self.birthday.stage
            && one.at.ip() == from
        {
            // The pong has not arrived yet.
            let one = Try { ends: one.ends.min(now + BIRTHDAY_DEAD), ..*one };
            self.birthday.stage = Stage::Called(one);
        }
    }

    /// A ping of the peer reached an auxiliary socket.
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

    /// A pong was received by an auxiliary socket.
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

    /// Data was received by an auxiliary socket.
    pub fn handle_auxiliary_data(&mut self, number: u32, now: Duration) {
        if let Some(met) = self.birthday.met_by(number) {
            (met.alive, met.unanswered) = (now, None);
        }
    }

    /// Packets were sent or we moved: pings the path if it showed no sign of life for `after`.
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

/// Returns whether an address may belong to an IPv4 NAT other than ours.
fn may_be_probed(at: SocketAddr, cx: &Context<'_>) -> bool {
    at.is_ipv4()
        && may_be_reached(&at)
        && cx.own.birthday.place.is_none_or(|place| place.at.ip() != at.ip())
}
