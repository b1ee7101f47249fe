//! Which nodes are connected to which server: each server says so in a row of its own, which it
//! renews, and reads the others'. A server that does not renew its row has lost its streams.
//!
//! No clock is compared with another's: what counts is for how long a row was seen to be the same,
//! while this server could renew its own.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::Context;
use coordinator::{State, object::NodeId};
use tokio::time::{Instant, sleep};

use super::Network;
use crate::{
    clock::now,
    store::{Lease, Polled, Watch},
};

/// How often others' rows, and the network's version, are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How often a row is renewed.
const BEAT: Duration = Duration::from_secs(2);
/// A row that was the same for so long is void.
const LEASE: Duration = Duration::from_secs(10);
/// It is deleted when no server can still wait for it.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Others are woken this often at most.
const WAKES: Duration = Duration::from_millis(100);

/// What others were seen to say.
struct Seen {
    beat: i64,
    /// Of the nodes that were taken from it.
    change: Option<i64>,
    at: Instant,
}

struct Leases {
    watch: Arc<Watch>,
    others: HashMap<i64, Seen>,
    beat: i64,
    beaten: Option<Instant>,
    /// Of the nodes that were said last; none if the row may not be there.
    said: Option<u64>,
    /// Of the database that answered last.
    origin: Option<i64>,
    is_failing: bool,
}

/// Renews the own row and reads the others' for as long as there is a network.
pub async fn keep(watch: Watch, network: Weak<Network>) {
    let watch = Arc::new(watch);
    let mut leases = Leases {
        watch: Arc::clone(&watch),
        others: HashMap::new(),
        beat: 0,
        beaten: None,
        said: None,
        origin: None,
        is_failing: false,
    };
    let polls = async {
        while let Some(network) = network.upgrade() {
            if let Err(error) = leases.tick(&network).await {
                if !leases.is_failing {
                    tracing::warn!("who is connected elsewhere is not known: {error:#}");
                }
                leases.is_failing = true;
            }
            drop(network);
            sleep(TICK).await;
        }
    };
    tokio::join!(polls, wake(&watch, &network), listen(&watch, &network));
}

impl Leases {
    async fn tick(&mut self, network: &Network) -> anyhow::Result<()> {
        let connections = network.read(State::connection_changes);
        let has_others = self.said != Some(connections);
        let is_due = self.beaten.is_none_or(|at| at.elapsed() >= BEAT);
        let lease = (is_due || has_others || self.is_failing).then(|| {
            let text = |state: &State| {
                let nodes: Vec<String> = state.connected_here().map(|id| id.to_string()).collect();
                nodes.join(",")
            };
            let nodes = has_others.then(|| network.read(text));
            let change = connections.cast_signed();
            Lease { id: self.watch.own(), beat: self.beat + 1, change, nodes }
        });
        let has_beaten = lease.is_some();
        let Polled { version, origin, is_there, leases } = self.watch.poll(lease).await?;
        let is_other = self.origin.replace(origin).is_some_and(|former| former != origin);
        // One that has lost something has less.
        if is_other || version != *network.version.borrow() {
            network.behind.notify_one();
        }
        if has_beaten {
            (self.beat, self.beaten) = (self.beat + 1, Some(Instant::now()));
            // One that others have given up is said anew.
            self.said = is_there.then_some(connections);
        }
        if std::mem::take(&mut self.is_failing) {
            // Nobody could renew anything meanwhile.
            self.others.values_mut().for_each(|seen| seen.at = Instant::now());
        }
        self.compare(network, &leases).await
    }

    async fn compare(&mut self, network: &Network, leases: &[Lease]) -> anyhow::Result<()> {
        for lease in leases {
            let new = || Seen { beat: lease.beat, change: None, at: Instant::now() };
            let seen = self.others.entry(lease.id).or_insert_with(new);
            if seen.beat != lease.beat {
                (seen.beat, seen.at) = (lease.beat, Instant::now());
            }
            let age = seen.at.elapsed();
            if age >= LEASE {
                if seen.change.take().is_some() {
                    tracing::warn!("another server is gone: its streams are not counted any more");
                    lose(network, lease.id, age).await?;
                }
                if age >= FORGOTTEN {
                    self.watch.end(lease).await?;
                }
            } else if seen.change != Some(lease.change) {
                let nodes = self.watch.nodes(lease.id).await?.unwrap_or_default();
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

async fn lose(network: &Network, id: i64, age: Duration) -> anyhow::Result<()> {
    let since = now().before(age);
    network.run(move |state, _| state.expire_server_connections(id, since)).await
}

fn read(nodes: &str) -> anyhow::Result<BTreeSet<NodeId>> {
    let numbers = nodes.split(',').filter(|number| !number.is_empty());
    numbers.map(|number| Ok(NodeId(number.parse().context("a lease that is none")?))).collect()
}

/// Tells others that this server wrote.
async fn wake(watch: &Watch, network: &Weak<Network>) {
    while let Some(written) = network.upgrade().map(|network| Arc::clone(&network.written)) {
        written.notified().await;
        // Others find out by themselves.
        let _ = watch.wake().await;
        sleep(WAKES).await;
    }
}

/// Hears that others wrote. It is no loss to miss it.
async fn listen(watch: &Watch, network: &Weak<Network>) {
    while network.strong_count() > 0 {
        if let Ok(Some(mut listener)) = watch.listen().await {
            while listener.recv().await.is_ok() {
                let Some(network) = network.upgrade() else { return };
                network.behind.notify_one();
            }
        }
        sleep(BEAT).await;
    }
}
