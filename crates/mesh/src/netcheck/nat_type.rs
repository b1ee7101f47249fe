//! The type of NAT in the terms of RFC 4787, from the addresses that others observed and from the
//! hairpin test.

use std::{collections::VecDeque, fmt, net::SocketAddr};

use rand_core::CryptoRng;
use tailnet::stun::{self, REQUEST_LEN, TxId};

use super::{ReflexiveAddress, Report};
use crate::peer_paths::PublicEndpoint;

/// The maximum number of stored observations by peers.
const PEERS: usize = 8;

/// The IPv4 NAT of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    /// The mapping behavior.
    pub mapping: Mapping,
    /// Whether the public port is equal to the local port.
    pub port_preserved: bool,
    /// Whether this machine reaches itself at its public address.
    pub hairpin: Option<bool>,
}

/// The mapping behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// No NAT.
    None,
    /// The same for all destinations: everyone can use the observed port.
    EndpointIndependent,
    /// Different for each destination: the observed ports are of no use to others.
    EndpointDependent,
    /// Only one observation exists.
    Unknown,
}

/// The addresses of this machine that peers observed. In a network with one STUN server they are
/// the second observation.
#[derive(Clone, Debug, Default)]
pub struct PeerReports(VecDeque<ReflexiveAddress>);

impl PeerReports {
    /// Adds the observation of a peer.
    pub fn note(&mut self, seen: ReflexiveAddress) {
        self.0.retain(|other| other.server != seen.server);
        self.0.truncate(PEERS - 1);
        self.0.push_front(seen);
    }

    /// Removes all observations, after the network changed.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A request to this machine's own public address.
#[derive(Debug, Default)]
pub(super) struct Hairpin {
    to: Option<SocketAddr>,
    sent: Option<[u8; REQUEST_LEN]>,
    came: bool,
}

impl Hairpin {
    /// Sets the public address. The first one is used.
    pub(super) fn want(&mut self, own: SocketAddr) {
        self.to.get_or_insert(own);
    }

    pub(super) fn poll_transmit(
        &mut self,
        rng: &mut dyn CryptoRng,
    ) -> Option<(SocketAddr, [u8; REQUEST_LEN])> {
        let to = self.to.filter(|_| self.sent.is_none())?;
        let mut tx = TxId::default();
        rng.fill_bytes(&mut tx);
        let request = stun::request(tx);
        self.sent = Some(request);
        Some((to, request))
    }

    /// Returns whether a datagram is the request.
    pub(super) fn handle(&mut self, datagram: &[u8]) -> bool {
        let is_ours = self.sent.is_some_and(|request| request == datagram);
        self.came |= is_ours;
        is_ours
    }

    pub(super) fn works(&self) -> Option<bool> {
        self.sent.map(|_| self.came)
    }
}

impl Report {
    /// Returns the NAT of a machine with these local addresses; `None` without an observation.
    pub fn nat(
        &self,
        local: &[SocketAddr],
        peers: &PeerReports,
        hairpin: Option<bool>,
    ) -> Option<Nat> {
        let is_v4 = |seen: &&ReflexiveAddress| seen.own.is_ipv4();
        let first = self.reflexive_addresses.iter().find(is_v4)?;
        // Peers in the same local network observe a local address, or one of another NAT.
        let outside = |seen: &&ReflexiveAddress| seen.own.ip() == first.own.ip();
        let servers = self.reflexive_addresses.iter().filter(is_v4);
        let others = servers.chain(peers.0.iter().filter(outside));
        let others = others.filter(|other| other.server != first.server);
        let varies = others.map(|other| other.own != first.own).reduce(|one, other| one | other);
        let mapping = match varies {
            _ if local.contains(&first.own) => Mapping::None,
            Some(false) => Mapping::EndpointIndependent,
            Some(true) => Mapping::EndpointDependent,
            None => Mapping::Unknown,
        };
        let port_preserved = local.iter().any(|at| at.is_ipv4() && at.port() == first.own.port());
        Some(Nat { mapping, port_preserved, hairpin })
    }

