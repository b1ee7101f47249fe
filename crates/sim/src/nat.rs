//! What a NAT box does, in the words of RFC 4787.

use std::{net::SocketAddr, time::Duration};

pub(crate) mod table;

/// Which remote endpoints are one to a box: RFC 4787 sections 4.1 (mapping) and 5
/// (filtering).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependence {
    EndpointIndependent,
    AddressDependent,
    AddressAndPortDependent,
}

impl Dependence {
    fn same(self, one: SocketAddr, other: SocketAddr) -> bool {
        match self {
            Self::EndpointIndependent => true,
            Self::AddressDependent => one.ip() == other.ip(),
            Self::AddressAndPortDependent => one == other,
        }
    }
}

/// How the outer port of a new mapping is chosen (RFC 4787 section 4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The inner port, or another where that is taken.
    Preserved,
    Random,
}

/// How long an entry lives behind the last datagram that refreshed it.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until an answer came, and for two seconds more.
    pub unreplied: Duration,
    pub stream: Duration,
    /// Whether datagrams from outside refresh as well (RFC 4787, REQ-6).
    pub refreshed_from_outside: bool,
}

impl Timeouts {
    /// `nf_conntrack_udp_timeout` and `nf_conntrack_udp_timeout_stream` of Linux.
    pub const CONNTRACK: Self = Self {
        unreplied: Duration::from_secs(30),
        stream: Duration::from_secs(120),
        refreshed_from_outside: true,
    };

    /// One time for all, refreshed by what goes out.
    pub const fn outbound(timeout: Duration) -> Self {
        Self { unreplied: timeout, stream: timeout, refreshed_from_outside: false }
    }
}

/// A NAT box between a network and the one outside.
#[derive(Clone, Copy, Debug)]
pub struct Nat {
    pub mapping: Dependence,
    pub filtering: Dependence,
    pub ports: Ports,
    /// Whether what no host asked for goes to the box itself: it leaves an entry there as
    /// conntrack's, to which an outer port gives way. With a drop in Linux's input chain there
    /// is none.
    pub tracks_input: bool,
    /// Whether hosts behind it reach each other by their outer addresses (RFC 4787 section 6).
    pub hairpin: bool,
    pub blocks_udp: bool,
    pub timeouts: Timeouts,
}

impl Nat {
    /// `masquerade`, and a drop of what comes to the box itself.
    pub const PORT_RESTRICTED: Self = Self {
        mapping: Dependence::EndpointIndependent,
        filtering: Dependence::AddressAndPortDependent,
        ports: Ports::Preserved,
        tracks_input: false,
        hairpin: false,
        blocks_udp: false,
        timeouts: Timeouts::CONNTRACK,
    };

    pub const FULL_CONE: Self =
        Self { filtering: Dependence::EndpointIndependent, ..Self::PORT_RESTRICTED };

    pub const ADDRESS_RESTRICTED: Self =
        Self { filtering: Dependence::AddressDependent, ..Self::PORT_RESTRICTED };

    /// `masquerade fully-random`.
    pub const SYMMETRIC: Self = Self {
        mapping: Dependence::AddressAndPortDependent,
        ports: Ports::Random,
        ..Self::PORT_RESTRICTED
    };

    /// `masquerade` alone.
    pub const NO_INPUT_DROP: Self = Self { tracks_input: true, ..Self::PORT_RESTRICTED };

    /// No datagram passes, either way.
    pub const UDP_BLOCKED: Self = Self { blocks_udp: true, ..Self::PORT_RESTRICTED };
}
