//! Checks of the network and their results: this machine's endpoints and NAT, the latencies of
//! relays, and the home relay.
//!
//! Each change is recorded in [`Changes`], which the mesh applies to the paths.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use getrandom::{SysRng, rand_core::UnwrapErr};
use ipc::Outgoing;
use mesh::{
    home_relay::HomeSelector,
    nat64::Prefix,
    netcheck::{Families, Nat, NetInfo, Netcheck, PeerReports, ReflexiveAddress, Report},
    peer_paths::PublicEndpoint,
    permitted_addresses::Scope,
};
use tailnet::{map_messages::DerpMap, ts2021::requests::EndpointKind};

use super::{Output, nat64::Nat64, outbox::Outbox};
use crate::agent::{check_tasks::CheckResult, portmap::PortMapping};

/// Checks of the network and their results.
pub(in crate::agent) struct NetworkChecks {
    /// This machine's own addresses.
    local: Vec<SocketAddr>,
    netcheck: Netcheck,
    /// The report of the last check.
    report: Report,
    seen_by_peers: PeerReports,
    net_info: NetInfo,
    port_mapping: PortMapping,
    homes: HomeSelector,
    nat64: Nat64,
    changes: Changes,
}

/// Changes since they were taken last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    /// The paths need the endpoints again.
    pub endpoints: bool,
    /// The home relay changed.
    pub home: bool,
    /// The endpoints or the home relay must be announced to the coordinator.
    pub announce: bool,
}

impl NetworkChecks {
    /// `pick` selects one of several equally near relays.
    pub(super) fn new(port_mapping: PortMapping, pick: usize) -> Self {
        Self {
            local: Vec::new(),
            netcheck: Netcheck::new(Box::new(UnwrapErr(SysRng))),
            report: Report::default(),
            seen_by_peers: PeerReports::default(),
            net_info: NetInfo::default(),
            port_mapping,
            homes: HomeSelector::new(None, pick),
            nat64: Nat64::default(),
            changes: Changes::default(),
        }
    }

    pub(crate) fn home(&self) -> Option<u16> {
        self.homes.current()
    }

    /// The network information for the coordinator. Changed latencies alone do not count, or nodes
    /// would announce each check.
    pub(crate) fn net_info(&self) -> &NetInfo {
        &self.net_info
    }

    /// This machine's own addresses.
    pub(crate) fn local(&self) -> &[SocketAddr] {
        &self.local
    }

    pub(crate) fn port_mapping(&self) -> &PortMapping {
        &self.port_mapping
    }

    /// The endpoints of this node with their origins.
    pub(crate) fn endpoints(&self) -> Vec<(SocketAddr, EndpointKind)> {
        let local = self.local.iter().map(|at| (*at, EndpointKind::Local));
        let mapped = self.port_mapping.endpoint().filter(|at| !self.local.contains(at));
        let is_listed = |at: &SocketAddr| self.local.contains(at) || mapped == Some(*at);
        let reflexive = self.reflexive().into_iter().filter(|at| !is_listed(at));
        let reflexive = reflexive.map(|at| (at, EndpointKind::Stun));
        local.chain(mapped.map(|at| (at, EndpointKind::Portmapped))).chain(reflexive).collect()
    }

    /// The addresses that STUN servers report.
    fn reflexive(&self) -> Vec<SocketAddr> {
        [self.report.global(true), self.report.global(false)].concat()
    }

    /// Whether a STUN server answered the last check.
    pub(crate) fn udp_works(&self) -> bool {
        self.report.udp
    }

