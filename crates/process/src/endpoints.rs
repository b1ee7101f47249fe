//! Resolves the name of an endpoint again if its peer does not answer handshakes.
//!
//! ```text
//!   thread: each 5 s, which peers with a name do not answer? (node) -- due --> resolver, a process
//!             the peer's endpoint, if the name has another address (node) <-- addresses --'
//! ```

use std::{collections::HashMap, net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::Context;
use config::{EndpointName, conf::Conf};
use host::dns;
use node::{Node, Unanswered};
use sys::clock;
use wg::PublicKey;

use crate::{
    lifecycle::LogStyle,
    resolver::{Job, Resolver},
};

/// The interval between checks for peers that do not answer, similar to that between initiations.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The silence of a peer after which its name is resolved. It is longer than after one lost
/// datagram.
const SILENCE: Duration = Duration::from_secs(5);
/// The interval between resolutions for a peer that stays silent.
const AGAIN: Duration = Duration::from_secs(30);

/// The endpoint names of a configuration, and the process that resolves them.
pub(crate) struct Endpoints {
    /// Empty if names are not resolved again.
    names: Vec<(PublicKey, EndpointName)>,
    job: Job,
    resolver: Option<Resolver>,
}

impl Endpoints {
    /// The endpoint names in a configuration. `interface` is true if the process has an interface.
    /// Call it before the name servers of the interface replace those of the host.
    pub(crate) fn new(conf: &Conf, name: &str, interface: bool, sandbox: bool) -> Self {
        let is_wanted = conf.interface.features.reresolve.unwrap_or(true);
        let names: Vec<_> = conf.names().filter(|_| is_wanted).collect();
        let mut job = Job { name: name.to_owned(), sandbox, ..Job::default() };
        if interface && !names.is_empty() {
            let own = conf.interface.dns.servers.iter();
            job.own_servers = own.map(|server| server.address).collect();
            job.servers = dns::other_servers(name, &[]);
        }
        Self { names, job, resolver: None }
    }

    /// Sets the names in a node.
    pub(crate) fn name(&self, node: &Node) {
        node.name_endpoints(self.names.iter().cloned());
    }

    /// Starts the resolver if there are names. Call it before privileges are dropped.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start_resolver(&mut self, log_style: LogStyle) -> anyhow::Result<()> {
        if !self.names.is_empty() {
            self.resolver = Some(Resolver::start(&self.job, log_style).context("resolver")?);
        }
        Ok(())
    }

    /// Starts the thread, if there is a resolver.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn watch(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        let Some(resolver) = self.resolver.take() else { return Ok(()) };
        node.follow_names();
        // A strong reference would prevent the end of the node.
        let node = Arc::downgrade(node);
        thread::Builder::new().name("endpoints".into()).spawn(move || {
            let mut silences = Silences::default();
            loop {
                thread::sleep(CHECK_INTERVAL);
                let Some(node) = node.upgrade() else { return };
                for peer in silences.due(node.unanswered(), clock::boottime()) {
                    resolve(&node, &resolver, &peer);
                }
            }
        })?;
        Ok(())
    }
}

/// Sends the peer's handshakes to another address of its name, if there is one.
fn resolve(node: &Node, resolver: &Resolver, unanswered: &Unanswered) {
    let Unanswered { peer, name, endpoint } = unanswered;
    let found = match resolver.resolve(name, node.fwmark()) {
        Ok(found) => found,
        Err(error) => {
            return tracing::warn!(
                error = format!("{error:#}"),
                "cannot resolve Endpoint = {name} again"
            );
        }
    };
    let Some(next) = next_address(&found, *endpoint) else { return };
    // The lookup may have taken long.
    if node.move_unanswered(unanswered, next) {
        tracing::info!(peer = peer.to_base64(), endpoint = %next, "{name} has a new address");
    }
}

/// The address after the current one, or the first. Returns `None` if the current one is the only
/// one.
fn next_address(found: &[SocketAddr], used: Option<SocketAddr>) -> Option<SocketAddr> {
    let place = used.and_then(|used| found.iter().position(|at| *at == used));
    let next = place.map_or(0, |place| (place + 1) % found.len());
    found.get(next).copied().filter(|next| Some(*next) != used)
}

/// The silence of each peer that does not answer.
#[derive(Default)]
struct Silences(HashMap<PublicKey, Silence>);

struct Silence {
    /// Start of the silence, since boot.
    since: Duration,
    resolved: Option<Duration>,
}

impl Silences {
    /// The silent peers with names that are due to be resolved.
    fn due(&mut self, silent: Vec<Unanswered>, now: Duration) -> Vec<Unanswered> {
        let is_silent = |key: &PublicKey| silent.iter().any(|it| it.peer == *key);
        self.0.retain(|key, _| is_silent(key));
        let is_due = |it: &Unanswered| {
            let silence = self.0.entry(it.peer).or_insert(Silence { since: now, resolved: None });
            let is_due = silence.resolved.is_none_or(|at| now - at >= AGAIN)
                && now - silence.since >= SILENCE;
            if is_due {
                silence.resolved = Some(now);
            }
            is_due
        };
        silent.into_iter().filter(is_due).collect()
    }
}

#[cfg(test)]
mod tests {
    use wg::PrivateKey;

    use super::*;

    fn unanswered(seed: u8) -> Unanswered {
        Unanswered {
            peer: PrivateKey::from_bytes(&[seed; 32]).public_key(),
            name: EndpointName { host: "a.example".into(), port: 1 },
            endpoint: None,
        }
    }

    #[test]
    fn name_is_resolved_after_a_silence_and_then_every_30_seconds() {
        let mut silences = Silences::default();
        let mut due = |second, silent: &[u8]| -> Vec<Unanswered> {
            let silent = silent.iter().map(|seed| unanswered(*seed)).collect();
            silences.due(silent, Duration::from_secs(second))
        };
        let expected = [
            (0, &[1][..], &[][..]),
            (5, &[1, 2], &[1]),
            (10, &[1, 2], &[2]),
            (30, &[1, 2], &[]),
            (35, &[1, 2], &[1]),
            (40, &[2], &[2]),
            // It answered in the meantime.
            (45, &[1, 2], &[]),
            (50, &[1, 2], &[1]),
            (70, &[1, 2], &[2]),
        ];
        for (second, silent, wanted) in expected {
            let wanted: Vec<_> = wanted.iter().map(|seed| unanswered(*seed)).collect();
            assert_eq!(due(second, silent), wanted, "second {second}");
        }
    }

    #[test]
    fn next_address_of_a_name_is_used_if_it_differs() {
        let at = |last: u8| SocketAddr::from(([192, 0, 2, last], 1));
        for (found, used, next) in [
            (vec![], Some(at(1)), None),
            (vec![at(1)], Some(at(1)), None),
            (vec![at(2)], Some(at(1)), Some(at(2))),
            (vec![at(2)], None, Some(at(2))),
            (vec![at(1), at(2), at(3)], Some(at(2)), Some(at(3))),
            (vec![at(1), at(2), at(3)], Some(at(3)), Some(at(1))),
        ] {
            assert_eq!(next_address(&found, used), next, "{found:?} {used:?}");
        }
    }
}
