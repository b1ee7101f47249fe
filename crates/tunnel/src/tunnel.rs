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

/// A tunnel that is up until the last clone of it is dropped.
///
/// Dropping that waits for the tunnel's threads, some milliseconds at most 100.
#[derive(Clone)]
pub struct Tunnel(Arc<RunningTunnel>);

pub(crate) struct RunningTunnel {
    net: TunnelNet,
    node: Arc<Node>,
    /// `None` where the machine does not tell of its routes.
    routes: Option<RouteWatcher>,
    /// What it has as a node of a tailnet.
    #[cfg(feature = "tailnet")]
    agent: Option<crate::tailnet::Agent>,
}

impl Tunnel {
    /// Starts a tunnel. Nobody has answered yet when it is there: the handshake comes with
    /// the first packet.
    ///
    /// # Errors
    /// An endpoint's name is not to be resolved, the UDP port is not to be had, or the
    /// system gives no thread or socket.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Ok(Self(Arc::new(start(&config.0, RunningTunnel::new).await?)))
    }

    /// Connects to an address. Dropping the future gives it up.
    ///
    /// # Errors
    /// `NetworkUnreachable` where the address is in no peer's allowed IPs, or of a family
    /// of which there is no address here; `ConnectionRefused`; `TimedOut`, after two
    /// minutes; `HostUnreachable`; `NotConnected` once the tunnel has ended.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.0.net.connect(to).await
    }

    /// Connects to a name, or to an address, IPv6 with or without brackets. The addresses
    /// of a name are tried one beside the other (happy eyeballs, RFC 8305).
    ///
    /// # Errors
    /// Those of [`Tunnel::connect`] and [`Tunnel::resolve`].
    pub async fn connect_host(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        self.0.net.connect_host(host, port).await
    }

    /// The addresses of a name, those of IPv6 first. The servers of `DNS` are asked through
    /// the tunnel, never this machine's; an answer is remembered for as long as it is good.
    /// Only families of which there is an address here are asked for.
    ///
    /// # Errors
    /// `NotFound` where there is no such name or no server to ask, `TimedOut` where none
    /// answers.
    pub async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.0.net.addresses(name).await
    }

    /// Listens at an address of ours, or at all of its family where it is unspecified (of
    /// both where it is `[::]`); at a free port where that is 0.
    ///
    /// # Errors
    /// `AddrNotAvailable` where the address is not ours, `AddrInUse`, and `NotConnected`
    /// once the tunnel has ended.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.0.net.stack().listen(at)
    }

    /// Binds a UDP socket, to addresses and ports as with [`Tunnel::listen`]. What it sends
    /// to who is in no peer's allowed IPs is lost.
    ///
    /// # Errors
    /// As with [`Tunnel::listen`].
    pub fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        self.0.net.stack().bind_udp(at)
    }

    /// Sends an ICMP echo request and waits for its answer; how long that took. It waits
    /// for ever: a caller has its own patience.
    ///
    /// # Errors
    /// There is no address of its family here, or the tunnel has ended.
    pub async fn ping(&self, to: IpAddr) -> io::Result<Duration> {
        self.0.net.stack().ping(to).await
    }

    /// The UDP port outside of the tunnel.
    pub fn listen_port(&self) -> u16 {
        self.0.node.state().listen_port
    }

    /// What is known of each peer.
    pub fn peers(&self) -> Vec<PeerState> {
        self.0.node.state().peers
    }

    /// How many TCP connections there are, those that end too.
    pub fn connections(&self) -> usize {
        self.0.net.stack().connections()
    }

    /// Bytes that the buffers of all connections hold.
    pub fn memory_used(&self) -> usize {
        self.0.net.stack().memory_used()
    }

    /// Every counter that is not a peer's, by name: what was dropped, and why.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.node.stats();
        let buffers = [
            ("udp_receive_buffer", stats.socket.receive_buffer),
            ("udp_send_buffer", stats.socket.send_buffer),
        ];
        let dropped = self.0.net.dropped().counters();
        stats.losses().into_iter().chain(dropped).chain(buffers).collect()
    }

    /// Ends the tunnel once the peers have what was written to streams that are dropped by
    /// now. Streams that are still held are reset. All sockets fail afterwards, those of
    /// other clones too; the threads end with the last clone.
    ///
    /// A peer that does not answer is waited for, 100 seconds: who has less patience gives
    /// the future up and drops the tunnel.
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

    /// That of a node of a tailnet.
    #[cfg(feature = "tailnet")]
    pub fn for_tailnet(net: TunnelNet, node: Arc<Node>, agent: crate::tailnet::Agent) -> Self {
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
        // Through the engine, which ends only with the node.
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
        .inspect_err(|error| tracing::debug!(%error, "changed routes will not be heard of"))
        .ok()
}

/// A thread that hears of changed routes and addresses: by which of our addresses the peers are
/// reached is to be found out again then.
struct RouteWatcher {
    waker: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatcher {
    fn start(changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let mut monitor = Monitor::open()?;
        let waker = monitor.waker();
        let watch = move || {
            while let Ok(Some(event)) = monitor.next() {
                if matches!(
                    event,
                    Event::RoutesChanged
                        | Event::RulesChanged
                        | Event::AddressesChanged
                        | Event::Lost
                ) {
                    changed();
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
            // Where it panicked, it has ended, too.
            let _ = thread.join();
        }
    }
}
