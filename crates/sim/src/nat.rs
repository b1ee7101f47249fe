//! Behaviour of a NAT box, in the terms of RFC 4787.

use std::{net::SocketAddr, time::Duration};

pub(crate) mod table;

/// The remote endpoints that a box treats alike: RFC 4787 sections 4.1 (mapping) and 5 (filtering).
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

/// The choice of the outer port of a new mapping (RFC 4787 section 4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The inner port, or another one if it is in use.
    Preserved,
    Random,
}

/// The lifetime of an entry after the last datagram that refreshed it.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Before the first reply, and for two seconds afterwards.
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

    /// One timeout for all entries, refreshed only by outgoing datagrams.
    pub const fn outbound(timeout: Duration) -> Self {
        Self { unreplied: timeout, stream: timeout, refreshed_from_outside: false }
    }
}

/// A NAT box between an inner and an outer network.
#[derive(Clone, Copy, Debug)]
pub struct Nat {
    pub mapping: Dependence,
    pub filtering: Dependence,
    pub ports: Ports,
    /// Whether unsolicited datagrams are accepted by the box itself. As in conntrack, they create
    /// an entry that makes a new mapping use another port. A drop in Linux's input chain prevents
    /// that.
    pub tracks_input: bool,
    /// Whether hosts behind it reach each other by their outer addresses (RFC 4787 section 6).
    pub hairpin: bool,
    pub blocks_udp: bool,
    pub timeouts: Timeouts,
}

impl Nat {
    /// `masquerade`, with a drop of packets to the box itself.
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

    /// Drops all UDP datagrams.
    pub const UDP_BLOCKED: Self = Self { blocks_udp: true, ..Self::PORT_RESTRICTED };
}
