use bytes::Bytes;
use std::time::Duration;
use tailnet::{keys::NodePublic, messages::DerpMap};
use tokio::sync::{mpsc, oneshot};
pub struct Settings {
    pub dialer: super::control::dial::Dialer,
}
pub enum Command {
    Map(DerpMap),
    Home(Option<u16>),
    Send { region: u16, to: NodePublic, bytes: Bytes, segment: usize },
    NetworkChanged,
}
pub enum Event {
    Received { region: u16, datagrams: Vec<(NodePublic, Bytes)> },
    Connected { region: u16, latency: Duration },
    Disconnected { region: u16, why: String },
    PeerGone { region: u16, peer: NodePublic, reason: u8 },
    Health { region: u16, text: String },
    Login { region: u16, server: [u8; 32], reply: oneshot::Sender<Bytes> },
}
pub async fn run(
    _settings: Settings,
    mut commands: mpsc::Receiver<Command>,
    _events: mpsc::Sender<Event>,
) {
    while commands.recv().await.is_some() {}
}
