//! Floor 3: a running node: an IP side such as a TUN device, a UDP socket, the engine between them,
//! and the control half.
#![forbid(unsafe_code)]

mod endpoint_names;
mod mtu;
mod paths;
mod tap;

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use config::uapi::{Change, DeviceState, LoadStats, OffloadStats, SocketStats, Stats, Sum};
pub use endpoint_names::Unanswered;
pub use engine::Attachments;
use engine::{Clock, ControlSender, CpuTime, Engine, Filter, Load, Parts};
use getrandom::{SysRng, rand_core::UnwrapErr};
pub use mtu::{DEFAULT_MTU, tunnel_mtu};
use packet::{Endpoint, IpRecv, IpSend, Poll};
pub use paths::ProbingStats;
use sys::{
    BindError, Offloads, TunInfo, TunSource, TunUdpPoll, UdpReceiver, UdpSocket, clock,
    errno::{Errno, errno},
    netlink::Netlink,
    offload::Switch,
    process::{self, Helper},
};
pub use tap::{Capture, CaptureEnd, Chunk, Tap, TooManyCaptures};
use wg::{
    ConfigError, Control, Device, DropReason, HandshakeCounts, Now, PostQuantum, PublicKey, Time,
    config::PeerState,
};

/// The kernel's random numbers.
type Rng = UnwrapErr<SysRng>;

/// A node that runs until it is dropped.
pub struct Node {
    info: TunInfo,
    control: Arc<Mutex<Control<Rng>>>,
    device: Arc<Device>,
    udp: UdpSocket,
    socket_settings: Mutex<SocketSettings>,
    mtu: Arc<AtomicU32>,
    /// Whether the MTUs of paths are probed.
    searching: AtomicBool,
    offloads: Arc<Offloads>,
    tap: Arc<Tap>,
    filter: Arc<Filter>,
    control_datagrams: Option<ControlSender>,
    probing: paths::Probing,
    names: endpoint_names::Names,
    engine: Engine,
}

/// The parts of a node.
pub struct NodeParts<R, S> {
    /// A TUN device, or another IP side.
    pub ip: IpSide<R, S>,
    /// The UDP socket and its receiving half.
    pub udp: (UdpSocket, UdpReceiver),
    /// The kernel's offloads that may be used.
    pub offloads: Arc<Offloads>,
    /// The number of cores to use.
    pub cores: usize,
    /// Optional parts. The node sets the observer itself.
    pub attached: Attachments,
}

/// Both halves of an IP side, and its properties.
pub struct IpSide<R, S> {
    pub recv: R,
    pub send: S,
    pub info: TunInfo,
    /// Waits for packets, if the IP side is a TUN device.
    pub source: Option<TunSource>,
}

/// The settings of the UDP socket.
#[derive(Clone, Copy, Debug, Default)]
struct SocketSettings {
    /// The requested port; once bound, the actual port.
    port: u16,
    fwmark: u32,
    up: bool,
}

/// The reason for a refused change.
#[derive(Debug)]
pub enum ApplyError {
    /// The port or the mark of the UDP socket is not available.
    Bind(BindError),
    /// The protocol's configuration refused the change.
    Config(ConfigError),
    /// The offload with this name does not exist.
    NoSuchOffload(String),
}

impl ApplyError {
    /// The error number (`errno.h`) for the UAPI's reply.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Bind(BindError::InUse) => Errno::EADDRINUSE,
            Self::Bind(BindError::Permission) => Errno::EACCES,
            Self::Bind(BindError::Os(error)) => errno(error).unwrap_or(Errno::EIO),
            Self::Config(ConfigError::TooManyPeers) => Errno::ENOSPC,
            Self::NoSuchOffload(_) => Errno::EINVAL,
        };
        errno as i32
    }
}

impl std::fmt::Display for ApplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bind(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::NoSuchOffload(name) => write!(f, "unknown offload: {name}"),
        }
    }
}

impl std::error::Error for ApplyError {}

