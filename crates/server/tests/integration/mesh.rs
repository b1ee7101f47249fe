//! Relays of a mesh, in this process on loopback. Some clients know the mesh's key, and nodes do not.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use bytes::BytesMut;
use getrandom::{SysRng, rand_core::UnwrapErr};
use hyper::Method;
use serde_json::json;
use server::configuration::Configuration;
use tailnet::{
    derp::{
        Decoder, FromRelay, RelayKey, kind,
        mesh::{MeshKey, read_present},
        seal_login, write_frame, write_packet,
    },
    keys::NodePublic,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    admin::world::World,
    loopback::{free, start},
};

const KEY: &str = "8f0d6e5b4c3a29180716f5e4d3c2b1a08f0d6e5b4c3a29180716f5e4d3c2b1a0";
const PATIENCE: Duration = Duration::from_secs(20);

/// A relay that has a mesh with these others.
async fn relay(folder: &Path, at: SocketAddr, others: &[SocketAddr]) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("mesh.key"), KEY).unwrap();
    let mut configuration = Configuration {
        server_url: Some(format!("http://{at}").parse().unwrap()),
        listen_plain: vec![at],
        state_dir: folder.to_owned(),
        socket: folder.join("socket"),
        ..Configuration::default()
    };
    configuration.derp.stun_listen = Vec::new();
    configuration.derp.mesh_key_path = Some(folder.join("mesh.key"));
    let url = |other: &SocketAddr| format!("http://{other}").parse().unwrap();
    configuration.derp.mesh_with = others.iter().map(url).collect();
    start(configuration, at).await;
}

struct Client {
    stream: TcpStream,
    decoder: Decoder,
    buffer: BytesMut,
    key: NodePublic,
}

impl Client {
    /// One that says this login, of this number, for the relay's key.
    async fn connect(at: SocketAddr, number: u8, has_mesh_key: bool) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let asks = "GET /derp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: DERP\r\n\r\n";
        stream.write_all(asks.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let own = RelayKey::new(Box::new([number; 32].into()));
        let key = NodePublic(own.public());
        let (decoder, buffer) = (Decoder::default(), BytesMut::new());
        let mut client = Self { stream, decoder, buffer, key };
        let Some(FromRelay::ServerKey(server)) = client.hears().await else { panic!("no key") };
        let mesh: MeshKey = KEY.parse().unwrap();
        let login = match has_mesh_key {
            true => own.seal_mesh_login(&server, &mesh, &mut UnwrapErr(SysRng)),
            false => seal_login(&[number; 32], &server, &mut UnwrapErr(SysRng)),
        };
        client.says(kind::CLIENT_INFO, &login).await;
        client
    }

