//! Tracks which nodes are connected to which server. Each server writes them into its own row, which
//! it renews, and reads the rows of the others. A server that does not renew its row is considered
//! gone.
//!
//! Clocks of different servers are not compared. A row expires when this server has seen it
//! unchanged for some time, while it could renew its own.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::Context;
use coordinator::{State, object::NodeId};
use tokio::time::{Instant, sleep};

use super::NetworkState;
use crate::{
    clock::now,
    store::{Lease, Polled, Replicas},
};

/// Interval at which the other rows and the network's version are read.
const TICK: Duration = Duration::from_millis(250);
/// Interval at which the own row is renewed.
const BEAT: Duration = Duration::from_secs(2);
/// Time after which an unchanged row has expired.
const LEASE: Duration = Duration::from_secs(10);
/// Time after which an expired row is deleted. No server waits for it any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Minimum interval between two notifications of other servers.
const WAKES: Duration = Duration::from_millis(100);

/// The last seen state of another server's row.
struct Seen {
    beat: i64,
    /// Version of the nodes that were read from it.
    change: Option<i64>,
    at: Instant,
}

struct Leases {
    replicas: Arc<Replicas>,
    others: HashMap<i64, Seen>,
    beat: i64,
    beaten: Option<Instant>,
    /// Version of the nodes in the own row. `None` if the row may be missing.
    announced: Option<u64>,
    /// The database that answered last.
    origin: Option<i64>,
    is_failing: bool,
}

/// Renews the own row and reads the others while the network exists.
pub(super) async fn renew_leases(replicas: Replicas, network: Weak<NetworkState>) {
    let replicas = Arc::new(replicas);
    let mut leases = Leases {
        replicas: Arc::clone(&replicas),
        others: HashMap::new(),
        beat: 0,
        beaten: None,
        announced: None,
        origin: None,
        is_failing: false,
    };
    let polls = async {
        while let Some(network) = network.upgrade() {
            if let Err(error) = leases.tick(&network).await {
                if !leases.is_failing {
                    tracing::warn!("the connections at other servers are unknown: {error:#}");
                }
                leases.is_failing = true;
            }
            drop(network);
            sleep(TICK).await;
        }
    };
    tokio::join!(polls, wake(&replicas, &network), listen(&replicas, &network));
}

impl Leases {
    async fn tick(&mut self, network: &NetworkState) -> anyhow::Result<()> {
        let connections = network.read(State::connection_changes);
        let has_others = self.announced != Some(connections);
        let is_due = self.beaten.is_none_or(|at| at.elapsed() >= BEAT);
        let lease = (is_due || has_others || self.is_failing).then(|| {
            let text = |state: &State| {
                let nodes: Vec<String> = state.connected_here().map(|id| id.to_string()).collect();
                nodes.join(",")
            };
            let nodes = has_others.then(|| network.read(text));
            let change = connections.cast_signed();
            Lease { id: self.replicas.own(), beat: self.beat + 1, change, nodes }
        });
        let has_beaten = lease.is_some();
        let Polled { version, origin, is_there, leases } = self.replicas.poll(lease).await?;
        let is_other = self.origin.replace(origin).is_some_and(|previous| previous != origin);
        // A database that has lost changes has a lower version.
        if is_other || version != *network.version.borrow() {
            network.behind.notify_one();
        }
        if has_beaten {
            (self.beat, self.beaten) = (self.beat + 1, Some(Instant::now()));
            // A row that another server deleted is written again.
            self.announced = is_there.then_some(connections);
        }
        if std::mem::take(&mut self.is_failing) {
            // No server could renew its row in the meantime.
            self.others.values_mut().for_each(|seen| seen.at = Instant::now());
        }
        self.compare(network, &leases).await
    }

    async fn compare(&mut self, network: &NetworkState, leases: &[Lease]) -> anyhow::Result<()> {
        for lease in leases {
            let new = || Seen { beat: lease.beat, change: None, at: Instant::now() };
            let seen = self.others.entry(lease.id).or_insert_with(new);
            if seen.beat != lease.beat {
                (seen.beat, seen.at) = (lease.beat, Instant::now());
            }
            let age = seen.at.elapsed();
            if age >= LEASE {
                if seen.change.take().is_some() {
                    tracing::warn!("another server is gone: its nodes count as disconnected");
                    lose(network, lease.id, age).await?;
                }
                if age >= FORGOTTEN {
                    self.replicas.end(lease).await?;
                }
            } else if seen.change != Some(lease.change) {
                let nodes = self.replicas.nodes(lease.id).await?.unwrap_or_default();
                let nodes = read(&nodes)?;
                let id = lease.id;
                seen.change = Some(lease.change);
                let taken = network
                    .run(move |state, now| state.set_server_connections(id, nodes.clone(), now));
                taken.await?;
            }
        }
        let is_there = |id: &i64| leases.iter().any(|lease| lease.id == *id);
        for id in self.others.keys().copied().filter(|id| !is_there(id)).collect::<Vec<_>>() {
            self.others.remove(&id);
            lose(network, id, Duration::ZERO).await?;
        }
        Ok(())
    }
}

async fn lose(network: &NetworkState, id: i64, age: Duration) -> anyhow::Result<()> {
    let since = now().before(age);
    network.run(move |state, _| state.expire_server_connections(id, since)).await
}

fn read(nodes: &str) -> anyhow::Result<BTreeSet<NodeId>> {
    let numbers = nodes.split(',').filter(|number| !number.is_empty());
    numbers.map(|number| Ok(NodeId(number.parse().context("an invalid lease")?))).collect()
}

/// Notifies other servers that this server wrote.
async fn wake(replicas: &Replicas, network: &Weak<NetworkState>) {
    while let Some(written) = network.upgrade().map(|network| Arc::clone(&network.written)) {
        written.notified().await;
        // Other servers notice the change by polling.
        let _ = replicas.wake().await;
        sleep(WAKES).await;
    }
}

/// Receives notifications that other servers wrote. Missing one is harmless.
async fn listen(replicas: &Replicas, network: &Weak<NetworkState>) {
    while network.strong_count() > 0 {
        if let Ok(Some(mut listener)) = replicas.listen().await {
            while listener.recv().await.is_ok() {
                let Some(network) = network.upgrade() else { return };
                network.behind.notify_one();
            }
        }
        sleep(BEAT).await;
    }
}
