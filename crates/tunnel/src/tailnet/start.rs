//! Starts a data plane with an agent from a state folder.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    sync::{Arc, OnceLock, Weak},
    thread,
};

use member::{
    agent::{self, Clients, Folder, Lines, roots::Roots},
    data_plane::{self, KeyFile, PlaneHandle},
};
use node::Node;
use packet::UdpRecv as _;
use proxy::{Identity, TunnelNet};
use sys::{Channel, Offloads, UdpSocket};
use tokio::sync::{mpsc, watch};
use wg::PostQuantum;

use super::{Agent, JoinError};
use crate::{
    StartError, Tunnel,
    start::{data_plane, path_mtu, run_on_thread},
    tunnel::RunningTunnel,
};

/// The agent's folder, in the state folder.
const AGENT: &str = "agent";
/// The maximum number of requests that wait for the agent.
const REQUESTS: usize = 16;

/// Starts a node with the state of this folder. Returns it with a receiver of its addresses.
pub(super) async fn start(
    state: &Path,
) -> Result<(Tunnel, watch::Receiver<Vec<IpAddr>>), JoinError> {
    let state = state.to_owned();
    let started = run_on_thread(move || start_here(&state)).await;
    started.unwrap_or_else(|error| Err(system(error)))
}

fn start_here(state: &Path) -> Result<(Tunnel, watch::Receiver<Vec<IpAddr>>), JoinError> {
    let unusable = |error| JoinError::State(state.to_owned(), error);
    let own = state.join(AGENT);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&own).map_err(unusable)?;
    let keys = KeyFile::open(&state.join("node.key")).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => JoinError::InUse(state.to_owned()),
        _ => unusable(error),
    })?;

    let offloads = Arc::new(Offloads::default());
    let udp = UdpSocket::unbound(&offloads).map_err(system)?;
    let (attached, ends) = data_plane::attach(udp.1.waker());
    let identity = Arc::<Identity>::default();
    let node = Arc::<OnceLock<Weak<Node>>>::default();
    let node_reference = node.clone();
    let is_allowed = move |ip| {
        let node = node_reference.get().and_then(Weak::upgrade);
        node.is_some_and(|node| node.peer_of(ip).is_some())
    };
    let opened = TunnelNet::for_tailnet(identity.clone(), is_allowed, path_mtu(0, &[]), &offloads);
    let (net, ip) = opened.map_err(system)?;
    let running = Arc::new(data_plane(&net, ip, udp, offloads, attached).map_err(system)?);
    let _ = node.set(Arc::downgrade(&running));
    let node = running;
    node.search_paths(true);
    node.set_post_quantum(PostQuantum::On);
    let bound = data_plane::open_socket(&node, state);
    bound.map_err(|error| system(io::Error::other(format!("{error:#}"))))?;

    let (line, agents_end) = Channel::pair().map_err(system)?;
    let (addresses_sender, addresses) = watch::channel(Vec::new());
    let stack = net.stack().clone();
    let on_identity = Box::new(move |identity_update: ipc::Identity| {
        stack.set_addresses(identity_update.addresses.clone());
        identity.set(
            identity_update.addresses.clone(),
            identity_update.names,
            identity_update.search,
        );
        addresses_sender.send_replace(identity_update.addresses);
    });
    let plane_handle = data_plane::start(&node, ends, line, keys, on_identity).map_err(system)?;
    let agent = Agent::start(&own, agents_end, plane_handle).map_err(system)?;
    Ok((Tunnel::from_running(RunningTunnel::for_tailnet(net, node, agent)), addresses))
}

impl Agent {
    /// Starts the thread of the agent.
    fn start(folder: &Path, plane: Channel, plane_handle: PlaneHandle) -> io::Result<Self> {
        let (requests, request_receiver) = mpsc::channel(REQUESTS);
        let options = agent::Options {
            name: "tunnel".to_owned(),
            folder: Folder { path: folder.to_owned(), display: folder.to_owned(), open: None },
            roots: Roots::from_environment(),
            mark: 0,
            address_ranges: Vec::new(),
            has_interface: false,
            has_own_user: false,
        };
        let lines = Lines {
            plane,
            steward: None,
            relay_server: None,
            clients: Clients::Own(request_receiver),
        };
        let run = move || {
            if let Err(error) = agent::run(options, lines) {
                tracing::error!("the tailnet's agent ended: {error:#}");
            }
        };
        let thread = thread::Builder::new().name("tailnet agent".into()).spawn(run)?;
        Ok(Self {
            requests: Some(requests),
            thread: Some(thread),
            plane_handle: Some(plane_handle),
        })
    }
}

fn system(error: io::Error) -> JoinError {
    JoinError::Start(StartError::System(error))
}
