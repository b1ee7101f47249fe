//! Birthday probing (docs/decisions/0013). It serves pairs in which one node is behind a NAT that
//! maps each destination to another port, and the other behind a NAT that accepts only packets from
//! contacted ports.
//!
//! ```text
//!   node with the varying port         by relay          node with the known port
//!   Request ------------------------------------------>  one at a time, rarely
//!   opens sockets; a ping by each     <---------- Accept
//!     expires on the way and opens a port
//!   Start -------------------------------------------->  pings random ports
//!   a ping arrives at a socket, which is retained <---'
//!   pong and ping by that socket --------------------->  direct, like any other path
//! ```
//!
//! Afterwards the node with the varying port maintains the path in this module. For the other node
//! it is an ordinary direct path.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipc::{AuxiliarySocket, Path};
use tailnet::disco::{BirthdayMessage, BirthdayStep, Message};

use super::Peer;
use crate::peer_paths::{
    BirthdayOutcome, Context, Event, SocketsToOpen, To,
    candidate::may_be_reached,
    timing::{
        BIRTHDAY_AGAIN, BIRTHDAY_ANSWER, BIRTHDAY_ASKS, BIRTHDAY_BURST, BIRTHDAY_CALLED,
        BIRTHDAY_CALLS, BIRTHDAY_DEAD, BIRTHDAY_KEEPALIVE, BIRTHDAY_KEPT, BIRTHDAY_LOST,
        BIRTHDAY_OPEN, BIRTHDAY_REST, BIRTHDAY_SOCKETS, BIRTHDAY_WAIT, BIRTHDAY_WAIT_RELAYS,
        HEARTBEAT, HEARTBEAT_RETRY, PRIMING_HOPS,
    },
};

/// The state of birthday probing with a peer.
#[derive(Debug, Default)]
pub(super) struct BirthdayProbing {
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
    Requested(Attempt),
    /// The peer accepted, and our sockets are being opened.
    Opening(Attempt),
    /// Our sockets are open, and the peer probes.
    Open(Attempt),
    /// We accepted, and wait until the peer's sockets are open.
    Accepted(Attempt),
    /// We probe ports.
    Probing(Attempt, Probes),
    /// A probe reached one of the peer's sockets. Its address must be proven like any other.
    Reached(Attempt),
    /// A probe reached one of our sockets.
    Found(FoundPath),
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    number: u32,
    /// The peer's public endpoint. The port of a requesting peer is not used.
    at: SocketAddr,
    ends: Duration,
}

#[derive(Debug, Default)]
struct Probes {
    next: Duration,
    ports: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug)]
struct FoundPath {
    socket: AuxiliarySocket,
    at: SocketAddr,
    /// The latency of a pong, which proves the path.
    latency: Option<Duration>,
    alive: Duration,
    pinged: Duration,
    /// The time since when pings are unanswered.
    unanswered: Option<Duration>,
}

impl FoundPath {
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
    pub(super) fn handle_stall(&mut self, time: Duration) {
        if let Stage::Found(FoundPath { unanswered: Some(since), .. }) = &mut self.stage {
            *since += time;
        }
    }

    /// Returns whether the state is the initial one.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Quiet) && self.last == BirthdayOutcome::default()
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the path through an auxiliary socket, if it is proven.
    pub(super) fn path(&self) -> Option<Path> {
        self.found().and_then(FoundPath::path)
    }

    pub(super) fn latency(&self) -> Option<Duration> {
        self.found().and_then(|found| found.latency)
    }

    /// Returns the outcome for the view.
    pub(super) fn view(&self) -> BirthdayOutcome {
        self.last
    }

    fn found(&self) -> Option<&FoundPath> {
        match &self.stage {
            Stage::Found(found) => Some(found),
            _ => None,
        }
    }

    fn found_in_group(&mut self, number: u32) -> Option<&mut FoundPath> {
        match &mut self.stage {
            Stage::Found(found) if found.socket.number == number => Some(found),
            _ => None,
        }
    }
}

impl Peer {
    /// Returns the number of the group of auxiliary sockets that are open or being opened.
    pub(crate) fn sockets(&self) -> Option<u32> {
        match &self.birthday.stage {
            Stage::Opening(one) | Stage::Open(one) => Some(one.number),
            Stage::Found(found) => Some(found.socket.number),
            Stage::Quiet | Stage::Requested(_) => None,
            Stage::Accepted(_) | Stage::Probing(..) | Stage::Reached(_) => None,
        }
    }

    /// Returns whether datagrams of an auxiliary socket are expected.
    pub(crate) fn expects_socket(&self, socket: AuxiliarySocket) -> bool {
        match &self.birthday.stage {
            Stage::Open(one) => one.number == socket.number,
            Stage::Found(found) => found.socket == socket,
            _ => false,
        }
    }

