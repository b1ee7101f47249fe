//! Relays of a mesh, in this process on loopback. Some clients have the mesh's key, and nodes do
//! not.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use bytes::BytesMut;
use getrandom::{SysRng, rand_core::UnwrapErr};
use hyper::Method;
use serde_json::json;
use server::configuration::Configuration;
use tailnet::{
    derp::{
        Decoder, FromRelay, RelayKey, kind,
        relay_mesh::{MeshKey, read_present},
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

/// Starts a relay that has a mesh with these others.
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
    /// Connects a client with this number, with the mesh's login or a node's.
    async fn connect(at: SocketAddr, number: u8, has_mesh_key: bool) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request =
            "GET /derp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: DERP\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let own = RelayKey::new(Box::new([number; 32].into()));
        let key = NodePublic(own.public());
        let (decoder, buffer) = (Decoder::default(), BytesMut::new());
        let mut client = Self { stream, decoder, buffer, key };
        let Some(FromRelay::ServerKey(server)) = client.next_message().await else {
            panic!("no key")
        };
        let mesh: MeshKey = KEY.parse().unwrap();
        let login = match has_mesh_key {
            true => own.seal_mesh_login(&server, &mesh, &mut UnwrapErr(SysRng)),
            false => seal_login(&[number; 32], &server, &mut UnwrapErr(SysRng)),
        };
        client.send_frame(kind::CLIENT_INFO, &login).await;
        client
    }

    async fn send_frame(&mut self, kind: u8, contents: &[u8]) {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn send_packet(&mut self, to: NodePublic, datagram: &[u8]) {
        let mut out = BytesMut::new();
        write_packet(&mut out, &to, datagram);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The next frame. `None` at the end.
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

    /// The next frame of a kind that every client reads. `None` at the end.
    async fn next_message(&mut self) -> Option<FromRelay> {
        loop {
            let (kind, contents) = self.frame().await?;
            if let Some(message) = FromRelay::read(kind, contents).unwrap() {
                return Some(message);
            }
        }
    }

    /// Sends to another client until it has received a datagram.
    async fn reaches(&mut self, other: &mut Self) {
        let (own, to) = (self.key, other.key);
        let received = async {
            loop {
                match other.next_message().await {
                    Some(FromRelay::Packet { from, bytes }) if from == own => return bytes,
                    Some(_) => {}
                    None => panic!("the relay ended"),
                }
            }
        };
        let send_packet = async {
            loop {
                self.send_packet(to, b"hello").await;
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            bytes = received => assert_eq!(&bytes[..], b"hello"),
            () = send_packet => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_two_relays_reach_each_other_and_see_departures() {
    let (folder, at) = (tempfile::tempdir().unwrap(), [free(), free()]);
    // The lists contain the relay itself as well.
    relay(&folder.path().join("a"), at[0], &at).await;
    relay(&folder.path().join("b"), at[1], &at).await;
    let mut one = Client::connect(at[0], 1, true).await;
    let mut other = Client::connect(at[1], 2, true).await;
    one.reaches(&mut other).await;
    other.reaches(&mut one).await;

    // A watcher receives the connected clients, and may close a connection.
    let mut watcher = Client::connect(at[0], 3, true).await;
    watcher.send_frame(kind::WATCH_CONNS, &[]).await;
    loop {
        let (kind, contents) =
            watcher.frame().await.expect("the relay tells which clients are there");
        if kind == kind::PEER_PRESENT && read_present(&contents) == Some(one.key) {
            break;
        }
    }
    watcher.send_frame(kind::CLOSE_PEER, &one.key.0).await;
    while one.frame().await.is_some() {}
    let gone = one.key;
    loop {
        match other.next_message().await.expect("the relay goes on") {
            FromRelay::PeerGone { peer, .. } if peer == gone => break,
            _ => {}
        }
    }
    loop {
        match watcher.next_message().await.expect("the relay goes on") {
            FromRelay::PeerGone { peer, .. } if peer == gone => break,
            _ => {}
        }
    }
}

/// A network with these nodes. Its relay has a mesh key.
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
async fn a_mesh_relay_refuses_strangers_and_mesh_frames_of_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let world = network(folder.path(), &[1, 2]).await;
    let mut stranger = Client::connect(world.address, 3, false).await;
    assert!(stranger.frame().await.is_none(), "it is not admitted");
    let mut victim = Client::connect(world.address, 2, false).await;
    for (kind, contents) in [(kind::WATCH_CONNS, &[][..]), (kind::CLOSE_PEER, &victim.key.0[..])] {
        let mut node = Client::connect(world.address, 1, false).await;
        node.send_frame(kind, contents).await;
        while let Some((kind, _)) = node.frame().await {
            assert_ne!(kind, kind::PEER_PRESENT, "it received the connected clients");
        }
    }
    let mut node = Client::connect(world.address, 1, false).await;
    node.reaches(&mut victim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_node_is_disconnected_from_the_relay() {
    let folder = tempfile::tempdir().unwrap();
    let world = network(folder.path(), &[1, 2]).await;
    let mut node = Client::connect(world.address, 1, false).await;
    let mut other = Client::connect(world.address, 2, false).await;
    other.reaches(&mut node).await;
    world.command(Method::DELETE, "node/1", json!(null)).await;
    while node.frame().await.is_some() {}
    let mut again = Client::connect(world.address, 1, false).await;
    assert!(again.frame().await.is_none(), "it is not admitted any more");
}
