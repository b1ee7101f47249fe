//! The state of one peer and its path.
//!
//! ```text
//!              pong of a better one
//!                  .-------.
//!                  v       |       sent, no reply           no pong within 1 s
//!   relay ---> direct, alive ------------------> in doubt --------------------> relay
//!         pong     ^                                |
//!                  `------- pong or data -----------'
//! ```

mod birthday_probing;
mod compact;
mod direct;
mod path_report;
mod pings;
mod relayed_path;
mod search;

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use ipc::Path;
use tailnet::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
};

use self::direct::{Direct, Doubt};
pub(super) use self::{compact::PeerEntry, pings::Pinged};
use super::{
    Context, Event, PeerInfo, To, Traffic, Via,
    candidate::{Candidates, canonical},
    limit::Limit,
    timing::{
        ACTIVE, ANSWERS, DOUBT, GONE, HEARTBEAT, LOST, PING_BACK, PING_TIMEOUT, QUARANTINE, REPORT,
        SEEN, SESSION, SILENCE, STALE, UNANSWERED,
    },
};

/// The source address in pongs through Tailscale's relays, with the region as port
/// (`tailcfg.DerpMagicIP`).
const RELAY_IP: Ipv4Addr = Ipv4Addr::new(127, 3, 3, 40);

#[derive(Debug)]
pub(super) struct Peer {
    key: NodePublic,
    disco: DiscoPublic,
    relay: Relay,
    /// Whether it supports peer relays, and the path through one.
    supports_peer_relays: bool,
    relayed: relayed_path::RelayPath,
    birthday: birthday_probing::BirthdayProbing,
    candidates: Candidates,
    published: Published,
    direct: Option<Direct>,
    lost: Option<Lost>,
    search: search::Search,
    pings: VecDeque<Pinged>,
    /// The IDs of the pings that were answered.
    seen: VecDeque<TxId>,
    answers: Limit,
    activity: Activity,
}

/// The path that the data plane uses.
#[derive(Clone, Copy, Debug, Default)]
struct Published {
    path: Option<Path>,
    /// Whether the path is proven, or goes through a relay that is not guessed.
    is_reachable: bool,
}

#[derive(Debug, Default)]
struct Relay {
    home: Option<u16>,
    /// The region through which the last packet was received.
    received: Option<u16>,
    /// The time when its home relay, or ours if its home is unknown, reported that it is not
    /// connected.
    gone: Option<Duration>,
    latency: Option<Duration>,
}

/// The last direct path, after it was lost.
#[derive(Clone, Copy, Debug)]
struct Lost {
    addr: SocketAddr,
    since: Duration,
    /// Whether it is pinged. After we moved, pings from the new place would prolong the wrong entry
    /// in the peer's NAT.
    pings: bool,
}

/// The time of the last event of each type.
#[derive(Debug, Default, PartialEq)]
struct Activity {
    sent: Option<Duration>,
    received: Option<Duration>,
    handshake: Option<Duration>,
    called: Option<Duration>,
    /// The time of the last stale event, unless a packet was received later.
    stale: Option<Duration>,
}

impl Peer {
    pub(super) fn new(key: NodePublic, disco: DiscoPublic) -> Self {
        Self {
            key,
            disco,
            relay: Relay::default(),
            supports_peer_relays: false,
            relayed: relayed_path::RelayPath::default(),
            birthday: birthday_probing::BirthdayProbing::default(),
            candidates: Candidates::default(),
            published: Published::default(),
            direct: None,
            lost: None,
            search: search::Search::default(),
            pings: VecDeque::new(),
            seen: VecDeque::new(),
            answers: Limit::default(),
            activity: Activity::default(),
        }
    }

    pub(super) fn update(&mut self, info: &PeerInfo, cx: &mut Context<'_>) {
        let moved = self.relay.home != info.home;
        if moved {
            self.relay.home = info.home;
            (self.relay.gone, self.relay.latency) = (None, None);
        }
        self.supports_peer_relays = info.supports_peer_relays;
        let restarted = self.disco != info.disco;
        if restarted {
            self.restart(info.disco, cx);
        }
        let keep = self.direct.map(|direct| direct.addr);
        let new = self.candidates.set_map(&info.endpoints, keep);
        if (new || moved || restarted) && self.direct.is_none() {
            self.search.want_now(cx.now);
            self.search_if_due(cx);
        }
    }

