//! Port mapping: the gateway's NAT forwards a port to this machine, by PCP (RFC 6887) or NAT-PMP
//! (RFC 6886).
//!
//! ```text
//!   begin ──► Find: map by PCP, ─────────────────────► mapping ──► Map at half its lifetime
//!               ▲   address by NAT-PMP                 ▲   │            `── refused ──► rest
//!               │    `── PCP is out ──► Map by NAT-PMP ┘   │ its lifetime is over
//!               ├── rest ◄── silence, refusal              │
//!               └──────────────────────────────────────────┘
//!   check ──► Check: the gateway's epoch, which went back ──► Map
//! ```
//!
//! After each input, and when `poll_timeout` says so, call `handle_timeout`, then `poll_transmit`
//! until it has nothing. What that gives goes to the gateway, from the address of the target; only
//! what comes from there is handed in.
//!
//! A gateway that speaks neither may speak UPnP ([`upnp`]), which is asked over connections.

mod epoch;
pub mod message;
pub mod upnp;

use std::{
    collections::VecDeque,
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use blake2::{Blake2s256, Digest as _};

use self::{
    epoch::Epoch,
    message::{Request, Response},
};
use crate::keys::DiscoKey;

/// What is asked for, in seconds: what RFC 6886, section 3.3, recommends.
const LIFETIME: u32 = 7200;
/// A mapping that is shorter would be renewed all the time: it is taken for a refusal.
const SHORTEST: u32 = 30;
/// What lasts longer is renewed after this (RFC 6887, section 15).
const LONGEST: u32 = 24 * 60 * 60;
/// When what is not answered is sent again; then it is given up. RFC 6886, section 3.1, begins so.
const WAITS_MS: [u64; 4] = [250, 500, 1000, 2000];
/// Before a gateway that said nothing or refused is asked again; twice as long each time.
const REST: Duration = Duration::from_secs(2 * 60);
const REST_DOUBLES: u32 = 4;
/// Between two checks of the epoch at least.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// How long a refusal by PCP counts at most.
const LONGEST_REFUSAL: Duration = Duration::from_secs(60 * 60);

/// Whose mapping it is, to PCP. A gateway refuses to change a mapping of another's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 12]);

impl Nonce {
    /// The same for a node as long as it has its key: an agent that is started again goes on with
    /// the mapping of the one before.
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

/// What is to be mapped where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The router.
    pub gateway: Ipv4Addr,
    /// This machine's address towards it.
    pub own: Ipv4Addr,
    /// The UDP port of this machine.
    pub port: u16,
}

/// By what a port is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
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

/// A port that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// By what.
    pub protocol: Protocol,
    /// Where this machine is reached.
    pub external: SocketAddrV4,
    /// When the gateway forgets it.
    pub expires: Duration,
}

/// What is known of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayState {
    /// Whether it speaks PCP, once that is known.
    pub pcp: Option<bool>,
    /// Whether it speaks NAT-PMP, once that is known.
    pub nat_pmp: Option<bool>,
    /// The mapping, if there is one.
    pub mapping: Option<Mapping>,
}

/// Maps one port, as the module's drawing shows.
#[derive(Debug)]
pub struct Mapper {
    nonce: Nonce,
    target: Option<Target>,
    state: GatewayState,
    /// The address outside, by NAT-PMP.
    address: Option<Ipv4Addr>,
    epoch: Option<Epoch>,
    exchange: Option<Exchange>,
    /// When the mapping is to be renewed, or all to be asked anew.
    due: Option<Duration>,
    /// How often all was in vain since the last success.
    failures: u32,
    checked: Option<Duration>,
    waiting: VecDeque<Request>,
}

/// What the gateway is being asked for.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    goal: Goal,
    sent: usize,
    next: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// A mapping by PCP, or the address by NAT-PMP; and which was refused.
    Find { pcp_is_out: Option<Duration>, nat_pmp_is_out: bool },
    /// A mapping by this.
    Map(Protocol),
    /// The epoch by this.
    Check(Protocol),
}

const FIND: Goal = Goal::Find { pcp_is_out: None, nat_pmp_is_out: false };

impl Mapper {
    /// Without a target.
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

