//! Restores a network from each kind of backup: its nodes reconnect without joining again, and only
//! changes after the backup are lost.

use std::path::Path;

use postgres_rig::Cluster;

use super::{
    Server,
    client::{Machine, retry},
    nodes, reusable,
};

/// State at the time of the backup.
#[derive(Clone)]
struct Before {
    machines: Vec<Machine>,
    nodes: Vec<(String, String, bool)>,
    /// Exports of the audit log: before the backup, and with entries that are lost.
    audits: [String; 2],
}

/// Creates a network with two nodes, backs it up, makes further changes, and kills the server.
async fn lose(mut server: Server, folder: &Path, back_up: impl FnOnce(&Server)) -> Before {
    let auth_key = reusable(&server);
    let mut machines: Vec<Machine> =
        (1..=2).map(|number| Machine::new(number, server.key())).collect();
    for machine in &mut machines {
        machine.join(server.at, &auth_key).await.unwrap();
        machine.follow(server.at).await.unwrap();
    }
    let nodes = nodes(&server);
    let audits = ["before", "late"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    server.run(&["audit", "export", &audits[0]]);
    back_up(&server);
    server.run(&["users", "create", "late"]);
    server.run(&["audit", "export", &audits[1]]);
    server.kill();
    Before { machines, nodes, audits }
}

async fn check(server: &Server, before: Before) {
    let names = |nodes: &[(String, String, bool)]| -> Vec<(String, String)> {
        nodes.iter().map(|(name, address, _)| (name.clone(), address.clone())).collect()
    };
    assert_eq!(names(&nodes(server)), names(&before.nodes));
    let users = server.run(&["users", "list"]);
    assert!(users.contains("anna") && !users.contains("late"), "{users}");
    // Each machine recognizes the server by its key, and the other node is unchanged.
    for machine in before.machines {
        let mut machine = machine;
        let maps = retry!(_ => machine.follow(server.at));
        assert!(maps.is_full_map() && maps.first["Peers"].as_array().unwrap().len() == 1);
        machine.move_to(server.at, 4242).await.unwrap();
    }
    server.run(&["users", "create", "bert"]);
    server.run(&["audit", "verify", &before.audits[0]]);
    let late = server.try_run(&["audit", "verify", &before.audits[1]]);
    assert!(!late.status.success(), "a lost entry is detected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_in_a_file_is_restored_from_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let copy = folder.join("copy");
    let server = Server::alone(folder, "a");
    let before = lose(server, folder, |server| {
        server.run(&["backup", copy.to_str().unwrap()]);
    });
    let before = before.await;
    check(&Server::restored(folder, "b", None, &copy), before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_in_postgresql_is_restored_from_an_export_and_a_dump() {
    let Some(mut cluster) = Cluster::start() else { return };
    let Some(another) = Cluster::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (export, dump) = (folder.join("export"), folder.join("dump"));
    let server = Server::start(folder, "a", &cluster.database("net"), false);
    let before = lose(server, folder, |server| {
        server.run(&["export", export.to_str().unwrap()]);
        cluster.dump("net", &dump);
    });
    let before = before.await;
    cluster.end();
    let url = another.database("exported");
    check(&Server::restored(folder, "b", Some(&url), &export), before.clone()).await;
    let url = another.database("dumped");
    another.restore("dumped", &dump);
    // The Noise key is a file in the state folder.
    check(&Server::start(folder, "c", &url, false), before).await;
}