    /// The peer restarted: resets all state, including the session.
    fn restart(&mut self, disco: DiscoPublic, cx: &mut Context<'_>) {
        self.disco = disco;
        self.candidates.clear();
        self.pings.clear();
        self.seen.clear();
        (self.direct, self.lost) = (None, None);
        self.relayed.reset();
        self.reset_birthday(cx);
        self.search.reset();
        let recent = |at: Option<Duration>| at.is_some_and(|at| cx.now < at + SESSION);
        let Activity { sent, received, handshake, .. } = self.activity;
        if recent(sent) || recent(received) || recent(handshake) {
            self.publish_path(cx);
            cx.emit(Event::HandshakeNow(self.key));
        }
    }

    pub(super) fn note_relay_message(&mut self, region: u16) {
        self.relay.received = Some(region);
        if self.relay.home.is_none_or(|home| home == region) {
            self.relay.gone = None;
        }
    }

    pub(super) fn handle_ping(&mut self, tx: TxId, via: Via, cx: &mut Context<'_>) {
        let is_expected = match via {
            Via::Auxiliary { socket, .. } => self.expects_socket(socket),
            _ => true,
        };
        if !is_expected || self.seen.contains(&tx) || !self.answers.admit(cx.now, ANSWERS) {
            return;
        }
        self.seen.truncate(SEEN - 1);
        self.seen.push_front(tx);
        let (to, source) = match via {
            Via::Udp { remote, local } => {
                (To::Udp { addr: remote, source: local, hops: None }, remote)
            }
            Via::PeerRelay { at, vni } => (To::PeerRelay { addr: at, vni, control: false }, at),
            Via::Auxiliary { remote, socket } => (To::Auxiliary { addr: remote, socket }, remote),
            Via::Relay { region, from } => {
                (To::Relay { region, peer: from }, (RELAY_IP, region).into())
            }
        };
        cx.send(to, self.disco, Message::Pong { tx, source });
        match via {
            Via::Udp { remote, .. } => {
                self.handle_usual_ping(remote.ip(), cx.now);
                self.handle_source(remote, cx);
            }
            Via::PeerRelay { at, vni } => self.handle_relayed_ping(at, vni, cx),
            Via::Auxiliary { remote, socket } => self.handle_auxiliary_ping(remote, socket, cx),
            Via::Relay { .. } => self.handle_relay_ping(cx),
        }
    }

    /// A packet came from this source: our NAT accepts packets from there, and the peer's NAT may
    /// accept ours.
    fn handle_source(&mut self, addr: SocketAddr, cx: &mut Context<'_>) {
        let keep = self.direct.map(|direct| direct.addr);
        self.candidates.note_received(cx.now, addr, keep);
        let pings_back = match &self.direct {
            // The heartbeats of one side keep the path alive for both.
            Some(direct) if direct.addr == addr => {
                cx.now >= direct.alive.max(direct.pinged) + HEARTBEAT / 2
            }
            Some(direct) => direct.doubt.is_some(),
            None => true,
        };
        let entry = self.candidates.get(addr);
        if pings_back && entry.is_some_and(|entry| entry.may_ping(cx.now, PING_BACK)) {
            self.ping(addr, None, cx);
        }
    }

    pub(super) fn handle_pong(&mut self, tx: TxId, via: Via, cx: &mut Context<'_>) {
        let is_way = |to: Path| match via {
            Via::Udp { .. } => matches!(to, Path::Direct(_)),
            Via::PeerRelay { at, vni } => to == Path::PeerRelay { at, vni },
            Via::Auxiliary { remote: at, socket } => {
                to == Path::Auxiliary { at, number: socket.number }
            }
            Via::Relay { .. } => matches!(to, Path::Relay(_)),
        };
        let answered =
            |ping: &Pinged| ping.tx == tx && is_way(ping.to) && cx.now < ping.at + PING_TIMEOUT;
        let Some(ping) = self.pings.iter().position(answered) else { return };
        let Some(ping) = self.pings.remove(ping) else { return };
        let latency = cx.now.saturating_sub(ping.at);
        if let Some(number) = ping.number {
            cx.emit(Event::Pong { peer: self.key, number, via: ping.to, latency });
        }
        match ping.to {
            Path::Relay(_) => {
                self.relay.latency = Some(latency);
                self.handle_relay_pong(ping.at, cx);
            }
            Path::PeerRelay { at, vni } => self.prove_relayed(at, vni, latency, cx),
            Path::Auxiliary { number, .. } => self.prove_auxiliary(number, latency, cx),
            Path::Direct(addr) => self.prove(addr, latency, cx),
        }
    }

