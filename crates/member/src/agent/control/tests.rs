pub(crate) mod coordinator;
mod dialling;
mod hostile;
mod logins;
mod maps;
mod resume;
mod tka;

use std::time::Duration;

use mesh::registration::Login;
use serde_json::{Value, json};
use tailnet::{
    keys::{DiscoPublic, MachineKey, MachinePublic, NodePublic},
    map_messages::MapResponse,
    ts2021::requests::{Announcement, EndpointKind},
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use zeroize::Zeroizing;

use self::coordinator::{Coordinator, MapStream, Network};
use super::{Command, Event, Settings, session::Session};

const KEY: NodePublic = NodePublic([1; 32]);

/// Connects to the coordinator of this network, whatever the URL.
pub(crate) fn connect(
    network: Network,
) -> impl Fn(Settings, mpsc::Receiver<Command>, mpsc::Sender<Event>) {
    move |Settings { url, server_key, machine_key, .. }, commands, events| {
        let settings = Settings { url, server_key, machine_key, dialer: network.clone() };
        tokio::spawn(Session::new(settings, events).run(commands));
    }
}

/// A session with channels for its commands and events.
struct Member {
    commands: mpsc::Sender<Command>,
    events: mpsc::Receiver<Event>,
    running: JoinHandle<()>,
}

impl Member {
    /// A session that expects the coordinator's key.
    async fn new(network: Network) -> Self {
        Self::expecting(coordinator::key(), network).await
    }

    /// A session that accepts only this key; any key if it is zero.
    async fn expecting(server_key: MachinePublic, network: Network) -> Self {
        let (commands, command_receiver) = mpsc::channel(8);
        let (event_sender, events) = mpsc::channel(8);
        let settings = settings(server_key, network);
        let running = tokio::spawn(Session::new(settings, event_sender).run(command_receiver));
        let member = Self { commands, events, running };
        member.command(Command::Update(announced(1))).await;
        member
    }

    async fn command(&self, command: Command) {
        self.commands.send(command).await.expect("the member runs");
    }

    async fn event(&mut self) -> Event {
        let event = timeout(Duration::from_secs(3600), self.events.recv()).await;
        event.expect("something happens").expect("the member runs")
    }

    async fn disconnected(&mut self) -> String {
        match self.event().await {
            Event::Disconnected { why, .. } => why.to_string(),
            event => panic!("{event:?}"),
        }
    }

    async fn map(&mut self) -> MapResponse {
        match self.event().await {
            Event::Map { map, .. } => *map,
            event => panic!("{event:?}"),
        }
    }

    /// Receives the first map of a stream.
    async fn connected(&mut self, coordinator: &mut Coordinator) -> MapStream {
        let stream = coordinator.next_map_stream().await.stream();
        stream.send(&first_map()).await;
        assert!(matches!(self.event().await, Event::Connected { resumed: false }));
        assert_eq!(self.map().await, read(&first_map()));
        stream
    }
}

fn settings(server_key: MachinePublic, dialer: Network) -> Settings<Network> {
    let machine_key = MachineKey::new(Box::new(Zeroizing::new([5; 32])));
    let url = "https://control.example".parse().unwrap();
    Settings { url, server_key, machine_key, dialer }
}

fn announced(port: u16) -> Box<Announcement> {
    Box::new(Announcement {
        hostinfo: json!({ "Hostname": "a" }),
        endpoints: vec![(([192, 0, 2, 1], port).into(), EndpointKind::Local)],
        disco_key: DiscoPublic([2; 32]),
        tka_head: String::new(),
    })
}

fn with_auth_key() -> Login {
    Login { auth_key: Some(Zeroizing::new("secret".into())), ..Login::new(KEY) }
}

fn read(map: &Value) -> MapResponse {
    MapResponse::read(map.to_string().as_bytes()).unwrap()
}

fn first_map() -> Value {
    json!({ "Node": { "ID": 1 }, "Peers": [] })
}

fn registered() -> Value {
    json!({
        "User": { "ID": 7, "DisplayName": "Ann" },
        "Login": { "ID": 7, "LoginName": "ann@example" },
        "MachineAuthorized": true,
    })
}

/// A session that follows a map, its coordinator, and the stream.
async fn joined() -> (Member, Coordinator, MapStream) {
    let mut coordinator = Coordinator::new(coordinator::Behaviour::Good);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    let stream = member.connected(&mut coordinator).await;
    (member, coordinator, stream)
}