    async fn says(&mut self, kind: u8, contents: &[u8]) {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn sends(&mut self, to: NodePublic, datagram: &[u8]) {
        let mut out = BytesMut::new();
        write_packet(&mut out, &to, datagram);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The next frame; none at the end.
    async fn frame(&mut self) -> Option<(u8, bytes::Bytes)> {
        loop {
            if let Some(frame) = self.decoder.poll_frame(&mut self.buffer).unwrap() {
                return Some(frame);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
            if !read.expect("the relay says something").is_ok_and(|read| read > 0) {
                return None;
            }
        }
    }

    /// The next of those that every client reads; none at the end.
    async fn hears(&mut self) -> Option<FromRelay> {
        loop {
            let (kind, contents) = self.frame().await?;
            if let Some(said) = FromRelay::read(kind, contents).unwrap() {
                return Some(said);
            }
        }
    }

    /// Sends to another until that has heard it.
    async fn reaches(&mut self, other: &mut Self) {
        let (own, to) = (self.key, other.key);
        let heard = async {
            loop {
                match other.hears().await {
                    Some(FromRelay::Packet { from, bytes }) if from == own => return bytes,
                    Some(_) => {}
                    None => panic!("the relay ended"),
                }
            }
        };
        let sends = async {
            loop {
                self.sends(to, b"hello").await;
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            bytes = heard => assert_eq!(&bytes[..], b"hello"),
            () = sends => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_two_relays_reach_each_other_and_are_told_when_one_is_gone() {
    let (folder, at) = (tempfile::tempdir().unwrap(), [free(), free()]);
    // Each is in its own list, too.
    relay(&folder.path().join("a"), at[0], &at).await;
    relay(&folder.path().join("b"), at[1], &at).await;
    let mut one = Client::connect(at[0], 1, true).await;
    let mut other = Client::connect(at[1], 2, true).await;
    one.reaches(&mut other).await;
    other.reaches(&mut one).await;

    // A watcher is told which clients are there, and may close a connection.
    let mut watcher = Client::connect(at[0], 3, true).await;
    watcher.says(kind::WATCH_CONNS, &[]).await;
    loop {
        let (kind, contents) =
            watcher.frame().await.expect("the relay tells which clients are there");
        if kind == kind::PEER_PRESENT && read_present(&contents) == Some(one.key) {
            break;
        }
    }
    watcher.says(kind::CLOSE_PEER, &one.key.0).await;
    while one.frame().await.is_some() {}
    let gone = one.key;
    loop {
        match other.hears().await.expect("the relay goes on") {
            FromRelay::PeerGone { peer, .. } if peer == gone => break,
            _ => {}
        }
    }
    loop {
        match watcher.hears().await.expect("the relay goes on") {
            FromRelay::PeerGone { peer, .. } if peer == gone => break,
            _ => {}
        }
    }
}

/// A network with these nodes. Its relay has the key of a mesh.
async fn network(folder: &Path, nodes: &[u8]) -> World {
    let file = folder.join("mesh.key");
    fs::write(&file, KEY).unwrap();
    let world = World::with(&format!("[derp]\nmesh_key_path = {file:?}\n")).await;
    world.command(Method::POST, "user", json!({ "name": "anna" })).await;
    let key = json!({ "user": "1", "reusable": true });
    let key = world.command(Method::POST, "preauthkey", key).await;
    for number in nodes {
        let node_key = NodePublic(RelayKey::new(Box::new([*number; 32].into())).public());
        let body = json!({
            "Version": 131, "NodeKey": node_key, "Auth": { "AuthKey": key["key"] },
            "Hostinfo": { "Hostname": format!("host-{number}") },
        });
        assert_eq!(world.register(*number, &body).await["MachineAuthorized"], true);
    }
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_a_mesh_serves_no_stranger_and_its_nodes_are_no_relays() {
    let folder = tempfile::tempdir().unwrap();
    let world = network(folder.path(), &[1, 2]).await;
    let mut stranger = Client::connect(world.address, 3, false).await;
    assert!(stranger.frame().await.is_none(), "the network does not know it");
    let mut victim = Client::connect(world.address, 2, false).await;
    for (kind, contents) in [(kind::WATCH_CONNS, &[][..]), (kind::CLOSE_PEER, &victim.key.0[..])] {
        let mut node = Client::connect(world.address, 1, false).await;
        node.says(kind, contents).await;
        while let Some((kind, _)) = node.frame().await {
            assert_ne!(kind, kind::PEER_PRESENT, "it is told who is there");
        }
    }
    let mut node = Client::connect(world.address, 1, false).await;
    node.reaches(&mut victim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_has_no_relay() {
    let folder = tempfile::tempdir().unwrap();
    let world = network(folder.path(), &[1, 2]).await;
    let mut node = Client::connect(world.address, 1, false).await;
    let mut other = Client::connect(world.address, 2, false).await;
    other.reaches(&mut node).await;
    world.command(Method::DELETE, "node/1", json!(null)).await;
    while node.frame().await.is_some() {}
    let mut again = Client::connect(world.address, 1, false).await;
    assert!(again.frame().await.is_none(), "the network does not know it any more");
}