    /// Processes expired timers.
    pub(crate) fn continue_birthday(&mut self, cx: &mut Context<'_>) {
        self.request_if_due(cx);
        let is_reached = self.direct.is_some() || self.relayed.path().is_some();
        let ends = match &self.birthday.stage {
            Stage::Quiet => None,
            Stage::Requested(one) | Stage::Opening(one) | Stage::Open(one) => {
                Some(if is_reached { cx.now } else { one.ends })
            }
            Stage::Accepted(one) | Stage::Probing(one, _) | Stage::Reached(one) => {
                Some(if is_reached { cx.now } else { one.ends })
            }
            // A direct path through the main socket is equivalent and cheaper.
            Stage::Found(_) if self.direct.is_some() => Some(cx.now),
            Stage::Found(found) => {
                let kept = self.activity.sent.map_or(cx.now, |sent| sent + BIRTHDAY_KEPT);
                Some(found.ends().map_or(kept, |ends| ends.min(kept)))
            }
        };
        if ends.is_some_and(|ends| cx.now >= ends) {
            self.end_birthday(cx);
        }
        self.probe_ports(cx);
        self.ping_found(cx);
        self.birthday.due = self.birthday_due(cx);
    }

    fn birthday_due(&self, cx: &Context<'_>) -> Option<Duration> {
        match &self.birthday.stage {
            Stage::Quiet => self.request_due(cx).filter(|at| *at < self.active_until()),
            Stage::Requested(one) | Stage::Opening(one) | Stage::Open(one) => Some(one.ends),
            Stage::Accepted(one) | Stage::Reached(one) => Some(one.ends),
            Stage::Probing(one, probes) => Some(one.ends.min(probes.next)),
            Stage::Found(found) => {
                let kept = self.activity.sent.map_or(cx.now, |sent| sent + BIRTHDAY_KEPT);
                let next = found.next_ping(self.is_active(cx.now)).min(kept);
                Some(found.ends().map_or(next, |ends| ends.min(next)))
            }
        }
    }

