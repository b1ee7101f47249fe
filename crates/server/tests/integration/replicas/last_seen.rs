//! The last-seen time of a node after the end of its server.

use anyhow::Context;
use serde_json::Value;

use super::{
    client::{Machine, retry},
    server::Server,
};

/// When the only node was last seen. Without the zone, strings sort like their times.
fn seen(server: &Server) -> Option<String> {
    let nodes: Value = serde_json::from_str(&server.run(&["nodes", "list"])).unwrap();
    Some(nodes[0]["last_seen"].as_str()?.trim_end_matches('Z').to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_seen_survives_the_end_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::alone(folder.path(), "a");
    server.run(&["users", "create", "anna"]);
    let key = server.run(&["preauthkeys", "create", "--user", "anna", "--reusable"]);
    let key: Value = serde_json::from_str(&key).unwrap();
    let mut client = Machine::new(1, server.key());
    client.join(server.at, key["key"].as_str().unwrap()).await.unwrap();
    let maps = client.follow(server.at).await.unwrap();
    let connected = retry!(_ => async { seen(&server).context("it was never seen") });
    server.kill();
    drop(maps);

    let mut server = Server::alone(folder.path(), "a");
    assert_eq!(seen(&server).as_ref(), Some(&connected), "it was killed");
    let maps = client.follow(server.at).await.unwrap();
    server.stop();
    drop(maps);

    let server = Server::alone(folder.path(), "a");
    assert!(seen(&server) > Some(connected), "it was stopped");
}
