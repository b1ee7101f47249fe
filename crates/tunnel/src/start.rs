//! Starts a node from a configuration.

use std::{
    collections::HashMap,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
};

use config::{EndpointName, conf::Conf};
use netstack::{StackRecv, StackSend};
use node::{ApplyError, Attachments, DEFAULT_MTU, IpSide, Node, NodeParts, tunnel_mtu};
use proxy::TunnelNet;
use sys::{BindError, Offloads, TunInfo, UdpReceiver, UdpSocket, netlink::Netlink};
use tokio::sync::oneshot;
use wg::PostQuantum;

/// Why a tunnel did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration does not contain an address.
    NoAddress,
    /// The name of an endpoint cannot be resolved.
    Endpoint(EndpointName, io::Error),
    /// The UDP socket cannot be bound to its port.
    Port(BindError),
    /// The mark of the UDP socket cannot be set, or there are too many peers.
    Refused(ApplyError),
    /// The system provides no socket, thread or randomness.
    System(io::Error),
}

/// Starts a data plane with a stack in the process, and returns the result of `then` with both. Blocking
/// calls run on a separate thread.
pub(crate) async fn start<T: Send + 'static>(
    conf: &Arc<Conf>,
    then: impl FnOnce(TunnelNet, Node) -> T + Send + 'static,
) -> Result<T, StartError> {
    if conf.interface.addresses.is_empty() {
        return Err(StartError::NoAddress);
    }
    for warning in &conf.warnings {
        tracing::warn!("{warning}");
    }
    let endpoints = resolve(conf).await?;
    let conf = conf.clone();
    run_on_thread(move || start_node(&conf, &endpoints).map(|(net, node)| then(net, node)))
        .await
        .unwrap_or_else(|error| Err(StartError::System(error)))
}

/// Runs blocking work on a new thread.
///
/// # Errors
/// The thread could not be started, or it panicked.
pub(crate) async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let working = move || {
        // The receiver may have been dropped.
        let _ = sender.send(work());
    };
    thread::Builder::new().name("tunnel".into()).spawn(working)?;
    receiver.await.map_err(|_| io::Error::other("the thread panicked"))
}

fn start_node(
    conf: &Conf,
    endpoints: &HashMap<EndpointName, SocketAddr>,
) -> Result<(TunnelNet, Node), StartError> {
    let change = conf.change(|name| Ok(endpoints[name]))?;
    let endpoints: Vec<SocketAddr> = endpoints.values().copied().collect();

    let offloads = Arc::new(Offloads::default());
    let fwmark = conf.interface.fwmark.unwrap_or(0);
    let mtu = conf.interface.mtu.map_or_else(|| path_mtu(fwmark, &endpoints), u32::from);
    let opened = TunnelNet::open(conf, mtu, &offloads);
    let (net, ip) = opened.map_err(StartError::System)?;
    let udp = UdpSocket::unbound(&offloads).map_err(StartError::System)?;
    let node = data_plane(&net, ip, udp, offloads, Attachments::default());
    let node = node.map_err(StartError::System)?;
    node.set_post_quantum(conf.interface.features.post_quantum.unwrap_or(PostQuantum::On));
    node.apply(change).map_err(StartError::Refused)?;
    node.link_up().map_err(StartError::Port)?;
    Ok((net, node))
}

/// Starts the data plane with the stack of `net` as its IP side.
///
/// # Errors
/// The system starts no more threads.
pub(crate) fn data_plane(
    net: &TunnelNet,
    (recv, send, info): (StackRecv, StackSend, TunInfo),
    udp: (UdpSocket, UdpReceiver),
    offloads: Arc<Offloads>,
    attached: Attachments,
) -> io::Result<Node> {
    let ip = IpSide { recv, send, info, source: None };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let stack = net.stack().clone();
    let ended = move |error| {
        tracing::error!(%error, "the data plane ended");
        stack.close();
    };
    Node::start(NodeParts { ip, udp, offloads, cores, attached }, ended)
}

/// The MTU of the tunnel: the largest MTU of the paths to the endpoints, less our overhead.
pub(crate) fn path_mtu(fwmark: u32, endpoints: &[SocketAddr]) -> u32 {
    let opened = Netlink::open().map_err(Into::into);
    let mtu = opened.and_then(|netlink| tunnel_mtu(&netlink, endpoints, fwmark));
    mtu.unwrap_or_else(|error| {
        tracing::debug!(%error, "the path MTU is unknown");
        DEFAULT_MTU
    })
}

/// The endpoints' addresses, by their names.
async fn resolve(conf: &Conf) -> Result<HashMap<EndpointName, SocketAddr>, StartError> {
    let mut addresses = HashMap::new();
    for name in conf.peers.iter().filter_map(|peer| peer.endpoint.as_ref()) {
        let resolved = resolve_one(name).await;
        let failed = |error| StartError::Endpoint(name.clone(), error);
        addresses.insert(name.clone(), resolved.map_err(failed)?);
    }
    Ok(addresses)
}

async fn resolve_one(name: &EndpointName) -> io::Result<SocketAddr> {
    if let Ok(ip) = name.host.parse::<IpAddr>() {
        return Ok((ip, name.port).into());
    }
    let mut addresses = tokio::net::lookup_host((name.host.as_str(), name.port)).await?;
    addresses.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the configuration of a tunnel needs an address"),
            Self::Endpoint(name, error) => write!(f, "endpoint {name}: {error}"),
            Self::Port(error) => error.fmt(f),
            Self::Refused(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoAddress => None,
            Self::Endpoint(_, error) | Self::System(error) => Some(error),
            Self::Port(error) => Some(error),
            Self::Refused(error) => Some(error),
        }
    }
}
