//! Port mapping: the gateway's NAT forwards a port to this machine, through PCP (RFC 6887) or
//! NAT-PMP (RFC 6886).
//!
//! ```text
//!   start ──► Find: map by PCP, ──────────────────────► mapping ──► Map at half its lifetime
//!               ▲   address by NAT-PMP                  ▲   │            `── refused ──► delay
//!               │    `── PCP refused ──► Map by NAT-PMP ┘   │ the lifetime ended
//!               ├── delay ◄── no answer, or refused         │
//!               └───────────────────────────────────────────┘
//!   check ──► Check: the gateway's epoch decreased ──► Map
//! ```
//!
//! After each input and at `poll_timeout`, call `handle_timeout`, then `poll_transmit` until it
//! returns `None`. Send its datagrams to the gateway from the address of the target, and pass in
//! only datagrams of the gateway.
//!
//! A gateway without both may support UPnP ([`upnp_messages`]), which uses TCP connections.

mod epoch;
pub mod mapping_messages;
pub mod upnp_messages;

use std::{
    collections::VecDeque,
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use blake2::{Blake2s256, Digest as _};
use tailnet::keys::DiscoKey;

use self::{
    epoch::Epoch,
    mapping_messages::{Request, Response},
};

/// The requested lifetime in seconds, as RFC 6886, section 3.3, recommends.
const LIFETIME: u32 = 7200;
/// The shortest accepted lifetime in seconds. A shorter one counts as a refusal, because it would
/// be renewed constantly.
const SHORTEST: u32 = 30;
/// Longer lifetimes are reduced to this, in seconds (RFC 6887, section 15).
const LONGEST: u32 = 24 * 60 * 60;
/// The times between repetitions of an unanswered request, as in RFC 6886, section 3.1. Then it is
/// given up.
const WAITS_MS: [u64; 4] = [250, 500, 1000, 2000];
/// The time until a gateway that did not answer or refused gets another request. It doubles with
/// each failure.
const REST: Duration = Duration::from_secs(2 * 60);
const REST_DOUBLES: u32 = 4;
/// The minimum time between two checks of the epoch.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// The maximum time for which a refusal by PCP counts.
const LONGEST_REFUSAL: Duration = Duration::from_secs(60 * 60);

/// The owner of a mapping in PCP. A gateway does not let others change it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 12]);

impl Nonce {
    /// Derives the nonce from the node's key, so that a restarted agent continues with the same
    /// mapping.
    pub fn of(key: &DiscoKey) -> Self {
        let hash = Blake2s256::new().chain_update(b"linerate PCP nonce").chain_update(key.bytes());
        let mut nonce = Self([0; 12]);
        nonce.0.copy_from_slice(&hash.finalize()[..12]);
        nonce
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// The port to map, and the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The router.
    pub gateway: Ipv4Addr,
    /// This machine's address in the gateway's network.
    pub own: Ipv4Addr,
    /// The UDP port of this machine.
    pub port: u16,
}

/// The protocol of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Pcp,
    NatPmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcp => "PCP",
            Self::NatPmp => "NAT-PMP",
        })
    }
}

/// A mapped port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// By what.
    pub protocol: Protocol,
    /// The public address.
    pub external: SocketAddrV4,
    /// The expiry of the mapping.
    pub expires: Duration,
}

/// The state of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayState {
    /// Whether it supports PCP, if known.
    pub pcp: Option<bool>,
    /// Whether it supports NAT-PMP, if known.
    pub nat_pmp: Option<bool>,
    /// The mapping, if there is one.
    pub mapping: Option<Mapping>,
}

/// Maps one port, as the module's diagram shows.
#[derive(Debug)]
pub struct Mapper {
    nonce: Nonce,
    target: Option<Target>,
    state: GatewayState,
    /// The public address, from NAT-PMP.
    address: Option<Ipv4Addr>,
    epoch: Option<Epoch>,
    exchange: Option<Exchange>,
    /// The time of the renewal of the mapping, or of a new attempt.
    due: Option<Duration>,
    /// The number of failures since the last success.
    failures: u32,
    checked: Option<Duration>,
    waiting: VecDeque<Request>,
}