    /// The latencies of relays.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (u16, Duration)> {
        self.report.latencies.iter().map(|(region, latency)| (*region, *latency))
    }

    /// The NAT of this machine, if known.
    pub(crate) fn nat(&self) -> Option<Nat> {
        self.report.nat(&self.local, &self.seen_by_peers, self.netcheck.hairpin())
    }

    /// The endpoint of this machine as other networks see it, if known.
    pub(super) fn public_endpoint(&self) -> Option<PublicEndpoint> {
        self.report.public_endpoint(&self.local, &self.seen_by_peers)
    }

    pub(super) fn nat64(&self) -> &Nat64 {
        &self.nat64
    }

    /// Whether all paths must be sent to the data plane again, because they are translated
    /// differently.
    pub(super) fn poll_outdated_paths(&mut self) -> bool {
        self.nat64.poll_outdated_paths()
    }

    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Sets this machine's addresses. Returns whether they changed.
    pub(super) fn set_local(&mut self, local: Vec<SocketAddr>) -> bool {
        let differs = self.local != local;
        self.changes.announce |= differs;
        self.changes.endpoints = true;
        self.local = local;
        differs
    }

    pub(super) fn set_relays(&mut self, map: &DerpMap, scope: Scope, now: Duration) {
        self.netcheck.set_map(map, scope);
        self.homes.set_map(map);
        // A single region is home without a measurement.
        if map.regions.iter().flatten().count() == 1 {
            self.homes.handle_report(&BTreeMap::new(), now, true, now);
            self.handle_new_home();
        }
        self.netcheck.make_next_full();
        self.check(now);
    }

    fn handle_new_home(&mut self) {
        self.netcheck.set_home(self.home());
        self.changes.home = true;
        self.update_net_info();
    }

    fn update_net_info(&mut self) {
        let report = self.report.net_info(self.home(), self.has_local(true));
        let new = self.port_mapping.add_to(report);
        let before = self.net_info.derp_latency.clone();
        if (NetInfo { derp_latency: before, ..new.clone() }) != self.net_info {
            self.net_info = new;
            self.changes.announce = true;
        }
    }

    /// A relay of a region sent something.
    pub(super) fn handle_relay_frame(&mut self, region: u16, now: Duration) {
        self.homes.handle_received(region, now);
    }

    /// The connection to a region failed or ended. If the home region cannot be connected, another
    /// one becomes home at once.
    pub(super) fn handle_relay_down(&mut self, region: u16, was_up: bool, now: Duration) {
        self.homes.handle_down(region, now);
        if !was_up && self.home() == Some(region) {
            self.choose_another_home(now);
        }
    }

    /// Uses the last report, because a dead relay would delay a check for seconds.
    fn choose_another_home(&mut self, now: Duration) {
        let before = self.home();
        self.homes.handle_report(&self.report.latencies, now, true, now);
        if self.home() != before {
            self.handle_new_home();
            self.netcheck.make_next_full();
            self.check(now);
        }
    }

    pub(super) fn handle_network_change(&mut self, now: Duration) {
        self.seen_by_peers.clear();
        self.nat64.invalidate();
        self.netcheck.make_next_full();
        self.check(now);
    }

    pub(super) fn handle_stun_response(&mut self, datagram: &[u8], at: Duration) {
        self.netcheck.handle_stun_response(datagram, at);
    }

    /// A peer reports the address that this node's datagrams have there.
    pub(super) fn handle_peer_report(&mut self, seen: ReflexiveAddress) {
        self.seen_by_peers.note(seen);
    }

    /// Starts a check of the network.
    pub(super) fn check(&mut self, now: Duration) {
        let (has_v4, has_v6) = (self.has_local(false), self.has_local(true));
        self.nat64.check(has_v4, has_v6, now);
        let v4 = has_v4 || self.nat64.is_active();
        self.netcheck.set_families(Families { v4, v6: has_v6 });
        self.port_mapping.check();
        self.netcheck.start(now);
    }

    /// Whether this machine has an address of a family.
    fn has_local(&self, v6: bool) -> bool {
        self.local.iter().any(|at| at.is_ipv6() == v6)
    }

    pub(super) fn handle_result(&mut self, result: CheckResult, now: Duration) {
        match result {
            CheckResult::Addresses(name, addresses) => {
                self.netcheck.handle_address(&name, addresses);
            }
            CheckResult::Latency(region, latency) => {
                self.netcheck.handle_tcp_latency(region, latency);
            }
            CheckResult::Nat64Prefix(prefix) => self.handle_nat64_prefix(prefix, now),
            CheckResult::Mapped(mapped) => {
                if self.port_mapping.set(mapped) {
                    self.changes.announce = true;
                    self.changes.endpoints = true;
                }
                self.update_net_info();
            }
        }
    }

    /// Sets the prefix. Without an answer the present one remains.
    fn handle_nat64_prefix(&mut self, answer: Option<Option<Prefix>>, now: Duration) {
        let Some(prefix) = answer else {
            self.nat64.invalidate();
            return;
        };
        let prefix = prefix.filter(|_| !self.has_local(false));
        if self.nat64.set(prefix) {
            tracing::info!(there = prefix.is_some(), "NAT64");
            self.netcheck.make_next_full();
            self.netcheck.stop();
            self.check(now);
        }
    }

    fn handle_report(&mut self, report: Report, now: Duration) {
        let (home, before) = (self.home(), self.reflexive());
        self.homes.handle_report(&report.latencies, report.began, true, now);
        self.report = report;
        if self.home() != home {
            self.handle_new_home();
        }
        self.update_net_info();
        self.changes.announce |= self.reflexive() != before;
        self.changes.endpoints = true;
    }

    /// Continues a check of the network. Its datagrams go to the outbox.
    pub(super) fn flush(&mut self, outbox: &mut Outbox, outputs: &mut Vec<Output>, now: Duration) {
        if self.nat64.poll_lookup() {
            outputs.push(Output::LookUpPrefix);
        }
        while let Some(name) = self.netcheck.poll_lookup() {
            outputs.push(Output::LookUp(name));
        }
        while let Some((to, bytes)) = self.netcheck.poll_transmit(now) {
            outbox.push_datagram(Outgoing::new(to, bytes.to_vec()));
        }
        if let Some(report) = self.netcheck.poll_report(now) {
            self.handle_report(report, now);
        }
        while let Some(region) = self.netcheck.poll_tcp_probe() {
            outputs.push(Output::MeasureLatency(region));
        }
    }

    /// The time of the next check, or of the next step of a running one. Without traffic, checks
    /// are not needed.
    pub(super) fn poll_timeout(&self, has_traffic: bool) -> Option<Duration> {
        match self.netcheck.is_running() {
            true => self.netcheck.poll_timeout(),
            false => has_traffic.then(|| self.netcheck.due()),
        }
    }

    pub(super) fn handle_timeout(&mut self, has_traffic: bool, now: Duration) {
        let is_due = has_traffic && self.netcheck.due() <= now;
        if is_due && !self.netcheck.is_running() {
            self.check(now);
        }
    }
}
