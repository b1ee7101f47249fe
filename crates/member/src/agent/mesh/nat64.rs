//! NAT64: IPv4 paths of a machine that has only IPv6. Paths use IPv4 addresses as on other
//! machines. Addresses are translated only between here and the data plane.

use std::{io, net::SocketAddr, time::Duration};

use tailnet::{
    ipc::{Incoming, Path, ToDataPlane},
    nat64::{NAME, Prefix},
};
use tokio::sync::mpsc;

use super::{CheckResult, Mesh};
use crate::agent::line::LineSender;

/// The delays before a silent name server is queried again, in seconds. The next check is half a
/// minute later, and until then peers with only IPv4 have no direct path.
const RETRY_SECONDS: [u64; 4] = [1, 2, 4, 8];

/// The validity of an answer.
const VALID_FOR: Duration = Duration::from_secs(60);

/// The state of NAT64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nat64 {
    prefix: Option<Prefix>,
    /// Whether the data plane has paths with another prefix.
    paths_outdated: bool,
    requested_at: Option<Duration>,
}

impl Nat64 {
    /// Whether IPv4 is reached through NAT64.
    pub fn is_active(&self) -> bool {
        self.prefix.is_some()
    }

    /// Makes the next check query again.
    pub fn invalidate(&mut self) {
        self.requested_at = None;
    }

    /// Sets the prefix. Returns whether it changed.
    pub fn set(&mut self, prefix: Option<Prefix>) -> bool {
        let has_changed = self.prefix != prefix;
        self.paths_outdated |= has_changed;
        self.prefix = prefix;
        has_changed
    }

    /// The address for the data plane.
    pub fn outgoing(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.outward(at))
    }

    /// The address from the data plane.
    pub fn incoming(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.inward(at))
    }

    /// A path for the data plane.
    pub fn outgoing_path(&self, path: Path) -> Path {
        path_with(path, |at| self.outgoing(at))
    }

    /// A path from the data plane.
    pub fn incoming_path(&self, path: Path) -> Path {
        path_with(path, |at| self.incoming(at))
    }

    /// A datagram from the data plane.
    pub fn incoming_datagram(&self, one: Incoming) -> Incoming {
        Incoming { from: self.incoming(one.from), ..one }
    }
}

fn path_with(path: Path, with: impl Fn(SocketAddr) -> SocketAddr) -> Path {
    match path {
        Path::Direct(at) => Path::Direct(with(at)),
        Path::PeerRelay { at, vni } => Path::PeerRelay { at: with(at), vni },
        Path::Auxiliary { at, number } => Path::Auxiliary { at: with(at), number },
        relay @ Path::Relay(_) => relay,
    }
}

impl Mesh {
    /// Whether this machine has an address of a family.
    pub(super) fn has_local(&self, v6: bool) -> bool {
        self.local.iter().any(|at| at.is_ipv6() == v6)
    }

    /// Queries the NAT64 prefix if this machine has only IPv6.
    pub(super) fn check_nat64(&mut self, now: Duration) {
        if self.has_local(false) || !self.has_local(true) {
            self.nat64.invalidate();
            self.nat64.set(None);
        } else if self.nat64.requested_at.is_none_or(|at| now >= at + VALID_FOR) {
            self.nat64.requested_at = Some(now);
            look_up(&self.results);
        }
    }

    /// Sets the prefix. Without an answer the present one remains.
    pub(super) fn handle_nat64_prefix(&mut self, answer: Option<Option<Prefix>>, now: Duration) {
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

    /// Sends all paths again after a change of the prefix.
    pub(super) fn resend_translated_paths(&mut self, plane: &LineSender<ToDataPlane>) {
        if !std::mem::take(&mut self.nat64.paths_outdated) {
            return;
        }
        for peer in self.paths.keys() {
            if let Some(path) = self.paths.view(peer).and_then(|shown| shown.path) {
                plane.send(ToDataPlane::Path { peer, path: self.nat64.outgoing_path(path) });
            }
        }
    }
}

fn look_up(results: &mpsc::Sender<CheckResult>) {
    let results = results.clone();
    tokio::spawn(async move {
        let answer = with_retries(|| async { discover_prefix().await.ok() }).await;
        let _ = results.send(CheckResult::Nat64Prefix(answer)).await;
    });
}

/// The first answer within the limit of attempts.
async fn with_retries<T, F: Future<Output = Option<T>>>(query: impl Fn() -> F) -> Option<T> {
    for wait in RETRY_SECONDS {
        let answer = query().await;
        if answer.is_some() {
            return answer;
        }
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    query().await
}

/// The NAT64 prefix of the network, if there is one.
///
/// # Errors
/// No name server answers.
pub(in crate::agent) async fn discover_prefix() -> io::Result<Option<Prefix>> {
    let addresses = tokio::net::lookup_host((NAME, 0)).await?;
    Ok(Prefix::discover(addresses.map(|at| at.ip())))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// The seconds until an answer that only attempt number `after` gets.
    async fn answered(after: u32) -> Option<u64> {
        let (start, attempts) = (Instant::now(), Cell::new(0));
        let answer = with_retries(|| async {
            attempts.set(attempts.get() + 1);
            (attempts.get() == after).then_some(())
        });
        answer.await.map(|()| start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_name_server_is_queried_again_a_limited_number_of_times() {
        let mut at = Vec::new();
        for after in 1..=6 {
            at.push(answered(after).await);
        }
        assert_eq!(at, [Some(0), Some(1), Some(3), Some(7), Some(15), None]);
    }
}