    /// Begins at a target, of which nothing is known.
    pub fn start(&mut self, target: Target, now: Duration) {
        *self = Self { target: Some(target), due: Some(now), ..Self::new(self.nonce) };
    }

    /// Leaves its target. What is to be sent then releases the mapping there.
    pub fn stop(&mut self) {
        let waiting = match (self.target, self.state.mapping) {
            (Some(target), Some(mapping)) => self.map(mapping.protocol, target, 0),
            _ => VecDeque::new(),
        };
        *self = Self { waiting, ..Self::new(self.nonce) };
    }

    /// Where it is.
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// What is known there.
    pub fn state(&self) -> GatewayState {
        self.state
    }

    /// Looks whether the gateway still has the mapping: it may have been started again. Nothing is
    /// asked if that was done shortly before.
    pub fn check(&mut self, now: Duration) {
        let Some(mapping) = self.state.mapping else { return };
        let rests = self.checked.is_some_and(|at| now < at + CHECK_EVERY);
        if self.exchange.is_none() && !rests {
            self.checked = Some(now);
            self.start_exchange(Goal::Check(mapping.protocol), now);
        }
    }

    /// Takes a datagram of the gateway. Returns whether it was awaited.
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

    /// The gateway says its epoch, and no more: it lost the mapping if that is another.
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

    /// The gateway does not map by this protocol, for so many seconds.
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
            // Another gateway at the same address may speak the other protocol.
            Goal::Map(of) if *of == protocol && self.state.mapping.is_some() => {
                self.state.mapping = None;
                self.address = None;
                self.start_exchange(FIND, now);
            }
            Goal::Map(of) if *of == protocol => self.failed(rest, now),
            Goal::Map(_) | Goal::Check(_) => {}
        }
    }

    /// Nothing was to be had: asks anew after a rest.
    fn failed(&mut self, at_least: Duration, now: Duration) {
        let rest = REST * (1 << self.failures.min(REST_DOUBLES));
        self.failures += 1;
        (self.exchange, self.address) = (None, None);
        self.due = Some(now + rest.max(at_least));
    }

    fn start_exchange(&mut self, goal: Goal, now: Duration) {
        self.exchange = Some(Exchange { goal, sent: 0, next: now });
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let next = self.exchange.map_or(self.due, |exchange| Some(exchange.next));
        let expires = self.state.mapping.map(|mapping| mapping.expires);
        next.into_iter().chain(expires).min()
    }

    /// Takes the time.
    pub fn handle_timeout(&mut self, now: Duration) {
        let Some(target) = self.target else { return };
        if self.state.mapping.is_some_and(|mapping| mapping.expires <= now) {
            (self.state.mapping, self.address) = (None, None);
            self.start_exchange(FIND, now);
        }
        self.resend(target, now);
        // Also where a check that was not answered held it up.
        if self.exchange.is_none() && self.due.is_some_and(|due| due <= now) {
            let renewal = self.state.mapping.map(|mapping| Goal::Map(mapping.protocol));
            self.start_exchange(renewal.unwrap_or(FIND), now);
            self.resend(target, now);
        }
    }

    /// Sends what is asked for once more, if it is time.
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
            // Until it expires.
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

    /// Maps by a protocol, or deletes the mapping: no lifetime.
    fn map(&self, protocol: Protocol, target: Target, lifetime: u32) -> VecDeque<Request> {
        let before = self.state.mapping.map(|mapping| mapping.external);
        // The same port is the easiest to explain.
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
            // Beside the port: a gateway that was started again may have another address.
            Protocol::NatPmp if lifetime > 0 => {
                [Request::PmpAddress, Request::PmpMap { internal, external, lifetime }].into()
            }
            Protocol::NatPmp => [Request::PmpMap { internal, external, lifetime }].into(),
        }
    }

    /// A datagram for the gateway's [`message::PORT`].
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front().map(|request| request.to_bytes())
    }
}

/// Whether others may reach something there. A private address may be that of a larger network
/// that peers are in.
fn is_usable(address: Ipv4Addr) -> bool {
    let is_nowhere = address.is_unspecified() || address.is_loopback() || address.is_link_local();
    !is_nowhere && !address.is_multicast() && !address.is_broadcast()
}

#[cfg(test)]
mod tests;
