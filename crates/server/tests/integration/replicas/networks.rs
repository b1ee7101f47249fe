//! Isolation of two networks in one database.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use ::server::store::{Committed, Database, DatabaseLocation, Lease, Store};
use coordinator::object::{Kind, Stored};
use postgres_rig::Cluster;
use serde_json::Value;
use tokio::time::timeout;

use super::server::Server;

/// Number of rounds.
const ROUNDS: u64 = 300;

/// A store with its expected content.
struct Network {
    store: Store,
    version: i64,
    origin: i64,
    objects: BTreeMap<(Kind, i64), Stored>,
    leases: BTreeMap<i64, Lease>,
}

impl Network {
    async fn open(url: &str, number: u32) -> Self {
        let number = NonZeroU32::new(number).unwrap();
        let database = DatabaseLocation::of_url(url, false).unwrap().numbered(number);
        let mut store = Store::open(&database).await.unwrap();
        let tail = store.load().await.unwrap();
        assert_eq!((tail.version, tail.objects.len()), (0, 0), "it is new");
        let (objects, leases) = (BTreeMap::new(), BTreeMap::new());
        Self { store, version: 0, origin: tail.origin, objects, leases }
    }

    /// Writes some objects, with IDs that the other network has as well.
    async fn write(&mut self, dice: &mut u64, letter: &str) {
        let writes = (0..=roll(dice, 4)).map(|_| {
            let kind = Kind::ALL[usize::try_from(roll(dice, 8)).unwrap()];
            let id = i64::try_from(1 + roll(dice, 6)).unwrap();
            let body = (roll(dice, 5) > 0).then(|| format!("{letter} {}", roll(dice, 1000)));
            ((kind, id), Stored { kind, id, body })
        });
        let writes: BTreeMap<_, _> = writes.collect();
        let objects: Vec<Stored> = writes.values().cloned().collect();
        if roll(dice, 2) == 0 {
            let tail = self.store.turn(self.version).await.unwrap();
            assert_eq!((tail.version, tail.objects.len()), (self.version, 0));
        }
        let committed = self.store.commit((self.version, self.origin), &objects).await.unwrap();
        let Committed::At(version) = committed else { panic!("{committed:?}") };
        self.version = version;
        self.objects.extend(writes);
    }

    /// Renews or ends a lease of another server in this network.
    async fn lease(&mut self, dice: &mut u64, letter: &str) {
        let replicas = self.store.replicas().unwrap();
        let id = i64::try_from(1 + roll(dice, 3)).unwrap();
        match (self.leases.get(&id).cloned(), roll(dice, 2)) {
            (Some(lease), 0) => {
                replicas.end(&lease).await.unwrap();
                self.leases.remove(&id);
            }
            (previous, _) => {
                let beat = previous.map_or(1, |lease| lease.beat + 1);
                let nodes = Some(format!("{letter}{beat}"));
                let lease = Lease { id, beat, change: beat, nodes };
                assert!(replicas.poll(Some(lease.clone())).await.unwrap().is_there);
                self.leases.insert(id, lease);
            }
        }
    }

    /// Checks that the store has exactly the expected content.
    async fn check(&mut self, round: u64) {
        let own: Vec<Stored> = self.objects.values().cloned().collect();
        let mut stored = self.store.everything().await.unwrap();
        stored.sort_by_key(|stored| (stored.kind, stored.id));
        assert_eq!(stored, own, "round {round}");
        let tail = self.store.tail(-1).await.unwrap();
        assert_eq!(tail.version, self.version, "round {round}");
        assert!(tail.objects.iter().all(|object| own.contains(object)), "round {round}");
        let replicas = self.store.replicas().unwrap();
        let polled = replicas.poll(None).await.unwrap();
        assert_eq!(polled.version, self.version);
        let wait_for_map: Vec<(i64, i64)> =
            polled.leases.iter().map(|own| (own.id, own.beat)).collect();
        let own: Vec<(i64, i64)> = self.leases.values().map(|own| (own.id, own.beat)).collect();
        assert_eq!(wait_for_map, own, "round {round}");
        for id in 1..=3 {
            let nodes = self.leases.get(&id).and_then(|lease| lease.nodes.clone());
            assert_eq!(replicas.nodes(id).await.unwrap(), nodes, "round {round}");
        }
    }
}