impl Node {
    /// Starts a node. It is down until [`Node::link_up`]. `ended` is called if the data plane
    /// fails.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(
        parts: NodeParts<impl IpRecv + 'static, impl IpSend>,
        ended: impl Fn(io::Error) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let NodeParts { ip, udp, offloads, cores, attached } = parts;
        let (IpSide { recv: ip_recv, send: ip_send, info, source }, (udp, udp_recv)) = (ip, udp);
        let control = Arc::new(Mutex::new(Control::new(UnwrapErr(SysRng))));
        let device = lock(&control).device().clone();
        let mtu = Arc::new(AtomicU32::new(info.mtu));
        let clock: Clock = Arc::new(now);
        let tap = Arc::new(Tap::new(clock.clone()));
        let attached = Attachments { observer: Some(tap.clone()), ..attached };
        let filter = attached.filter.clone();
        let control_datagrams = attached.control_datagrams.clone();
        let parts = Parts {
            control: control.clone(),
            clock,
            cpu_clock: Arc::new(processor_time),
            ip_recv,
            ip_send,
            poll: source.map(|source| Box::new(TunUdpPoll::new(source, &udp)) as Box<dyn Poll>),
            udp_recv,
            data_send: udp.sender(),
            handshake_send: udp.sender(),
            mtu: mtu.clone(),
            on_thread_start: init_thread,
            cores,
            attached,
        };
        let engine = Engine::start(parts, ended)?;
        let (socket_settings, searching) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self {
            info,
            control,
            device,
            udp,
            socket_settings,
            mtu,
            searching,
            offloads,
            tap,
            filter,
            control_datagrams,
            probing: paths::Probing::default(),
            names: endpoint_names::Names::default(),
            engine,
        })
    }

    /// The interface.
    pub fn info(&self) -> &TunInfo {
        &self.info
    }

    /// The process that retains the privileges of this one, if there is one.
    pub fn helper(&self) -> Option<&Helper> {
        self.udp.helper()
    }

    /// Applies a change: first to the socket, because the kernel may refuse it, then to the device.
    ///
    /// # Errors
    /// The change was refused.
    pub fn apply(&self, change: Change) -> Result<(), ApplyError> {
        self.change_socket(change.fwmark, change.listen_port).map_err(ApplyError::Bind)?;
        self.names.remove(&change);
        let applied = lock(&self.control).apply(change.device);
        self.engine.wake();
        applied.map_err(ApplyError::Config)
    }

    fn change_socket(&self, fwmark: Option<u32>, port: Option<u16>) -> Result<(), BindError> {
        let mut socket_settings = lock(&self.socket_settings);
        if let Some(fwmark) = fwmark {
            self.udp.set_fwmark(fwmark)?;
            socket_settings.fwmark = fwmark;
        }
        if let Some(port) = port {
            socket_settings.port = if socket_settings.up {
                self.udp.bind(port, socket_settings.fwmark)?
            } else {
                port
            };
        }
        Ok(())
    }

    /// Opens the socket. Call it when the interface came up.
    ///
    /// # Errors
    /// The port is not available.
    pub fn link_up(&self) -> Result<(), BindError> {
        let mut socket_settings = lock(&self.socket_settings);
        socket_settings.port = self.udp.bind(socket_settings.port, socket_settings.fwmark)?;
        if !std::mem::replace(&mut socket_settings.up, true)
            && let Some(buffers) = self.udp.buffers()
            && buffers.receive < buffers.wanted
        {
            tracing::warn!(
                granted = buffers.receive,
                wanted = buffers.wanted,
                "the receive buffer is small: bursts will be lost (net.core.rmem_max)"
            );
        }
        lock(&self.control).up();
        self.engine.wake();
        Ok(())
    }

    /// Ends sessions and closes the socket. Call it when the interface went down.
    pub fn link_down(&self) {
        let mut socket_settings = lock(&self.socket_settings);
        if std::mem::replace(&mut socket_settings.up, false) {
            lock(&self.control).down();
            self.udp.close();
        }
    }

    /// Sets the MTU. Call it when that of the interface changed.
    pub fn set_mtu(&self, mtu: u32) {
        if self.mtu.swap(mtu, Ordering::Relaxed) != mtu {
            self.search_paths(self.searching.load(Ordering::Relaxed));
        }
    }

    /// Starts or stops probing the path MTU of each peer that supports it.
    pub fn search_paths(&self, wanted: bool) {
        self.searching.store(wanted, Ordering::Relaxed);
        let mtu = u16::try_from(self.mtu.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
        lock(&self.control).probe_paths(wanted.then_some(mtu), now().time);
        self.engine.wake();
    }

    /// Sets whether to agree on post-quantum secrets with peers. A change ends sessions.
    pub fn set_post_quantum(&self, mode: PostQuantum) {
        lock(&self.control).set_post_quantum(mode);
        self.engine.wake();
    }

    /// Call it when routes or addresses changed. If packets from a peer's source address now leave
    /// by another device than before, the node no longer replies from that address.
    pub fn routes_changed(&self) {
        let sticky: Vec<_> =
            lock(&self.control).peers_with_source().map(|(key, at)| (*key, at)).collect();
        if sticky.is_empty() {
            return;
        }
        let (netlink, fwmark) = (Netlink::open(), lock(&self.socket_settings).fwmark);
        let serves = |endpoint: &Endpoint| {
            let (to, local) = (endpoint.remote.direct()?, endpoint.local?);
            let device = netlink.as_ref().ok()?.device_to(to.ip(), Some(local.addr), fwmark);
            (device.ok()? == Some(local.interface)).then_some(())
        };
        for (key, _) in sticky.iter().filter(|(_, endpoint)| serves(endpoint).is_none()) {
            lock(&self.control).clear_source(key);
        }
    }

    /// The peer with an address in its allowed IPs.
    pub fn peer_of(&self, ip: IpAddr) -> Option<PublicKey> {
        self.device.routes().lookup(ip).map(|peer| *peer.public_key())
    }

    /// The state, as `wg show` prints it.
    pub fn state(&self) -> DeviceState {
        let socket_settings = *lock(&self.socket_settings);
        let control = lock(&self.control);
        DeviceState {
            private_key: control.private_key().cloned(),
            listen_port: socket_settings.port,
            fwmark: socket_settings.fwmark,
            peers: control.peers().collect(),
        }
    }

    /// The offloads by name: whether each is enabled, and how often the kernel refused it.
    pub fn offloads(&self) -> &Offloads {
        &self.offloads
    }

    /// Switches offloads on or off, either all or none of the list; `all` stands for each of them.
    ///
    /// # Errors
    /// [`ApplyError::NoSuchOffload`].
    pub fn switch_offloads(&self, wanted: &[(String, bool)]) -> Result<(), ApplyError> {
        let all = self.offloads.all();
        let is_known = |name: &str| name == "all" || all.iter().any(|(known, _)| *known == name);
        if let Some((unknown, _)) = wanted.iter().find(|(name, _)| !is_known(name)) {
            return Err(ApplyError::NoSuchOffload(unknown.clone()));
        }
        for (name, wanted) in wanted {
            let named = all.iter().filter(|(known, _)| name == "all" || known == name);
            named.for_each(|(_, switch)| switch.set_enabled(*wanted));
        }
        self.engine.wake_receivers();
        Ok(())
    }

    /// Makes each thread of the data plane finish a round, even without work.
    pub fn wake_threads(&self) {
        self.engine.wake();
        self.engine.wake_receivers();
    }

    /// The number of finished rounds of each thread of the data plane, by name.
    pub fn rounds(&self) -> impl Iterator<Item = (&str, u64)> {
        self.engine.rounds()
    }

    /// The mark of outgoing datagrams.
    pub fn fwmark(&self) -> u32 {
        lock(&self.socket_settings).fwmark
    }

    /// All counters that are not part of the state.
    pub fn stats(&self) -> Stats {
        let load = self.load();
        let [outbound, inbound, queued] = [&load.outbound, &load.inbound, &load.queued]
            .map(engine::Histogram::snapshot)
            .map(|counted| Sum { count: counted.count, sum: counted.sum });
        let handshakes = self.handshakes();
        let handshakes = Sum { count: handshakes.answered(), sum: handshakes.micros() };
        let offload = |(name, switch): &(&str, &Switch)| OffloadStats {
            name: (*name).to_owned(),
            wanted: switch.is_enabled(),
            demotions: switch.demotions(),
        };
        let peers = self.state().peers;
        let mtu = |peer: &PeerState| Some((peer.public_key, peer.path_mtu?));
        let agreed = |peer: &PeerState| Some((peer.public_key, peer.post_quantum?.as_secs()));
        Stats {
            drops: DropReason::ALL.iter().map(|&reason| (reason, self.drops(reason))).collect(),
            socket: self.socket(),
            load: LoadStats { outbound, inbound, queued, handshakes },
            offloads: self.offloads.all().iter().map(offload).collect(),
            path_mtus: peers.iter().filter_map(mtu).collect(),
            post_quantum: peers.iter().filter_map(agreed).collect(),
            ..Stats::default()
        }
    }

    /// Histograms of batch sizes and waiting times.
    pub fn load(&self) -> &Load {
        self.engine.load()
    }

    /// Captures packets inside the tunnel.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    /// The filter of packets from peers. It accepts all packets until a policy is set.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Counters of answered handshakes.
    pub fn handshakes(&self) -> &HandshakeCounts {
        &self.device.handshakes
    }

    /// The number of packets dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.device.drops.get(reason)
    }

    /// Counters and buffer sizes of the UDP socket.
    pub fn socket(&self) -> SocketStats {
        let buffers = self.udp.buffers();
        SocketStats {
            overflow: self.udp.overflow(),
            truncated: self.udp.truncated(),
            receive_buffer: buffers.map_or(0, |buffers| buffers.receive as u64),
            send_buffer: buffers.map_or(0, |buffers| buffers.send as u64),
        }
    }
}

/// Runs in each thread of the data plane when it starts. If the kernel refuses a short time slice,
/// the thread uses the default.
fn init_thread() {
    let _ = process::request_short_time_slice();
}

fn now() -> Now {
    Now { time: Time::from_nanos(clock::boottime_nanos()), wall: clock::wall() }
}

fn processor_time() -> CpuTime {
    CpuTime { thread: clock::thread_time(), process: clock::process_time() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
