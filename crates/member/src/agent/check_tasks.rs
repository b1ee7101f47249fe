//! The tasks of network checks: look-ups of names, and latencies over TCP. Each sends one
//! [`CheckResult`] to the agent.

use std::{net::IpAddr, time::Duration};

use mesh::nat64::Prefix;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{
    control::dial, derp, nat64_lookup::discover_with_retries, portmap::Router, relays::Relays,
};

/// The most look-ups at once: each uses a thread with a stack of 2 MiB.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// The result of a task of a network check.
#[derive(Debug)]
pub(super) enum CheckResult {
    /// The addresses of a relay's name.
    Addresses(String, Vec<IpAddr>),
    /// The latency of a region over TCP.
    Latency(u16, Option<Duration>),
    /// The state of the router's port mapping.
    Mapped(Router),
    /// The NAT64 prefix, if there is one. The outer `None` means that no name server answered.
    Nat64Prefix(Option<Option<Prefix>>),
}

/// Starts tasks that send their results to the agent.
pub(super) struct CheckTasks {
    results: mpsc::Sender<CheckResult>,
}

impl CheckTasks {
    pub(super) fn new(results: mpsc::Sender<CheckResult>) -> Self {
        Self { results }
    }

    /// Resolves the name of a relay.
    pub(super) fn look_up(&self, name: String) {
        let results = self.results.clone();
        tokio::spawn(async move {
            let Ok(_permit) = LOOKUPS.acquire().await else { return };
            let looked_up = dial::look_up(&name, 0).await;
            let addresses = looked_up.into_iter().flatten().map(|at| at.ip()).collect();
            let _ = results.send(CheckResult::Addresses(name, addresses)).await;
        });
    }

    /// Queries the NAT64 prefix.
    pub(super) fn look_up_prefix(&self) {
        let results = self.results.clone();
        tokio::spawn(async move {
            let answer = discover_with_retries().await;
            let _ = results.send(CheckResult::Nat64Prefix(answer)).await;
        });
    }

    /// Measures the latency of a region over TCP.
    pub(super) async fn measure(&self, region: u16, relays: &Relays) {
        let (reply, measured) = oneshot::channel();
        relays.send(derp::Command::Measure { region, reply }).await;
        let results = self.results.clone();
        tokio::spawn(async move {
            let latency = measured.await.unwrap_or_default();
            let _ = results.send(CheckResult::Latency(region, latency)).await;
        });
    }
}