/// The current exchange with the gateway.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    goal: Goal,
    sent: usize,
    next: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// A mapping through PCP, or the address through NAT-PMP; and the refusals.
    Find { pcp_is_out: Option<Duration>, nat_pmp_is_out: bool },
    /// A mapping through this protocol.
    Map(Protocol),
    /// The epoch through this protocol.
    Check(Protocol),
}

const FIND: Goal = Goal::Find { pcp_is_out: None, nat_pmp_is_out: false };

impl Mapper {
    /// Creates it without a target.
    pub fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            target: None,
            state: GatewayState::default(),
            address: None,
            epoch: None,
            exchange: None,
            due: None,
            failures: 0,
            checked: None,
            waiting: VecDeque::new(),
        }
    }

    /// Starts with a new target.
    pub fn start(&mut self, target: Target, now: Duration) {
        *self = Self { target: Some(target), due: Some(now), ..Self::new(self.nonce) };
    }

    /// Stops. The remaining datagrams delete the mapping.
    pub fn stop(&mut self) {
        let waiting = match (self.target, self.state.mapping) {
            (Some(target), Some(mapping)) => self.map(mapping.protocol, target, 0),
            _ => VecDeque::new(),
        };
        *self = Self { waiting, ..Self::new(self.nonce) };
    }

    /// Returns the target.
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// Returns the state of the gateway.
    pub fn state(&self) -> GatewayState {
        self.state
    }

    /// Checks whether the gateway still has the mapping, because it may have restarted. Does
    /// nothing if the last check was recent.
    pub fn check(&mut self, now: Duration) {
        let Some(mapping) = self.state.mapping else { return };
        let rests = self.checked.is_some_and(|at| now < at + CHECK_EVERY);
        if self.exchange.is_none() && !rests {
            self.checked = Some(now);
            self.start_exchange(Goal::Check(mapping.protocol), now);
        }
    }

    /// Processes a datagram of the gateway. Returns whether it was expected.
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Duration) -> bool {
        let Some(response) = Response::read(datagram) else { return false };
        let (Some(target), Some(exchange)) = (self.target, self.exchange) else { return false };
        let goal = exchange.goal;
        let maps = matches!(goal, Goal::Find { .. } | Goal::Map(_));
        match response {
            Response::PcpMap { nonce, internal, external, address, lifetime, epoch }
                if maps && nonce == self.nonce && internal == target.port =>
            {
                self.state.pcp = Some(true);
                self.epoch = Some(Epoch::new(epoch, now));
                let external = SocketAddrV4::new(address, external);
                self.mapped(Protocol::Pcp, external, lifetime, now);
            }
            Response::PmpMap { internal, external, lifetime, epoch }
                if goal == Goal::Map(Protocol::NatPmp) && internal == target.port =>
            {
                self.epoch = Some(Epoch::new(epoch, now));
                let address = self.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
                let external = SocketAddrV4::new(address, external);
                self.mapped(Protocol::NatPmp, external, lifetime, now);
            }
            Response::PcpAnnounce { epoch } if goal == Goal::Check(Protocol::Pcp) => {
                self.handle_epoch(Protocol::Pcp, epoch, now);
            }
            Response::PmpAddress { address, epoch } => self.handle_address(address, epoch, now),
            Response::PcpRefused { lifetime, .. } if maps => {
                self.state.pcp = Some(true);
                self.refused(Protocol::Pcp, lifetime, now);
            }
            Response::NoPcp if maps => {
                self.state.pcp = Some(false);
                self.refused(Protocol::Pcp, 0, now);
            }
            Response::PmpRefused { .. } if maps => {
                self.state.nat_pmp = Some(true);
                self.refused(Protocol::NatPmp, 0, now);
            }
            _ => return false,
        }
        true
    }

    fn handle_address(&mut self, address: Ipv4Addr, epoch: u32, now: Duration) {
        let Some(Exchange { goal, .. }) = self.exchange else { return };
        self.state.nat_pmp = Some(true);
        self.address = Some(address).filter(|address| is_usable(*address));
        match goal {
            Goal::Find { pcp_is_out: Some(_), .. } if self.address.is_some() => {
                self.start_exchange(Goal::Map(Protocol::NatPmp), now);
            }
            Goal::Find { .. } if self.address.is_none() => {
                self.refused(Protocol::NatPmp, 0, now);
            }
            Goal::Check(Protocol::NatPmp) => {
                let mapping = self.state.mapping;
                let is_other = mapping.is_some_and(|old| *old.external.ip() != address);
                self.epoch = self.epoch.filter(|_| !is_other);
                self.handle_epoch(Protocol::NatPmp, epoch, now);
            }
            _ => {}
        }
    }

    /// The gateway sent its epoch. If it was reset, the mapping was lost.
    fn handle_epoch(&mut self, protocol: Protocol, epoch: u32, now: Duration) {
        let continues = self.epoch.is_some_and(|before| before.continues(epoch, now));
        self.epoch = Some(Epoch::new(epoch, now));
        self.exchange = None;
        if !continues {
            self.start_exchange(Goal::Map(protocol), now);
        }
    }

    fn mapped(&mut self, protocol: Protocol, external: SocketAddrV4, lifetime: u32, now: Duration) {
        if !is_usable(*external.ip()) || external.port() == 0 || lifetime < SHORTEST {
            return self.refused(protocol, 0, now);
        }
        let lifetime = Duration::from_secs(lifetime.min(LONGEST).into());
        self.state.mapping = Some(Mapping { protocol, external, expires: now + lifetime });
        (self.exchange, self.due) = (None, Some(now + lifetime / 2));
        (self.failures, self.checked) = (0, Some(now));
    }

    /// The gateway refused this protocol for a number of seconds.
    fn refused(&mut self, protocol: Protocol, seconds: u32, now: Duration) {
        let Some(exchange) = &mut self.exchange else { return };
        let rest = Duration::from_secs(seconds.into()).min(LONGEST_REFUSAL);
        match &mut exchange.goal {
            Goal::Find { pcp_is_out, nat_pmp_is_out } => {
                match protocol {
                    Protocol::Pcp => *pcp_is_out = Some(rest),
                    Protocol::NatPmp => *nat_pmp_is_out = true,
                }
                match (*pcp_is_out, *nat_pmp_is_out) {
                    (Some(rest), true) => self.failed(rest, now),
                    (Some(_), false) if self.address.is_some() => {
                        self.start_exchange(Goal::Map(Protocol::NatPmp), now);
                    }
                    _ => {}
                }
            }
            // Another gateway with the same address may support the other protocol.
            Goal::Map(of) if *of == protocol && self.state.mapping.is_some() => {
                self.state.mapping = None;
                self.address = None;
                self.start_exchange(FIND, now);
            }
            Goal::Map(of) if *of == protocol => self.failed(rest, now),
            Goal::Map(_) | Goal::Check(_) => {}
        }
    }

    /// All attempts failed: retries after a pause.
    fn failed(&mut self, at_least: Duration, now: Duration) {
        let rest = REST * (1 << self.failures.min(REST_DOUBLES));
        self.failures += 1;
        (self.exchange, self.address) = (None, None);
        self.due = Some(now + rest.max(at_least));
    }

    fn start_exchange(&mut self, goal: Goal, now: Duration) {
        self.exchange = Some(Exchange { goal, sent: 0, next: now });
    }

    /// Returns the time of the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Duration> {
        let next = self.exchange.map_or(self.due, |exchange| Some(exchange.next));
        let expires = self.state.mapping.map(|mapping| mapping.expires);
        next.into_iter().chain(expires).min()
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Duration) {
        let Some(target) = self.target else { return };
        if self.state.mapping.is_some_and(|mapping| mapping.expires <= now) {
            (self.state.mapping, self.address) = (None, None);
            self.start_exchange(FIND, now);
        }
        self.resend(target, now);
        // Also if an unanswered check delayed it.
        if self.exchange.is_none() && self.due.is_some_and(|due| due <= now) {
            let renewal = self.state.mapping.map(|mapping| Goal::Map(mapping.protocol));
            self.start_exchange(renewal.unwrap_or(FIND), now);
            self.resend(target, now);
        }
    }

    /// Repeats the request if it is due.
    fn resend(&mut self, target: Target, now: Duration) {
        let Some(mut exchange) = self.exchange.filter(|exchange| exchange.next <= now) else {
            return;
        };
        let is_find = matches!(exchange.goal, Goal::Find { .. });
        if is_find && exchange.sent > 0 && self.address.is_some() {
            self.state.pcp.get_or_insert(false);
            exchange = Exchange { goal: Goal::Map(Protocol::NatPmp), sent: 0, next: now };
        }
        let Some(wait) = WAITS_MS.get(exchange.sent) else {
            return self.give_up(exchange.goal, now);
        };
        self.waiting = match exchange.goal {
            Goal::Find { .. } => {
                let mut both = self.map(Protocol::Pcp, target, LIFETIME);
                both.push_back(Request::PmpAddress);
                both
            }
            Goal::Map(protocol) => self.map(protocol, target, LIFETIME),
            Goal::Check(Protocol::Pcp) => [Request::PcpAnnounce { client: target.own }].into(),
            Goal::Check(Protocol::NatPmp) => [Request::PmpAddress].into(),
        };
        let next = now + Duration::from_millis(*wait);
        self.exchange = Some(Exchange { sent: exchange.sent + 1, next, ..exchange });
    }

    /// The gateway did not answer.
    fn give_up(&mut self, goal: Goal, now: Duration) {
        self.exchange = None;
        match (goal, self.state.mapping) {
            // The mapping stays until it expires.
            (Goal::Map(_), Some(mapping)) => {
                self.due = Some(now + mapping.expires.saturating_sub(now) / 2);
            }
            (Goal::Check(_), Some(_)) => {}
            (Goal::Find { pcp_is_out, nat_pmp_is_out }, _) => {
                let pcp = pcp_is_out.is_some();
                self.state.pcp = self.state.pcp.filter(|_| pcp).or(Some(false));
                self.state.nat_pmp = self.state.nat_pmp.filter(|_| nat_pmp_is_out).or(Some(false));
                self.failed(pcp_is_out.unwrap_or_default(), now);
            }
            (Goal::Map(_) | Goal::Check(_), None) => self.failed(Duration::ZERO, now),
        }
    }

    /// Returns the requests that create a mapping, or that delete it if the lifetime is 0.
    fn map(&self, protocol: Protocol, target: Target, lifetime: u32) -> VecDeque<Request> {
        let before = self.state.mapping.map(|mapping| mapping.external);
        // The same public port is the easiest to explain.
        let desired = before.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, target.port));
        let desired =
            if lifetime == 0 { SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0) } else { desired };
        let (internal, external) = (target.port, desired.port());
        match protocol {
            Protocol::Pcp => [Request::PcpMap {
                nonce: self.nonce,
                client: target.own,
                internal,
                external,
                address: *desired.ip(),
                lifetime,
            }]
            .into(),
            // Requests the address as well, because a restarted gateway may have another one.
            Protocol::NatPmp if lifetime > 0 => {
                [Request::PmpAddress, Request::PmpMap { internal, external, lifetime }].into()
            }
            Protocol::NatPmp => [Request::PmpMap { internal, external, lifetime }].into(),
        }
    }

    /// Returns a datagram for the gateway's [`mapping_messages::PORT`].
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front().map(|request| request.to_bytes())
    }
}

/// Returns whether others may reach the address. A private one may belong to a larger network that
/// includes peers.
fn is_usable(address: Ipv4Addr) -> bool {
    let is_nowhere = address.is_unspecified() || address.is_loopback() || address.is_link_local();
    !is_nowhere && !address.is_multicast() && !address.is_broadcast()
}

#[cfg(test)]
mod tests;
