//! Sockets through a tunnel in the same process.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use config::{
    Host, Target,
    conf::{Conf, Dns},
    uapi::StackDrops,
};
use ipnet::IpNet;
use netstack::{StackRecv, StackSend, TcpStream};
use sys::{
    Offloads, TunInfo,
    namespace::Plan,
    process::{OpenFiles, open_files},
};
use zeroize::Zeroizing;

use super::{
    capacity::Capacity,
    connections::Connections,
    connections::Group,
    dial::Dialer,
    identity::Identity,
    in_process::InProcessStack,
    local::Listener,
    reach::Reach,
    serve::ProxyContext,
    serve::{ListenerRole, serve_each},
    socks_server,
    stack::Stack,
    users::Users,
};

/// The maximum number of gateway clients that are watched at the same time while their connections
/// are made. Each needs a descriptor.
const WATCHES: usize = 64;
/// The limit of open files if `getrlimit(2)` fails: its default.
const FILES: usize = 1024;

/// Makes connections through a tunnel, with the stack in the process. Clones share the tunnel.
#[derive(Clone)]
pub struct TunnelNet {
    stack: Arc<InProcessStack>,
    dialer: Arc<Dialer<InProcessStack>>,
}

impl TunnelNet {
    /// Opens the stack for this file. Returns it with the IP side for the node. `mtu` is the tunnel's
    /// MTU.
    ///
    /// # Errors
    /// The kernel gives no randomness.
    pub fn open(
        conf: &Conf,
        mtu: u32,
        offloads: &Arc<Offloads>,
    ) -> io::Result<(Self, (StackRecv, StackSend, TunInfo))> {
        let addresses = conf.interface.addresses.clone();
        let plan = Plan { mtu, addresses, ..Plan::default() };
        Self::new(plan, reach(conf), conf.interface.dns.clone(), offloads)
    }

    /// Opens the stack for a node of a tailnet, which sets `identity` while it runs. `is_allowed`
    /// returns whether an address is in the allowed IPs of a peer.
    ///
    /// # Errors
    /// The kernel gives no randomness.
    pub fn for_tailnet(
        identity: Arc<Identity>,
        is_allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
        mtu: u32,
        offloads: &Arc<Offloads>,
    ) -> io::Result<(Self, (StackRecv, StackSend, TunInfo))> {
        let plan = Plan { mtu, ..Plan::default() };
        Self::new(plan, Reach::new(identity, is_allowed), Dns::default(), offloads)
    }

    fn new(
        plan: Plan,
        reach: Reach,
        dns: Dns,
        offloads: &Arc<Offloads>,
    ) -> io::Result<(Self, (StackRecv, StackSend, TunInfo))> {
        let (stack, recv, send) = InProcessStack::open(&plan, offloads)?;
        let stack = Arc::new(stack);
        // With this stack dials need no descriptors except to watch clients: half of these.
        let dialer = Dialer::new(stack.clone(), reach, dns, 2 * WATCHES);
        let dialer = Arc::new(dialer);
        Ok((
            Self { stack, dialer },
            (recv, send, TunInfo { name: plan.name, index: 0, mtu: plan.mtu }),
        ))
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// No peer has the address, the far end refused or did not answer, or the tunnel has ended.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.dialer.connect(&Target { host: Host::Ip(to.ip()), port: to.port() }).await
    }

    /// Connects to a name or an address, IPv6 with or without brackets. A name's addresses
    /// are tried as in RFC 8305. It needs a tokio runtime with time enabled.
    ///
    /// # Errors
    /// As with [`TunnelNet::connect`], or the name cannot be resolved.
    pub async fn connect_host(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let host = Host::parse(host).ok_or(io::ErrorKind::InvalidInput)?;
        self.dialer.connect(&Target { host, port }).await
    }

    /// Resolves a name through the tunnel; IPv6 addresses come first. It needs a tokio runtime
    /// with time enabled.
    ///
    /// # Errors
    /// The name does not exist, no `DNS` server is configured, or no server answers.
    pub async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        match Host::parse(name).ok_or(io::ErrorKind::InvalidInput)? {
            Host::Ip(ip) => Ok(vec![ip]),
            Host::Name(name) => self.dialer.addresses(&name).await,
        }
    }

    /// The numbers of packets that the stack dropped.
    pub fn dropped(&self) -> StackDrops {
        self.stack.dropped()
    }

    pub fn stack(&self) -> &netstack::Stack {
        &self.stack.stack
    }

    /// Serves SOCKS5 to clients of this listener that know the name and password.
    pub async fn serve_socks(
        &self,
        listener: tokio::net::TcpListener,
        name: &str,
        password: Zeroizing<String>,
    ) {
        let mut users = Users::default();
        users.add(name.to_owned(), password);
        let files = open_files().unwrap_or(OpenFiles { limit: FILES, open: 0 });
        let capacity = Capacity::of_half(files);
        let connections = Connections::new(capacity);
        let context = Arc::new(ProxyContext { dialer: self.dialer.clone(), users, connections });
        let all = context.clone();
        let serve = move |stream, client, connection| {
            socks_server::serve(context.clone(), stream, client, connection)
        };
        let role = ListenerRole { name: "socks5".to_owned(), group: Group::BeforeRequest };
        serve_each(all, Listener::Tcp(listener), role, serve).await;
    }
}

/// The tunnel reaches the allowed IPs of the file, because its peers do not change.
fn reach(conf: &Conf) -> Reach {
    let own = conf.interface.addresses.iter().map(IpNet::addr).collect();
    let allowed = conf.peers.iter().flat_map(|peer| &peer.allowed_ips);
    let allowed: Vec<IpNet> = allowed.copied().collect();
    Reach::new(Arc::new(Identity::new(own)), move |ip| allowed.iter().any(|net| net.contains(&ip)))
}