    /// A pong proves a path.
    fn prove(&mut self, addr: SocketAddr, latency: Duration, cx: &mut Context<'_>) {
        let Some(entry) = self.candidates.get_mut(addr) else { return };
        let smooth = if entry.pong.is_some() { (entry.latency * 3 + latency) / 4 } else { latency };
        (entry.pong, entry.latency) = (Some(cx.now), smooth);
        if cx.now < entry.quarantine {
            return;
        }
        let proven = Direct::new(entry, cx.now);
        match &mut self.direct {
            Some(used) if used.addr == addr => {
                (used.alive, used.latency, used.doubt) = (cx.now, smooth, None);
            }
            Some(used) if !proven.replaces(used, cx.now) => {}
            direct => {
                *direct = Some(proven);
                self.lost = None;
                self.search.handle_path(cx.now);
            }
        }
    }

    pub(super) fn handle_traffic(&mut self, traffic: Traffic, cx: &mut Context<'_>) {
        if traffic.sent > 0 {
            self.note_sent(cx.now);
        }
        if traffic.received > 0 {
            self.activity.received = Some(cx.now);
            self.activity.stale = None;
            match traffic.received_from {
                Some(Path::Direct(addr)) => self.handle_data(canonical(addr), cx),
                Some(Path::PeerRelay { at, vni }) => self.handle_relayed_data(at, vni, cx.now),
                Some(Path::Auxiliary { number, .. }) => self.handle_auxiliary_data(number, cx.now),
                Some(Path::Relay(region)) => self.relay.received = Some(region),
                None => {}
            }
        }
        if traffic.sent > 0 && self.direct.is_some_and(|direct| cx.now >= direct.alive + SILENCE) {
            self.doubt(DOUBT, cx);
        }
        if traffic.sent > 0 {
            self.doubt_auxiliary(SILENCE, cx);
        }
        self.leave_stale_path(cx);
        self.search_if_due(cx);
    }

    /// The path in use must be confirmed at once.
    fn doubt(&mut self, patience: Duration, cx: &mut Context<'_>) {
        if let Some(direct) = self.direct.as_mut().filter(|direct| direct.doubt.is_none()) {
            direct.doubt = Some(Doubt { since: cx.now, patience, moved: false });
            let addr = direct.addr;
            self.ping(addr, None, cx);
        }
    }

    fn note_sent(&mut self, now: Duration) {
        if !self.is_active(now) {
            self.search.want_now(now);
        }
        self.activity.sent = Some(now);
    }

    fn handle_data(&mut self, addr: SocketAddr, cx: &mut Context<'_>) {
        match &mut self.direct {
            Some(direct) if direct.addr == addr => {
                direct.alive = cx.now;
                direct.doubt.take_if(|doubt| cx.now >= doubt.since + REPORT);
            }
            _ => self.handle_source(addr, cx),
        }
    }

    pub(super) fn handle_handshake_done(&mut self, cx: &mut Context<'_>) {
        self.activity.handshake = Some(cx.now);
        self.activity.stale = None;
        self.search_if_due(cx);
    }

    pub(super) fn handle_stale(&mut self, cx: &mut Context<'_>) {
        self.note_sent(cx.now);
        self.activity.stale = Some(cx.now);
        self.leave_stale_path(cx);
        self.search_if_due(cx);
    }

    /// If pings are answered and data is not, the path is at fault, provided that a relay exists. A
    /// new path is not: the unanswered packets were sent on the previous one.
    fn leave_stale_path(&mut self, cx: &Context<'_>) {
        let now = cx.now;
        let silent = self.activity.received.is_none_or(|at| now >= at + STALE);
        if let Some(direct) = self.direct
            && self.activity.stale.is_some()
            && silent
            && now >= direct.since + UNANSWERED
            && self.region(cx).is_some()
        {
            if let Some(entry) = self.candidates.get_mut(direct.addr) {
                entry.quarantine = now + QUARANTINE;
            }
            self.activity.stale = None;
            self.lose_path(now);
        }
    }

    pub(super) fn handle_gone(&mut self, region: u16, cx: &mut Context<'_>) {
        if self.relay.received == Some(region) {
            self.relay.received = None;
        }
        if self.relay.home.or(cx.own.home) == Some(region) {
            self.relay.gone = Some(cx.now);
        }
        self.handle_timeout(cx);
    }

    pub(super) fn handle_stall(&mut self, time: Duration) {
        if let Some(direct) = &mut self.direct {
            direct.handle_stall(time);
        }
        self.relayed.handle_stall(time);
        self.birthday.handle_stall(time);
        self.pings.iter_mut().for_each(|ping| ping.at += time);
    }