fn roll(dice: &mut u64, bound: u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice % bound
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_networks_in_one_database_are_isolated() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("two");
    let (mut one, mut other) = (Network::open(&url, 1).await, Network::open(&url, 2).await);
    let mut dice = 0x9e37_79b9_7f4a_7c15;
    for round in 0..ROUNDS {
        let (network, letter) =
            if roll(&mut dice, 2) == 0 { (&mut one, "one") } else { (&mut other, "other") };
        match roll(&mut dice, 3) {
            0 => network.lease(&mut dice, letter).await,
            _ => network.write(&mut dice, letter).await,
        }
        network.store.prober().probe().await.unwrap();
        one.check(round).await;
        other.check(round).await;
    }
    // A turn in one network does not block writers of the other one.
    one.store.turn(one.version).await.unwrap();
    let write = timeout(Duration::from_secs(5), other.write(&mut dice, "other"));
    write.await.expect("the other network does not wait");
    one.store.leave().await;

    one.store.claim("first").await.unwrap();
    other.store.claim("second").await.unwrap();
    assert!(one.store.claim("second").await.is_err() && other.store.claim("first").await.is_err());
    let users_from = |network: &Network| {
        let replicas = network.store.replicas().unwrap();
        async move { replicas.listen().await.unwrap().unwrap() }
    };
    let (mut by_one, mut by_other) = (users_from(&one).await, users_from(&other).await);
    other.store.replicas().unwrap().wake().await.unwrap();
    timeout(Duration::from_secs(5), by_other.recv())
        .await
        .expect("its own servers are notified")
        .unwrap();
    let early = timeout(Duration::from_millis(500), by_one.recv()).await;
    assert!(early.is_err(), "the other network's servers were woken");
}

/// Names of a network's users at a server.
fn users(server: &Server, network: &[&str]) -> Vec<String> {
    let output = server.run(&[network, &["users", "list"]].concat());
    let users: Value = serde_json::from_str(&output).unwrap();
    let name = |user: &Value| user["name"].as_str().unwrap().to_owned();
    users.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn two_servers_serve_both_networks_of_a_database() {
    let Some(cluster) = Cluster::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = cluster.database("shared");
    let servers = ["a", "b"].map(|name| Server::with_lab(folder.path(), name, &url));
    let lab = ["--network", "lab"];
    servers[0].run(&["users", "create", "top"]);
    servers[1].run(&[&lab[..], &["users", "create", "lab"]].concat());
    // Changes at one server soon appear at the other.
    let is_known = || users(&servers[1], &[]) == ["top"] && users(&servers[0], &lab) == ["lab"];
    for _ in 0..50 {
        if is_known() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for server in &servers {
        assert_eq!(users(server, &[]), ["top"]);
        assert_eq!(users(server, &lab), ["lab"]);
    }
    let list: Value = serde_json::from_str(&servers[0].run(&["networks", "list"])).unwrap();
    assert_eq!((&list[0]["users"], &list[1]["users"]), (&1.into(), &1.into()), "{list}");
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&Value::Null, &"lab".into()), "{list}");
    // An export of one network contains nothing of the other one, and can start another server.
    let file = folder.path().join("lab.json");
    let name = file.to_str().unwrap();
    servers[0].run(&[&lab[..], &["export", name]].concat());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("create user lab") && !text.contains("create user top"), "{text}");
    let alone = Server::restored(folder.path(), "alone", None, &file);
    assert_eq!(users(&alone, &[]), ["lab"]);
    let wrong = servers[0].try_run(&["--network", "other", "users", "list"]);
    let words = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && words.contains("unknown network \"other\""), "{words}");
}
