//! Hosts with a data plane each, and packets to send between them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use engine::{Attachments, Clock, Filter, Inbound, Inbox, Outbound, Shared, SlowPath};
use packet::{Endpoint, UdpRecv, UdpSend};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use sim::{Link, NetRecv, NetSend, Network, Port, PortRecv, PortSend};
use wg::{
    Control, DropReason, Now, PrivateKey, PublicKey, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
};

pub(crate) struct Host<U = NetSend> {
    pub port: Port,
    pub address: SocketAddr,
    pub control: Arc<Mutex<Control<ChaCha20Rng>>>,
    pub key: PublicKey,
    pub filter: Arc<Filter>,
    mtu: Arc<AtomicU32>,
    inbox: Arc<Inbox>,
    outbound: Outbound<PortRecv, U>,
    inbound: Inbound<NetRecv, PortSend>,
    slow_path: SlowPath<ChaCha20Rng, NetSend>,
}

impl<U: UdpSend> Host<U> {
    /// Creates the host at 192.0.2.`number`. Its data is sent by the result of `wrap` on its
    /// socket.
    pub(crate) fn new(network: &Network, number: u8, wrap: impl FnOnce(NetSend) -> U) -> Self {
        Self::with(network, number, wrap, Attachments::default())
    }

    /// Creates a host with optional parts.
    pub(crate) fn with(
        network: &Network,
        number: u8,
        wrap: impl FnOnce(NetSend) -> U,
        attached: Attachments,
    ) -> Self {
        let address = SocketAddr::from(([192, 0, 2, number], 51820));
        let mut rng = ChaCha20Rng::seed_from_u64(number.into());
        let private = PrivateKey::generate(&mut rng);
        let key = private.public_key();
        let mut control = Control::new(rng);
        let change = DeviceChange { private_key: Some(Some(private)), ..DeviceChange::default() };
        control.apply(change).unwrap();
        control.up();
        let device = control.device().clone();
        let control = Arc::new(Mutex::new(control));
        let timeless = network.clone();
        let clock: Clock = Arc::new(move || {
            let now = timeless.now();
            Now { time: Time::from_nanos(now.as_nanos() as u64), wall: now }
        });
        let port = Port::default();
        let (port_recv, port_send) = port.halves();
        let (net_recv, net_send) = network.socket(address);
        let inbox = Arc::new(Inbox::default());
        let mtu = Arc::new(AtomicU32::new(1420));
        let filter = attached.filter.clone();
        let shared = Shared::new(device, clock, net_recv.waker(), attached);
        Self {
            port,
            address,
            control: control.clone(),
            key,
            filter,
            mtu: mtu.clone(),
            inbox: inbox.clone(),
            outbound: Outbound::new(&shared, port_recv, wrap(net_send.clone()), mtu),
            inbound: Inbound::new(&shared, net_recv, port_send, inbox.clone()),
            slow_path: SlowPath::new(&shared, control, inbox, net_send),
        }
    }

    /// Adds a peer with the allowed IPs `net`.
    pub(crate) fn introduce(&self, (key, address): (PublicKey, SocketAddr), net: &str) {
        let net = AllowedIpChange { net: net.parse().unwrap(), remove: false };
        let peer =
            PeerChange { endpoint: Some(address), allowed_ips: vec![net], ..PeerChange::new(key) };
        let change = DeviceChange { peers: vec![peer], ..DeviceChange::default() };
        self.control.lock().unwrap().apply(change).unwrap();
    }

    pub(crate) fn identity(&self) -> (PublicKey, SocketAddr) {
        (self.key, self.address)
    }

    /// Sets the endpoint of the peer with the allowed IP `address`.
    pub(crate) fn set_endpoint(&self, address: &str, endpoint: Endpoint) {
        let mut control = self.control.lock().unwrap();
        let peer = *control.device().route(address.parse().unwrap()).unwrap().public_key();
        control.set_endpoint(&peer, endpoint).unwrap();
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.control.lock().unwrap().device().drops.get(reason)
    }