    /// The path in use stays, because most changes do not affect it.
    pub(super) fn handle_network_change(&mut self, cx: &mut Context<'_>) {
        if let Some(lost) = &mut self.lost {
            lost.pings = false;
        }
        self.candidates.reset_limits();
        self.doubt(DOUBT, cx);
        self.doubt_auxiliary(Duration::ZERO, cx);
        if let Some(doubt) = self.direct.as_mut().and_then(|direct| direct.doubt.as_mut()) {
            doubt.moved = true;
        }
        self.search.want_now(cx.now);
        self.search_if_due(cx);
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.check_direct(cx);
        if let Some((addr, at)) = self.lost_ping()
            && cx.now >= at
        {
            self.ping(addr, None, cx);
        }
        self.continue_round(cx);
        self.search_if_due(cx);
        self.search.rest(cx.now);
    }

    fn check_direct(&mut self, cx: &mut Context<'_>) {
        let Some(direct) = self.direct else { return };
        let other =
            self.candidates.best_since(direct.alive.max(cx.now.saturating_sub(HEARTBEAT)), cx.now);
        if let Some(other) = other.filter(|_| direct.is_late(cx.now)) {
            self.direct = Some(Direct::new(other, cx.now));
        } else if cx.now >= direct.ends() {
            self.lose_path(cx.now);
        } else if self.is_pinged(&direct) && cx.now >= direct.next_ping() {
            self.ping(direct.addr, None, cx);
        }
    }

    fn lose_path(&mut self, now: Duration) {
        if let Some(Direct { addr, doubt, .. }) = self.direct.take() {
            let pings = !doubt.is_some_and(|doubt| doubt.moved);
            self.lost = Some(Lost { addr, since: now, pings });
        }
        self.candidates.reset_limits();
        self.relayed.handle_loss(now);
        self.search.want_now(now);
    }

    /// Returns whether the path is pinged: while packets are sent, or while it is in doubt.
    fn is_pinged(&self, direct: &Direct) -> bool {
        direct.doubt.is_some() || self.active_until() > direct.next_ping()
    }

    /// Returns the time of the next ping of the lost path.
    fn lost_ping(&self) -> Option<(SocketAddr, Duration)> {
        let lost = self.lost.filter(|lost| lost.pings && self.direct.is_none());
        let Lost { addr, since, .. } = lost?;
        let pinged = self.candidates.get(addr)?.pinged.unwrap_or(since);
        let next = pinged + HEARTBEAT;
        (next < self.active_until().min(since + LOST)).then_some((addr, next))
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let direct = self.direct.as_ref().map(|direct| {
            let ping = Some(direct.next_ping()).filter(|_| self.is_pinged(direct));
            ping.map_or(direct.ends(), |ping| ping.min(direct.ends()))
        });
        let lost = self.lost_ping().map(|(_, at)| at);
        let others = [self.search_deadline(), self.relayed.deadline(), self.birthday.deadline()];
        [direct, lost].into_iter().chain(others).flatten().min()
    }

    fn active_until(&self) -> Duration {
        self.activity.sent.map_or(Duration::ZERO, |sent| sent + ACTIVE)
    }

    fn is_active(&self, now: Duration) -> bool {
        now < self.active_until()
    }

    /// Returns the region of the peer: its home, or the region of the last packet if the home relay
    /// reported it absent.
    fn confirmed_region(&self, now: Duration) -> Option<u16> {
        let Relay { home, received, .. } = self.relay;
        if self.is_away(now) { received.or(home) } else { home.or(received) }
    }

    /// Returns the region of the peer; if unknown, our home, which may also be that of the peer.
    fn region(&self, cx: &Context<'_>) -> Option<u16> {
        let guess = cx.own.home.filter(|_| !self.is_away(cx.now));
        self.confirmed_region(cx.now).or(guess)
    }

    /// Returns the region of the peer, if its relays are reachable.
    fn region_up(&self, cx: &Context<'_>) -> Option<u16> {
        self.region(cx).filter(|region| !cx.own.relays_down.contains(region))
    }

    fn is_away(&self, now: Duration) -> bool {
        self.relay.gone.is_some_and(|gone| now < gone + GONE)
    }

    pub(super) fn has_unknown_home(&self) -> bool {
        self.relay.home.is_none()
    }

    pub(super) fn has_unproven_path(&self) -> bool {
        self.direct.is_none()
    }
}
