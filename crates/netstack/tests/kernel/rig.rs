//! Two peers in one network namespace: one with the stack, and one with a TUN device and the
//! kernel's TCP.
//!
//! ```text
//!   Stack 10.99.0.2 - engine - UDP, loopback, UDP - engine - TUN - kernel 10.99.0.1
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, atomic::AtomicU32},
};

use engine::{Attachments, Clock, CpuTime, Engine, Parts};
use netstack::{Config, CongestionControl, Stack};
use nix::sched::{CloneFlags, unshare};
use packet::{IpRecv, IpSend};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use sys::{Offloads, Tun, UdpSocket, clock, netlink::Netlink, process};
use wg::{
    Control, Now, PrivateKey, PublicKey, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
};

const MTU: u16 = 1420;
const PORTS: [u16; 2] = [51_820, 51_821];
/// Addresses of the kernel and of the stack.
pub(crate) const KERNEL: [&str; 2] = ["10.99.0.1", "fd99::1"];
pub(crate) const STACK: [&str; 2] = ["10.99.0.2", "fd99::2"];

pub(crate) struct Rig {
    pub stack: Stack,
    _peers: [Peer; 2],
}

struct Peer {
    _engine: Engine,
    _udp: UdpSocket,
}

impl Rig {
    /// Creates the rig in a new namespace of the calling thread. Returns `None` if that is not
    /// permitted.
    pub(crate) fn new(memory: usize, control: CongestionControl) -> Option<Self> {
        unshare(CloneFlags::CLONE_NEWNET).ok()?;
        let netlink = Netlink::open().unwrap();
        netlink.set_up(1).unwrap();
        let offloads = Arc::new(Offloads::default());
        let (recv, send, info) = Tun::create("kernel", MTU.into(), &offloads).ok()?;
        for net in ["10.99.0.1/24", "fd99::1/64"] {
            netlink.add_address(info.index, net.parse().unwrap()).unwrap();
        }
        netlink.set_up(info.index).unwrap();
        let addresses: Vec<IpAddr> = STACK.iter().map(|text| text.parse().unwrap()).collect();
        let clock: netstack::Clock = Arc::new(clock::boottime);
        let config = Config { addresses, mtu: MTU, memory, control, secret: 0x1234_5678, clock };
        let (stack, stack_recv, stack_send) = Stack::new(config);
        let keys = [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]));
        let kernel = peer((recv, send), &keys, 0, STACK);
        let ours = peer((stack_recv, stack_send), &keys, 1, KERNEL);
        Some(Self { stack, _peers: [kernel, ours] })
    }
}

/// Creates peer number `id`. The other peer has the allowed IPs `nets`.
fn peer(
    (ip_recv, ip_send): (impl IpRecv + 'static, impl IpSend),
    keys: &[PrivateKey; 2],
    id: usize,
    nets: [&str; 2],
) -> Peer {
    let (udp, receiver) = UdpSocket::unbound(&Arc::new(Offloads::default())).unwrap();
    udp.bind(PORTS[id], 0).unwrap();
    let mut control = Control::new(ChaCha20Rng::seed_from_u64(id as u64));
    let other: PublicKey = keys[1 - id].public_key();
    let net =
        |text: &str| AllowedIpChange { net: text.parse::<IpAddr>().unwrap().into(), remove: false };
    let change = PeerChange {
        endpoint: Some(SocketAddr::from(([127, 0, 0, 1], PORTS[1 - id]))),
        allowed_ips: nets.map(net).to_vec(),
        ..PeerChange::new(other)
    };
    let change = DeviceChange {
        private_key: Some(Some(keys[id].clone())),
        peers: vec![change],
        ..DeviceChange::default()
    };
    control.apply(change).unwrap();
    control.up();
    let clock: Clock =
        Arc::new(|| Now { time: Time::from_nanos(clock::boottime_nanos()), wall: clock::wall() });
    let parts = Parts {
        control: Arc::new(Mutex::new(control)),
        clock,
        ip_recv,
        ip_send,
        udp_recv: receiver,
        poll: None,
        data_send: udp.sender(),
        handshake_send: udp.sender(),
        mtu: Arc::new(AtomicU32::new(MTU.into())),
        cpu_clock: Arc::new(CpuTime::default),
        on_thread_start: || _ = process::request_short_time_slice(),
        cores: 2,
        attached: Attachments::default(),
    };
    Peer { _engine: Engine::start(parts, |_| {}).unwrap(), _udp: udp }
}