    /// Resets the state.
    pub(crate) fn reset_birthday(&mut self, cx: &mut Context<'_>) {
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
        let was_found = self.birthday.path().is_some();
        let stage = std::mem::take(&mut self.birthday.stage);
        let was_requested = matches!(stage, Stage::Requested(_));
        self.birthday.next = cx.now
            + if was_found || self.direct.is_some() {
                BIRTHDAY_LOST
            } else if was_requested {
                BIRTHDAY_ASKS[usize::from(self.birthday.unanswered).min(BIRTHDAY_ASKS.len() - 1)]
            } else {
                BIRTHDAY_AGAIN
            };
        let unanswered = self.birthday.unanswered.saturating_add(1);
        self.birthday.unanswered = if was_requested { unanswered } else { 0 };
        self.birthday.last = match stage {
            _ if self.direct.is_some() => BirthdayOutcome::Succeeded(cx.now),
            _ if was_found => BirthdayOutcome::Lost(cx.now),
            Stage::Requested(_) => BirthdayOutcome::NotAnswered(cx.now),
            _ => BirthdayOutcome::Failed(cx.now),
        };
        self.birthday.wanted = None;
        // A request costs nothing.
        let rest = if was_requested { Duration::ZERO } else { BIRTHDAY_REST };
        cx.own.birthday.end(self.key, cx.now + rest);
        if was_found {
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
            self.birthday.stage = Stage::Requested(Attempt { number, at, ends });
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
    pub(crate) fn handle_step(&mut self, message: BirthdayMessage, cx: &mut Context<'_>) {
        let BirthdayMessage { step, number, at } = message;
        match (step, &self.birthday.stage) {
            (BirthdayStep::Request, Stage::Quiet) => self.handle_request(number, at, cx),
            (BirthdayStep::Accept, Stage::Requested(one))
                if one.number == number && may_be_probed(at, cx) =>
            {
                let (ends, mut tx) = (cx.now + BIRTHDAY_ANSWER, [0; 12]);
                cx.numbers.rng.fill_bytes(&mut tx);
                self.birthday.stage = Stage::Opening(Attempt { number, at, ends });
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
            (BirthdayStep::Start, Stage::Accepted(one)) if one.number == number => {
                let one = Attempt { ends: cx.now + BIRTHDAY_CALLS, ..*one };
                let probes = Probes { next: cx.now, ports: BTreeSet::new() };
                self.birthday.stage = Stage::Probing(one, probes);
            }
            _ => {}
        }
    }

    /// The peer requests probes of its address. The address must also be in its map entry or in its
    /// probes, which excludes stale addresses. A hostile peer can put any address into its probes:
    /// only the rate of the probes is limited (docs/decisions/0013).
    fn handle_request(&mut self, number: u32, at: SocketAddr, cx: &mut Context<'_>) {
        let accepts = cx.own.birthday.place.is_some_and(|place| !place.varies)
            && may_be_probed(at, cx)
            && self.candidates.has_ip(at.ip())
            && self.direct.is_none()
            && self.relayed.path().is_none()
            && cx.now >= self.birthday.next
            && self.region_up(cx).is_some();
        if accepts && cx.own.birthday.begin(self.key, cx.now) {
            let ends = cx.now + BIRTHDAY_ANSWER;
            self.birthday.stage = Stage::Accepted(Attempt { number, at, ends });
            self.send_step(BirthdayStep::Accept, number, cx);
        }
    }

    /// Our sockets are open.
    pub(crate) fn handle_sockets_opened(&mut self, number: u32, count: u16, cx: &mut Context<'_>) {
        let Stage::Opening(one) = self.birthday.stage else { return };
        if one.number != number {
            return;
        }
        if count == 0 {
            self.end_birthday(cx);
        } else {
            self.birthday.stage = Stage::Open(Attempt { ends: cx.now + BIRTHDAY_OPEN, ..one });
            self.send_step(BirthdayStep::Start, number, cx);
        }
    }

    /// Probes more ports, each once.
    fn probe_ports(&mut self, cx: &mut Context<'_>) {
        let Stage::Probing(one, probes) = &mut self.birthday.stage else { return };
        if cx.now < probes.next {
            return;
        }
        probes.next = cx.now + BIRTHDAY_BURST.1;
        let mut new = Vec::new();
        while new.len() < BIRTHDAY_BURST.0 as usize {
            let port = cx.random_port();
            if probes.ports.insert(port) {
                new.push(SocketAddr::new(one.at.ip(), port));
            }
        }
        for addr in new {
            let (message, _) = cx.new_ping(Path::Direct(addr), None);
            cx.send(To::BirthdayProbe(addr), self.disco, message);
        }
    }

    /// A ping of the peer reached the main socket. If a probe caused it, no more probes are needed.
    pub(crate) fn handle_usual_ping(&mut self, from: IpAddr, now: Duration) {
        if let Stage::Probing(one, _) = &self.birthday.stage
            && one.at.ip() == from
        {
            // The pong has not arrived yet.
            let one = Attempt { ends: one.ends.min(now + BIRTHDAY_DEAD), ..*one };
            self.birthday.stage = Stage::Reached(one);
        }
    }

    /// A ping of the peer reached an auxiliary socket.
    pub(crate) fn handle_auxiliary_ping(
        &mut self,
        at: SocketAddr,
        socket: AuxiliarySocket,
        cx: &mut Context<'_>,
    ) {
        match &mut self.birthday.stage {
            Stage::Open(_) => {
                let (alive, pinged) = (cx.now, cx.now);
                let found =
                    FoundPath { socket, at, latency: None, alive, pinged, unanswered: None };
                self.birthday.stage = Stage::Found(found);
                cx.emit(Event::RetainSocket(socket));
                self.ping_auxiliary(None, cx);
            }
            Stage::Found(found)
                if found.latency.is_none() && cx.now >= found.pinged + HEARTBEAT_RETRY =>
            {
                self.ping_auxiliary(None, cx);
            }
            _ => {}
        }
    }

    /// A pong was received by an auxiliary socket.
    pub(crate) fn prove_auxiliary(&mut self, number: u32, latency: Duration, cx: &mut Context<'_>) {
        let Some(found) = self.birthday.found_in_group(number) else { return };
        let smooth = found.latency.map_or(latency, |before| (before * 3 + latency) / 4);
        let is_first = found.latency.is_none();
        (found.alive, found.latency, found.unanswered) = (cx.now, Some(smooth), None);
        if is_first {
            self.birthday.last = BirthdayOutcome::Succeeded(cx.now);
            cx.own.birthday.end(self.key, cx.now + BIRTHDAY_REST);
        }
    }

    /// Data was received by an auxiliary socket.
    pub(crate) fn handle_auxiliary_data(&mut self, number: u32, now: Duration) {
        if let Some(found) = self.birthday.found_in_group(number) {
            (found.alive, found.unanswered) = (now, None);
        }
    }

    /// Packets were sent or we moved: pings the path if it showed no sign of life for `after`.
    pub(crate) fn doubt_auxiliary(&mut self, after: Duration, cx: &mut Context<'_>) {
        let doubted =
            |found: &FoundPath| found.unanswered.is_none() && cx.now >= found.alive + after;
        if self.birthday.found().is_some_and(doubted) {
            self.ping_auxiliary(None, cx);
        }
    }

    fn ping_found(&mut self, cx: &mut Context<'_>) {
        let is_active = self.is_active(cx.now);
        if self.birthday.found().is_some_and(|found| cx.now >= found.next_ping(is_active)) {
            self.ping_auxiliary(None, cx);
        }
    }

    pub(crate) fn ping_auxiliary(&mut self, number: Option<u32>, cx: &mut Context<'_>) {
        let Stage::Found(found) = &mut self.birthday.stage else { return };
        found.pinged = cx.now;
        found.unanswered.get_or_insert(cx.now);
        let (addr, socket) = (found.at, found.socket);
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
