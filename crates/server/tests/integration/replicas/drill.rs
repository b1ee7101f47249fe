//! A network is backed up in each way that there is, lost, and brought back: its nodes go on without
//! joining anew, and only what was done after the backup is gone.

use std::path::Path;

use postgres_rig::Cluster;

use super::{
    Server,
    client::{Machine, again},
    nodes, reusable,
};

/// What there was when it was backed up.
#[derive(Clone)]
struct Before {
    machines: Vec<Machine>,
    nodes: Vec<(String, String, bool)>,
    /// Files of its audit: of before, and of what is lost.
    audits: [String; 2],
}

/// Two nodes join, it is backed up, and what is done then is lost with the server.
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
    server.says(&["audit", "export", &audits[0]]);
    back_up(&server);
    server.says(&["users", "create", "late"]);
    server.says(&["audit", "export", &audits[1]]);
    server.kill();
    Before { machines, nodes, audits }
}

async fn check(server: &Server, before: Before) {
    let names = |nodes: &[(String, String, bool)]| -> Vec<(String, String)> {
        nodes.iter().map(|(name, address, _)| (name.clone(), address.clone())).collect()
    };
    assert_eq!(names(&nodes(server)), names(&before.nodes));
    let users = server.says(&["users", "list"]);
    assert!(users.contains("anna") && !users.contains("late"), "{users}");
    // Each knows the server by its key, and the other node by what it said.
    for machine in before.machines {
        let mut machine = machine;
        let maps = again!(_ => machine.follow(server.at));
        assert!(maps.began_anew() && maps.first["Peers"].as_array().unwrap().len() == 1);
        machine.move_to(server.at, 4242).await.unwrap();
    }
    server.says(&["users", "create", "bert"]);
    server.says(&["audit", "verify", &before.audits[0]]);
    let late = server.try_says(&["audit", "verify", &before.audits[1]]);
    assert!(!late.status.success(), "an entry that is lost is missed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_in_a_file_comes_back_from_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let copy = folder.join("copy");
    let server = Server::alone(folder, "a");
    let before = lose(server, folder, |server| {
        server.says(&["backup", copy.to_str().unwrap()]);
    });
    let before = before.await;
    check(&Server::restored(folder, "b", None, &copy), before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_of_postgresql_comes_back_from_an_export_and_from_a_dump() {
    let Some(mut cluster) = Cluster::start() else { return };
    let Some(another) = Cluster::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (export, dump) = (folder.join("export"), folder.join("dump"));
    let server = Server::start(folder, "a", &cluster.database("net"), false);
    let before = lose(server, folder, |server| {
        server.says(&["export", export.to_str().unwrap()]);
        cluster.dump("net", &dump);
    });
    let before = before.await;
    cluster.end();
    let url = another.database("exported");
    check(&Server::restored(folder, "b", Some(&url), &export), before.clone()).await;
    let url = another.database("dumped");
    another.restore("dumped", &dump);
    // The key of Noise is a file beside the database.
    check(&Server::start(folder, "c", &url, false), before).await;
}
