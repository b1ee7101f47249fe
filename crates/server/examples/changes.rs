//! Measures changes per second: one server on SQLite, one on PostgreSQL, and three that contend for
//! one PostgreSQL, with the same number of clients. Each change adds one to a number of a node, at
//! any of the servers, so that a lost or repeated change is detected. Enough clients are used that
//! each server has a full batch in its turn: with few clients, the measurement would be of their
//! waiting time.
//!
//! ```text
//! cargo run --release -p linerate-server --example changes -- [CLIENTS] [SECONDS] [NODES]
//! ```

use std::{
    env,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use coordinator::{
    MapRequest, NewKey, RegisterCommand, RegisterRequest, Settings, State, Time,
    object::{NodeId, User},
    secret,
};
use postgres_rig::Cluster;
use serde_json::json;
use server::{
    network::NetworkState,
    store::{DatabaseLocation, Store},
};
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};
use tokio::{task::JoinSet, time::Instant};

/// Parameters of a measurement.
#[derive(Clone, Copy)]
struct Load {
    clients: u64,
    seconds: u64,
    nodes: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1).map(|text| text.parse::<u64>());
    let clients = arguments.next().transpose()?.unwrap_or(3072);
    let seconds = arguments.next().transpose()?.unwrap_or(5);
    let nodes = arguments.next().transpose()?.unwrap_or(64).try_into()?;
    let load = Load { clients, seconds, nodes };
    let folder = tempfile::tempdir()?;
    let file = DatabaseLocation::File(folder.path().join("store.sqlite"));
    println!("{clients} clients, {nodes} nodes");
    report("SQLite, one server", measure(&file, 1, load).await?);
    let Some(cluster) = Cluster::start() else { return Ok(()) };
    let mut rates = Vec::new();
    for (round, servers) in [1, 3, 1, 3].into_iter().enumerate() {
        let database = DatabaseLocation::of_url(&cluster.database(&format!("net{round}")), false)?;
        let rate = measure(&database, servers, load).await?;
        report(&format!("PostgreSQL, {servers} servers"), rate);
        rates.push(rate);
    }
    println!("three against one: {:.2}", (rates[1] + rates[3]) / (rates[0] + rates[2]));
    Ok(())
}

fn report(what: &str, rate: f64) {
    println!("{what}: {rate:.0} changes per second, none lost, none applied twice");
}

async fn measure(
    database: &DatabaseLocation,
    servers: usize,
    Load { clients, seconds, nodes }: Load,
) -> anyhow::Result<f64> {
    let mut networks = Vec::new();
    for _ in 0..servers {
        let store = Store::open(database).await?;
        let (network, writer) = NetworkState::open(store, Settings::default()).await?;
        tokio::spawn(writer);
        networks.push(network);
    }
    networks[0].run(move |state, now| populate(state, nodes, now)).await??;
    for network in &networks {
        while network.read(|state| state.nodes().count()) < usize::from(nodes) {
            network.refresh().await;
        }
    }
    let (acknowledged, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    for client in 0..clients {
        let network = Arc::clone(&networks[usize::try_from(client)? % servers]);
        let acknowledged = Arc::clone(&acknowledged);
        let node = NodeId(1 + client.cast_signed() % i64::from(nodes));
        tasks.spawn(async move {
            while Instant::now() < end {
                network.run(move |state, now| add_one(state, node, now)).await?;
                acknowledged.fetch_add(1, Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let rate = acknowledged.load(Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let mut store = Store::open(database).await?;
    let stored = store.load().await?;
    let state = State::load(Settings::default(), &stored.objects, (0, 0), Time(0))?;
    let total: u64 = state.nodes().map(|view| number(&view.node.endpoints)).sum();
    anyhow::ensure!(
        total == acknowledged.load(Relaxed),
        "{total} changes are stored, and {} were acknowledged",
        acknowledged.load(Relaxed)
    );
    println!("  {:.0} changes a transaction", total as f64 / stored.version as f64);
    Ok(rate)
}

/// Creates nodes with the number 0.
fn populate(state: &mut State, nodes: u16, now: Time) -> anyhow::Result<()> {
    let user = state.create_user(User { name: "anna".into(), ..User::default() }, now)?.id;
    let text = secret::write(&[1; 38]);
    let key = NewKey { user: Some(user), reusable: true, ..NewKey::default() };
    state.create_key(key, &text, now)?;
    for node in 0..nodes {
        let mut key = [7; 32];
        key[..2].copy_from_slice(&node.to_le_bytes());
        let request = json!({
            "Version": 131, "NodeKey": NodePublic(key), "Auth": { "AuthKey": text },
            "Hostinfo": { "OS": "linux", "Hostname": format!("host-{node}") },
        });
        let request = RegisterRequest::read(request.to_string().as_bytes())?;
        let machine = MachinePublic(key);
        let request =
            RegisterCommand { machine, request: &request, number: "0", url: "", from: None };
        state.register(request, now);
        let id = state.find_machine_node(&machine, &NodePublic(key)).context("it has joined")?;
        let request = MapRequest {
            disco_key: DiscoPublic(key),
            endpoints: vec![endpoint(0)],
            ..MapRequest::default()
        };
        state.apply_map_request(id, &request, now);
    }
    Ok(())
}

fn add_one(state: &mut State, node: NodeId, now: Time) {
    let Some(number) = state.node(node).map(|view| number(&view.node.endpoints)) else { return };
    let endpoints = vec![endpoint(number + 1)];
    state.apply_map_request(node, &MapRequest { endpoints, ..MapRequest::default() }, now);
}

/// Encodes a number as an address.
fn endpoint(number: u64) -> SocketAddr {
    SocketAddr::new(std::net::Ipv4Addr::from_bits(number as u32).into(), 1)
}

fn number(endpoints: &[SocketAddr]) -> u64 {
    endpoints.first().map_or(0, |at| match at {
        SocketAddr::V4(at) => at.ip().to_bits().into(),
        SocketAddr::V6(_) => 0,
    })
}