    /// All counted drops.
    pub(crate) fn all_drops(&self) -> Vec<(DropReason, u64)> {
        let counted = |reason: &DropReason| (*reason, self.drops(*reason));
        DropReason::ALL.iter().map(counted).filter(|(_, count)| *count != 0).collect()
    }

    /// Starts the second threads, as on a machine with many cores.
    pub(crate) fn start_seconds(&mut self) {
        self.outbound.start_second_thread(|| {}).unwrap();
        self.inbound.start_second_thread(|| {}).unwrap();
    }

    pub(crate) fn step(&mut self) {
        self.outbound.step(true).unwrap();
        self.inbound.step(true).unwrap();
        self.inbox.wake();
        self.slow_path.step();
    }

    /// Probes the path MTU of every peer, up to `mtu`, which becomes the interface's MTU.
    pub(crate) fn probe_paths(&self, network: &Network, mtu: u16) {
        self.mtu.store(mtu.into(), Ordering::Relaxed);
        let now = Time::from_nanos(network.now().as_nanos() as u64);
        self.control.lock().unwrap().probe_paths(Some(mtu), now);
    }

    /// The path MTU of the first peer, as far as it is known.
    pub(crate) fn path_mtu(&self) -> Option<u16> {
        self.control.lock().unwrap().peers().next().and_then(|peer| peer.path_mtu)
    }

    /// Bytes of all datagrams to the first peer, without handshakes.
    pub(crate) fn sent_bytes(&self) -> Option<u64> {
        self.control.lock().unwrap().peers().next().map(|peer| peer.tx_bytes)
    }

    pub(crate) fn try_step_outbound(&mut self) -> std::io::Result<()> {
        self.outbound.step(true).map(drop)
    }
}

/// Two hosts that are peers: 10.0.0.1 and fd00::1 are at the first one, 10.0.0.2 and fd00::2 at the
/// second.
pub(crate) fn pair(seed: u64, link: Link) -> (Network, Host, Host) {
    let network = Network::new(seed, link);
    let (a, b) = (Host::new(&network, 1, |net| net), Host::new(&network, 2, |net| net));
    make_peers(&a, &b);
    (network, a, b)
}

/// Makes two hosts peers, with the addresses of [`pair`].
pub(crate) fn make_peers(a: &Host, b: &Host) {
    for net in ["10.0.0.2/32", "fd00::2/128"] {
        a.introduce(b.identity(), net);
    }
    for net in ["10.0.0.1/32", "fd00::1/128"] {
        b.introduce(a.identity(), net);
    }
}

/// Runs the hosts for `duration`, in steps of a millisecond.
pub(crate) fn run<U: UdpSend>(network: &Network, hosts: &mut [&mut Host<U>], duration: Duration) {
    let end = network.now() + duration;
    while network.now() < end {
        for host in hosts.iter_mut() {
            host.step();
        }
        network.pass(Duration::from_millis(1));
    }
}

/// A valid IP packet of an experimental protocol (RFC 3692) with `payload` bytes, which identify it
/// by `number`. The protocol has no ports, so each pair of addresses is one flow.
pub(crate) fn packet(from: &str, to: &str, tos: u8, number: u32, payload: usize) -> Vec<u8> {
    let mut packet = match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + payload.max(4)) as u16;
            let mut header = vec![0x45, tos, 0, 0, 0, 0, 0, 0, 64, 253, 0, 0];
            header[2..4].copy_from_slice(&len.to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = payload.max(4) as u16;
            let mut header = vec![0x60 | tos >> 4, tos << 4, 0, 0, 0, 0, 253, 64];
            header[4..6].copy_from_slice(&len.to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            header
        }
        _ => panic!("both of one family"),
    };
    packet.extend(number.to_be_bytes());
    let fill = payload.saturating_sub(4);
    packet.extend((0..fill).map(|at| (at as u32 ^ number) as u8));
    packet
}

/// Sends `packet` and takes its datagram off the network.
pub(crate) fn capture(network: &Network, host: &mut Host, packet: Vec<u8>) -> Vec<u8> {
    host.port.push(packet);
    host.step();
    network.take_in_flight().pop().expect("there is a session, so the packet is on its way")
}
