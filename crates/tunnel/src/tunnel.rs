//! A tunnel, and its sockets.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use netstack::{TcpListener, TcpStream, UdpSocket};
use node::Node;
use proxy::TunnelNet;
use sys::netlink::{Event, Monitor};
use wg::config::PeerState;

use crate::{Config, StartError, start::start};

/// A tunnel. It runs until its last clone is dropped.
///
/// Dropping the last clone waits for the tunnel's threads, which takes at most 1 s, and usually a few milliseconds.
#[derive(Clone)]
pub struct Tunnel(Arc<RunningTunnel>);

pub(crate) struct RunningTunnel {
    net: TunnelNet,
    node: Arc<Node>,
    /// `None` if the kernel does not report changes of routes.
    routes: Option<RouteWatcher>,
    /// The agent, if this is a node of a tailnet.
    #[cfg(feature = "tailnet")]
    agent: Option<crate::tailnet::Agent>,
}

impl Tunnel {
    /// Starts a tunnel. It returns before any handshake: the first packet triggers it.
    ///
    /// # Errors
    /// An endpoint's name cannot be resolved, the UDP port is not available, or the system provides no
    /// thread or socket.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Ok(Self(Arc::new(start(&config.0, RunningTunnel::new).await?)))
    }

    /// Connects to an address. Dropping the future cancels it.
    ///
    /// # Errors
    /// `NetworkUnreachable` if the address is outside the allowed IPs of all peers, or the tunnel lacks an
    /// address of its family; `ConnectionRefused`; `TimedOut`, after two minutes; `HostUnreachable`;
    /// `NotConnected` once the tunnel has ended.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.0.net.connect(to).await
    }

    /// Connects to a name, or to an address, IPv6 with or without brackets. The addresses of a name are
    /// tried in parallel (happy eyeballs, RFC 8305).
    ///
    /// # Errors
    /// Those of [`Tunnel::connect`] and [`Tunnel::resolve`].
    pub async fn connect_host(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        self.0.net.connect_host(host, port).await
    }

    /// Resolves a name; IPv6 addresses come first. The servers of `DNS` are queried through the tunnel,
    /// never those of this machine. Answers are cached while they are valid. Only families of the
    /// tunnel's own addresses are queried.
    ///
    /// # Errors
    /// `NotFound` if the name does not exist or no server is configured, `TimedOut` if no server
    /// answers.
    pub async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.0.net.addresses(name).await
    }

    /// Listens on an address of this tunnel. An unspecified address means all addresses of its family
    /// (`[::]`: of both families), and port 0 a free port.
    ///
    /// # Errors
    /// `AddrNotAvailable` if the tunnel does not have the address, `AddrInUse`, and `NotConnected` once
    /// the tunnel has ended.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.0.net.stack().listen(at)
    }

    /// Binds a UDP socket, with addresses and ports as for [`Tunnel::listen`]. Datagrams to addresses
    /// outside the allowed IPs of all peers are lost.
    ///
    /// # Errors
    /// As for [`Tunnel::listen`].
    pub fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        self.0.net.stack().bind_udp(at)
    }

    /// Sends an ICMP echo request, waits for its answer and returns the round-trip time. The caller must
    /// set a time limit.
    ///
    /// # Errors
    /// The tunnel lacks an address of this family, or has ended.
    pub async fn ping(&self, to: IpAddr) -> io::Result<Duration> {
        self.0.net.stack().ping(to).await
    }

    /// The UDP port outside the tunnel.
    pub fn listen_port(&self) -> u16 {
        self.0.node.state().listen_port
    }

    /// The state of each peer.
    pub fn peers(&self) -> Vec<PeerState> {
        self.0.node.state().peers
    }

    /// The number of TCP connections, including those that are closing.
    pub fn connections(&self) -> usize {
        self.0.net.stack().connections()
    }

    /// Bytes that the buffers of all connections hold.
    pub fn memory_used(&self) -> usize {
        self.0.net.stack().memory_used()
    }

    /// All counters that do not belong to a peer, by name: dropped packets by reason, and the sizes of
    /// the UDP buffers.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.node.stats();
        let buffers = [
            ("udp_receive_buffer", stats.socket.receive_buffer),
            ("udp_send_buffer", stats.socket.send_buffer),
        ];
        let dropped = self.0.net.dropped().counters();
        stats.losses().into_iter().chain(dropped).chain(buffers).collect()
    }

    /// Ends the tunnel once the peers have acknowledged the bytes of streams that were already dropped.
    /// Other streams are reset. Afterwards all sockets fail, also those of other clones. The threads end
    /// with the last clone.
    ///
    /// It waits up to 100 seconds for a peer that does not answer. To wait less, drop the future and the
    /// tunnel.
    pub async fn close(self) {
        let stack = self.0.net.stack();
        stack.drained().await;
        stack.close();
    }

    #[cfg(feature = "tailnet")]
    pub(crate) fn from_running(running: RunningTunnel) -> Self {
        Self(Arc::new(running))
    }

    #[cfg(feature = "tailnet")]
    pub(crate) fn agent(&self) -> Option<&crate::tailnet::Agent> {
        self.0.agent.as_ref()
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn net(&self) -> &TunnelNet {
        &self.0.net
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("listen_port", &self.listen_port()).finish_non_exhaustive()
    }
}

impl RunningTunnel {
    fn new(net: TunnelNet, node: Node) -> Self {
        let node = Arc::new(node);
        let routed = node.clone();
        let routes = watch_routes(move || routed.routes_changed());
        Self {
            net,
            node,
            routes,
            #[cfg(feature = "tailnet")]
            agent: None,
        }
    }

    /// The tunnel of a node of a tailnet.
    #[cfg(feature = "tailnet")]
    pub(crate) fn for_tailnet(
        net: TunnelNet,
        node: Arc<Node>,
        agent: crate::tailnet::Agent,
    ) -> Self {
        let (routed, notify_agent) = (node.clone(), agent.network_changes());
        let routes = watch_routes(move || {
            routed.routes_changed();
            notify_agent();
        });
        Self { net, node, routes, agent: Some(agent) }
    }
}

impl Drop for RunningTunnel {
    fn drop(&mut self) {
        // Sends resets through the engine, which ends only with the node.
        self.net.stack().close();
        self.routes = None;
        #[cfg(feature = "tailnet")]
        if let Some(agent) = &mut self.agent {
            agent.stop();
        }
    }
}

fn watch_routes(changed: impl Fn() + Send + 'static) -> Option<RouteWatcher> {
    RouteWatcher::start(changed)
        .inspect_err(|error| tracing::debug!(%error, "changes of routes are not reported"))
        .ok()
}

/// A thread that waits for changed routes and addresses. After a change, the source addresses of the
/// paths to the peers must be determined again.
struct RouteWatcher {
    waker: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatcher {
    fn start(changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let mut monitor = Monitor::open()?;
        let waker = monitor.waker();
        let watch = move || {
            loop {
                match monitor.next() {
                    Ok(Some(
                        Event::RoutesChanged
                        | Event::RulesChanged
                        | Event::AddressesChanged
                        | Event::Lost,
                    )) => changed(),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "changes of routes are not reported any more");
                        break;
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("netlink".into()).spawn(watch)?;
        Ok(Self { waker: Box::new(move || waker()), thread: Some(thread) })
    }
}

impl Drop for RouteWatcher {
    fn drop(&mut self) {
        (self.waker)();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has ended, too.
            let _ = thread.join();
        }
    }
}
