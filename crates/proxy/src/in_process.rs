//! The stack of the crate `netstack`, which needs neither a TUN device nor a namespace.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use config::uapi::StackDrops;
use getrandom::{SysRng, rand_core::TryRng};
use ipnet::IpNet;
use netstack::{
    Config, CongestionControl, Keepalive, StackRecv, StackSend, TcpListener, TcpStream, UdpSocket,
};
use sys::{Offloads, clock, keepalive::KEEPALIVE, namespace::Plan};

use super::stack::{Accept, Datagrams, Stack};

/// The memory limit of all connections together, in bytes: enough for a dozen connections of 1 Gbit/s
/// with a round-trip time of 66 ms.
const MEMORY: usize = 128 * 1024 * 1024;

/// The stack in this process.
pub struct InProcessStack {
    pub stack: netstack::Stack,
    offloads: Arc<Offloads>,
}

impl InProcessStack {
    /// Returns a stack with the addresses and the MTU of this plan, and its halves for the engine. It
    /// follows the TCP offloads of a TUN device in `offloads`.
    ///
    /// # Errors
    /// The kernel gives no randomness.
    pub fn open(plan: &Plan, offloads: &Arc<Offloads>) -> io::Result<(Self, StackRecv, StackSend)> {
        let mut secret = [0; 16];
        SysRng.try_fill_bytes(&mut secret).map_err(io::Error::other)?;
        let addresses: Vec<IpAddr> = plan.addresses.iter().map(IpNet::addr).collect();
        let (stack, recv, send) = netstack::Stack::new(Config {
            addresses,
            mtu: u16::try_from(plan.mtu).unwrap_or(u16::MAX),
            memory: MEMORY,
            control: CongestionControl::default(),
            secret: u128::from_ne_bytes(secret),
            clock: Arc::new(clock::boottime),
        });
        let stack = Self { stack, offloads: offloads.clone() };
        stack.offloads_changed();
        Ok((stack, recv, send))
    }
}

impl Stack for InProcessStack {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Datagrams = UdpSocket;

    /// A socket on this side.
    const CONNECTION: usize = 1;
    /// The connection that requested it, and a UDP socket on this side.
    const ASSOCIATION: usize = 2;

    fn name(&self) -> &'static str {
        "in-process"
    }

    fn dropped(&self) -> StackDrops {
        let dropped = self.stack.counters();
        StackDrops {
            not_ours: dropped.not_ours,
            malformed: dropped.malformed,
            stray: dropped.stray,
            backlog: dropped.backlog_full,
            datagrams: dropped.datagrams,
            answers: dropped.answers,
            fragments_overlap: dropped.fragments_overlap,
            fragments_late: dropped.fragments_late,
            fragments_full: dropped.fragments_full,
            fragments_checksum: dropped.fragments_checksum,
        }
    }

    fn offloads_changed(&self) {
        let Offloads { tun_tso, tun_tcp_gro, .. } = &*self.offloads;
        self.stack.set_offloads(tun_tso.is_enabled(), tun_tcp_gro.is_enabled());
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.stack.connect(to).await
    }

    async fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        self.stack.listen(at)
    }

    async fn bind(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        self.stack.bind_udp(at)
    }

    async fn ping(&self, to: IpAddr, _payload: &[u8]) -> io::Result<()> {
        self.stack.ping(to).await.map(drop)
    }

    fn enable_keepalive(stream: &TcpStream) {
        let sys::keepalive::Keepalive { idle, interval, probes } = KEEPALIVE;
        // It cannot fail.
        let _ = stream.set_keepalive(Some(Keepalive { idle, interval, probes }));
    }

    fn reset(stream: TcpStream) {
        // It cannot fail.
        let _ = stream.set_zero_linger();
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = Self::accept(self).await?;
        InProcessStack::enable_keepalive(&accepted.0);
        Ok(accepted)
    }
}

impl Datagrams for UdpSocket {
    async fn connect(&self, to: SocketAddr) -> io::Result<()> {
        Self::connect(self, to)
    }

    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        Self::send_to(self, datagram, to).await.map(drop)
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Self::recv_from(self, buffer).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tun_offload_switches_apply_at_start_and_after_a_change() {
        let addresses = vec!["10.0.0.1/24".parse().unwrap()];
        let plan = Plan { name: "wg0".into(), mtu: 1420, addresses, ..Plan::default() };
        let offloads = Arc::new(Offloads::default());
        offloads.tun_tso.set_enabled(false);
        let (stack, _recv, _send) = InProcessStack::open(&plan, &offloads).unwrap();
        assert_eq!(stack.stack.offloads(), (false, true));
        offloads.tun_tso.set_enabled(true);
        offloads.tun_tcp_gro.set_enabled(false);
        stack.offloads_changed();
        assert_eq!(stack.stack.offloads(), (true, false));
    }
}
