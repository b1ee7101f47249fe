mod connections;
mod hostile;
mod relay;
mod trust;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use getrandom::{SysRng, rand_core::UnwrapErr};
use mesh::{http_proxy::Proxies, permitted_addresses::Scope};
use rustls::RootCertStore;
use tailnet::{
    derp::seal_login,
    keys::NodePublic,
    map_messages::{DerpMap, DerpNode, DerpRegion},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use self::relay::Relay;
use super::{Command, Event, Settings, run};
use crate::agent::control::dial::{Dialer, tls};

/// A node with running relay connections and sealed logins.
struct Node {
    private: [u8; 32],
    commands: mpsc::Sender<Command>,
    events: mpsc::Receiver<Event>,
}

impl Node {
    /// A node that trusts the certificate of this relay.
    fn new(private: u8, relay: &Relay) -> Self {
        Self::by(private, relay, Proxies::default())
    }

    fn by(private: u8, relay: &Relay, proxies: Proxies) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(relay.certificate.clone()).unwrap();
        let (commands, command_receiver) = mpsc::channel(64);
        let (event_sender, events) = mpsc::channel(16);
        let dialer = Dialer::new(proxies, tls(roots), None);
        tokio::spawn(run(Settings { dialer }, command_receiver, event_sender));
        Self { private: [private; 32], commands, events }
    }

    fn key(&self) -> NodePublic {
        NodePublic(crypto::x25519::public_key(&self.private))
    }

    async fn command(&self, command: Command) {
        self.commands.send(command).await.unwrap();
    }

    async fn send(&self, region: u16, to: NodePublic, bytes: impl Into<Bytes>, segment: usize) {
        self.command(Command::Send { region, to, bytes: bytes.into(), segment, bundled: false })
            .await;
    }

    /// The next event except logins, which are sealed.
    async fn event(&mut self) -> Event {
        loop {
            let event = timeout(Duration::from_secs(60), self.events.recv()).await;
            match event.expect("something happens").expect("it runs") {
                Event::Login { server, reply, .. } => {
                    let login = seal_login(&self.private, &server, &mut UnwrapErr(SysRng));
                    let _ = reply.send(login.into());
                }
                event => return event,
            }
        }
    }

    async fn connected(&mut self) -> u16 {
        match self.event().await {
            Event::Connected { region, .. } => region,
            event => panic!("{event:?}"),
        }
    }

    async fn disconnected(&mut self) -> String {
        match self.event().await {
            Event::Disconnected { why, .. } => why,
            event => panic!("{event:?}"),
        }
    }

    async fn received(&mut self) -> Vec<(NodePublic, Bytes)> {
        match self.event().await {
            Event::Received { datagrams, .. } => datagrams,
            event => panic!("{event:?}"),
        }
    }
}

/// A region of this relay.
fn node(relay: SocketAddr) -> DerpNode {
    DerpNode {
        name: "a".into(),
        host_name: "relay.example".into(),
        ipv4: relay.ip().to_string(),
        ipv6: "none".into(),
        derp_port: relay.port(),
        ..DerpNode::default()
    }
}

/// Relays of a coordinator on this machine.
fn map(regions: impl IntoIterator<Item = (u16, Vec<DerpNode>)>) -> Command {
    map_of("http://127.0.0.1", regions)
}

/// Relays of the coordinator at this URL.
fn map_of(url: &str, regions: impl IntoIterator<Item = (u16, Vec<DerpNode>)>) -> Command {
    let regions = regions
        .into_iter()
        .map(|(id, nodes)| (id, Some(DerpRegion { region_id: id, nodes, ..<_>::default() })));
    let scope = Scope::of_control(&url.parse().unwrap(), "");
    Command::Map(DerpMap { regions: Some(regions.collect()), ..DerpMap::default() }, scope)
}
