//! Checks of the network, and their tasks.

use std::{net::IpAddr, time::Duration};

use tailnet::{
    ipc::Outgoing,
    nat64::Prefix,
    netcheck::{Families, Report},
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::Mesh;
use crate::agent::{commands::RelayCommands, control::dial, derp, portmap::Router};

/// The most look-ups at once: each uses a thread with a stack of 2 MiB.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// The result of a task of a network check.
#[derive(Debug)]
pub(in crate::agent) enum CheckResult {
    /// The addresses of a relay's name.
    Addresses(String, Vec<IpAddr>),
    /// The latency of a region over TCP.
    Latency(u16, Option<Duration>),
    /// The state of the router's port mapping.
    Mapped(Router),
    /// The NAT64 prefix, if there is one. The outer `None` means that no name server answered.
    Nat64Prefix(Option<Option<Prefix>>),
}

impl Mesh {
    /// Starts a check of the network.
    pub(super) fn check(&mut self, now: Duration) {
        self.check_nat64(now);
        let v4 = self.has_local(false) || self.nat64.is_active();
        self.netcheck.set_families(Families { v4, v6: self.has_local(true) });
        self.port_mapping.check();
        self.netcheck.start(now);
    }

    pub fn handle_check_result(&mut self, result: CheckResult, now: Duration) {
        match result {
            CheckResult::Addresses(name, addresses) => {
                self.netcheck.handle_address(&name, addresses)
            }
            CheckResult::Latency(region, latency) => {
                self.netcheck.handle_tcp_latency(region, latency)
            }
            CheckResult::Nat64Prefix(prefix) => self.handle_nat64_prefix(prefix, now),
            CheckResult::Mapped(mapped) => {
                if self.port_mapping.set(mapped) {
                    self.due.announce = true;
                    self.update_paths(now);
                }
                self.update_net_info();
            }
        }
    }

    pub(super) fn handle_report(&mut self, report: Report, now: Duration) {
        let (home, before) = (self.home(), self.reflexive());
        self.homes.handle_report(&report.latencies, report.began, true, now);
        self.report = report;
        if self.home() != home {
            self.handle_new_home(now);
        }
        self.update_net_info();
        self.due.announce |= self.reflexive() != before;
        self.update_paths(now);
    }

    /// Continues a check of the network.
    pub(super) async fn flush_check(&mut self, relays: &RelayCommands, now: Duration) {
        while let Some(name) = self.netcheck.poll_lookup() {
            look_up(&self.results, name);
        }
        while let Some((to, bytes)) = self.netcheck.poll_transmit(now) {
            let bytes = bytes.to_vec();
            self.pending.push(Outgoing::new(to, bytes));
        }
        if let Some(report) = self.netcheck.poll_report(now) {
            self.handle_report(report, now);
        }
        while let Some(region) = self.netcheck.poll_tcp_probe() {
            let (reply, measured) = oneshot::channel();
            relays.send(derp::Command::Measure { region, reply }).await;
            let results = self.results.clone();
            tokio::spawn(async move {
                let latency = measured.await.unwrap_or_default();
                let _ = results.send(CheckResult::Latency(region, latency)).await;
            });
        }
    }
}

/// Resolves the name of a relay.
pub(in crate::agent) fn look_up(results: &mpsc::Sender<CheckResult>, name: String) {
    let results = results.clone();
    tokio::spawn(async move {
        let Ok(_permit) = LOOKUPS.acquire().await else { return };
        let looked_up = dial::look_up(&name, 0).await;
        let addresses = looked_up.into_iter().flatten().map(|at| at.ip()).collect();
        let _ = results.send(CheckResult::Addresses(name, addresses)).await;
    });
}