    /// Returns the public endpoint. With only one observation, a port that differs from the local
    /// port is assumed to vary: a wrong assumption costs one datagram to a peer.
    pub fn public_endpoint(
        &self,
        local: &[SocketAddr],
        peers: &PeerReports,
    ) -> Option<PublicEndpoint> {
        let at = self.reflexive_addresses.iter().find(|seen| seen.own.is_ipv4())?.own;
        let varies = match self.nat(local, peers, None)?.mapping {
            Mapping::None | Mapping::EndpointIndependent => false,
            Mapping::EndpointDependent => true,
            // Behind NAT64 all local addresses are translated.
            Mapping::Unknown => !local.iter().any(|own| own.port() == at.port()),
        };
        Some(PublicEndpoint { at, varies })
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mapping {
            Mapping::None => return f.write_str("none"),
            Mapping::EndpointIndependent => "the same port for all destinations",
            Mapping::EndpointDependent => "a different port for each destination (symmetric)",
            Mapping::Unknown => "unknown: only one server has answered",
        })?;
        f.write_str(if self.port_preserved { ", equal to the local port" } else { "" })?;
        f.write_str(match self.hairpin {
            Some(true) => ", hairpin",
            Some(false) => ", no hairpin",
            None => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn report(seen: &[(&str, &str)]) -> Report {
        let reflexive_addresses =
            seen.iter().map(|(server, own)| ReflexiveAddress { server: at(server), own: at(own) });
        Report { reflexive_addresses: reflexive_addresses.collect(), ..Report::default() }
    }

    const ONE: &str = "198.51.100.1:3478";
    const TWO: &str = "198.51.100.2:3478";
    const OWN: &str = "203.0.113.1:41641";

    #[test]
    fn mapping_is_derived_from_two_observations() {
        let local = [at("192.168.0.2:41641")];
        let nat = |seen: &[(&str, &str)]| report(seen).nat(&local, &PeerReports::default(), None);
        let mapping = |seen: &[(&str, &str)]| nat(seen).map(|nat| nat.mapping);
        assert_eq!(mapping(&[]), None);
        assert_eq!(mapping(&[("[2001:db8::1]:3478", "[2001:db8::2]:41641")]), None);
        assert_eq!(mapping(&[(ONE, OWN), (ONE, OWN)]), Some(Mapping::Unknown));
        assert_eq!(mapping(&[(ONE, OWN), (TWO, OWN)]), Some(Mapping::EndpointIndependent));
        let moved = "203.0.113.1:1024";
        assert_eq!(mapping(&[(ONE, OWN), (TWO, moved)]), Some(Mapping::EndpointDependent));
        assert_eq!(mapping(&[(ONE, "192.168.0.2:41641")]), Some(Mapping::None));
        let preserved = |own| nat(&[(ONE, own)]).unwrap().port_preserved;
        assert!(preserved(OWN) && !preserved(moved));
    }

    #[test]
    fn port_varies_if_observations_differ_or_one_is_not_the_local_port() {
        let local = [at("192.168.0.2:41641")];
        let moved = "203.0.113.1:1024";
        for (seen, varies) in [
            (&[(ONE, OWN)][..], false),
            (&[(ONE, moved)], true),
            (&[(ONE, moved), (TWO, moved)], false),
            (&[(ONE, OWN), (TWO, moved)], true),
            (&[(ONE, "192.168.0.2:41641")], false),
        ] {
            let place = report(seen).public_endpoint(&local, &PeerReports::default()).unwrap();
            assert_eq!(place, PublicEndpoint { at: at(seen[0].1), varies }, "{seen:?}");
        }
        assert_eq!(report(&[]).public_endpoint(&local, &PeerReports::default()), None);
    }

    #[test]
    fn observations_of_peers_complement_a_single_server() {
        let local = [at("192.168.0.2:41641")];
        for (own, mapping) in [
            (OWN, Mapping::EndpointIndependent),
            ("203.0.113.1:999", Mapping::EndpointDependent),
            // A peer in the same network observes the local address.
            ("192.168.0.2:41641", Mapping::Unknown),
        ] {
            let mut peers = PeerReports::default();
            peers.note(ReflexiveAddress { server: at("198.51.100.9:41641"), own: at(own) });
            let nat = report(&[(ONE, OWN)]).nat(&local, &peers, None).unwrap();
            assert_eq!(nat.mapping, mapping, "{own}");
        }
        let mut peers = PeerReports::default();
        for port in 1..100 {
            peers.note(ReflexiveAddress {
                server: SocketAddr::from(([198, 51, 100, 9], port)),
                own: at(OWN),
            });
        }
        assert_eq!(peers.0.len(), PEERS);
        peers.clear();
        assert!(peers.0.is_empty());
    }

    #[test]
    fn nat_is_displayed_in_words() {
        let nat = |mapping, hairpin| Nat { mapping, port_preserved: true, hairpin }.to_string();
        let same = nat(Mapping::EndpointIndependent, Some(false));
        assert_eq!(same, "the same port for all destinations, equal to the local port, no hairpin");
        assert_eq!(nat(Mapping::None, None), "none");
    }
}
