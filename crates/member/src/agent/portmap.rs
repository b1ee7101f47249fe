//! The port mapping at the router: a task with one UDP socket, connected to the gateway, so that
//! the kernel drops datagrams of other senders; and a task for routers that only support [`upnp`].

mod upnp;

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsFd as _,
    time::Duration,
};

use serde_json::{Value, json};
use sys::{clock, netlink::Netlink};
use tailnet::{
    netcheck::NetInfo,
    portmap::{
        GatewayState, Mapper, Nonce, Target,
        message::{LONGEST, PORT},
    },
};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use self::upnp::Upnp;
use super::{control::dial::SocketHook, mesh::CheckResult};

/// The time for PCP and NAT-PMP before UPnP is tried as well.
const UPNP_DELAY: Duration = Duration::from_millis(500);

/// The input of the task, which checks the gateway at each notification.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// The port to map, if any.
    pub port: Option<u16>,
}

/// The state of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Router {
    /// By PCP and NAT-PMP.
    pub pcp_nat_pmp: GatewayState,
    /// By UPnP, which is tried if they map nothing.
    pub upnp: upnp::State,
}

impl Router {
    /// The protocol, the external address and the expiry of the mapping.
    fn mapping(&self) -> Option<(String, SocketAddrV4, Duration)> {
        let pcp_nat_pmp = self.pcp_nat_pmp.mapping;
        let pcp_nat_pmp = pcp_nat_pmp.map(|it| (it.protocol.to_string(), it.external, it.expires));
        let upnp = self.upnp.mapping;
        pcp_nat_pmp.or(upnp.map(|(external, expires)| ("UPnP".to_owned(), external, expires)))
    }
}

/// The port mapping of a node.
pub(super) struct PortMapping {
    wanted: watch::Sender<Wanted>,
    known: Router,
}

impl PortMapping {
    /// A port mapping by the task that receives `wanted`.
    pub fn new(wanted: watch::Sender<Wanted>) -> Self {
        Self { wanted, known: Router::default() }
    }

    /// Sets the port to map.
    pub fn set_port(&self, port: Option<u16>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(&mut wanted.port, port) != port);
    }

    /// Makes the task check the gateway and the mapping.
    pub fn check(&self) {
        if self.wanted.borrow().port.is_some() {
            self.wanted.send_modify(|_| {});
        }
    }

    /// Sets the state of the router. Returns whether the external address changed.
    pub fn set(&mut self, known: Router) -> bool {
        let before = self.endpoint();
        self.known = known;
        self.endpoint() != before
    }

    /// The external address.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.known.mapping().map(|(_, external, _)| external.into())
    }

    /// Adds the port mapping to the information for the coordinator.
    pub fn add_to(&self, info: NetInfo) -> NetInfo {
        let GatewayState { pcp, nat_pmp, .. } = self.known.pcp_nat_pmp;
        let have_port_map = self.known.mapping().is_some();
        NetInfo { have_port_map, pcp, pmp: nat_pmp, upnp: self.known.upnp.is_supported, ..info }
    }

    /// A line for users.
    pub fn text(&self, now: Duration) -> String {
        let GatewayState { pcp, nat_pmp, .. } = self.known.pcp_nat_pmp;
        match (self.known.mapping(), pcp, nat_pmp, self.known.upnp.is_supported) {
            (Some((protocol, external, expires)), ..) => {
                let left = expires.saturating_sub(now).as_secs();
                format!("{external} by {protocol}, for {left} s")
            }
            (None, Some(false), Some(false), Some(false)) => {
                "none: the router supports neither PCP, NAT-PMP nor UPnP".to_owned()
            }
            (None, Some(_), Some(_), Some(_)) => "none: the router refuses".to_owned(),
            (None, ..) => "none".to_owned(),
        }
    }

    /// JSON for programs; null without a mapping.
    pub fn json(&self, now: Duration) -> Value {
        self.known.mapping().map_or(Value::Null, |(protocol, external, expires)| {
            json!({
                "Protocol": protocol,
                "Address": external.to_string(),
                "LifetimeSeconds": expires.saturating_sub(now).as_secs(),
            })
        })
    }
}

/// Maps the requested port. Releases it when the channel is closed.
pub(super) async fn run(
    nonce: Nonce,
    hook: Option<SocketHook>,
    mut wanted: watch::Receiver<Wanted>,
    results: mpsc::Sender<CheckResult>,
) {
    let mut mapper = Mapper::new(nonce);
    let mut upnp = Upnp::start(hook.clone());
    let mut socket = None;
    let mut published = Router::default();
    let mut buffer = [0; LONGEST];
    // The time after which UPnP is tried if nothing is mapped.
    let mut upnp_after = Duration::ZERO;
    loop {
        mapper.handle_timeout(now());
        send(&mut mapper, socket.as_ref());
        let is_needed = mapper.state().mapping.is_none();
        upnp.set_target(mapper.target().filter(|_| is_needed && now() >= upnp_after));
        let known = Router { pcp_nat_pmp: mapper.state(), upnp: upnp.state() };
        if known != published {
            published = known;
            let _ = results.send(CheckResult::Mapped(published)).await;
        }
        let runs_out = Some(upnp_after).filter(|at| is_needed && *at > now());
        let due = mapper.poll_timeout().into_iter().chain(runs_out).min();
        let wait = due.map_or(Duration::ZERO, |due| due.saturating_sub(now()));
        let wake = Instant::now() + wait;
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    mapper.stop();
                    send(&mut mapper, socket.as_ref());
                    return upnp.end().await;
                }
                let (port, target) = (wanted.borrow_and_update().port, mapper.target());
                follow_gateway(&mut mapper, &mut socket, port, hook.as_ref()).await;
                if mapper.target() == target {
                    upnp.check();
                } else {
                    upnp_after = now() + UPNP_DELAY;
                }
            }
            received = receive(socket.as_ref(), &mut buffer) => {
                if let Ok(len) = received {
                    mapper.handle_datagram(&buffer[..len], now());
                }
            }
            () = upnp.changed() => {}
            () = sleep_until(wake), if due.is_some() => {}
        }
    }
}

fn now() -> Duration {
    clock::boottime()
}

/// Moves to the present gateway. If it is unchanged, checks the mapping.
async fn follow_gateway(
    mapper: &mut Mapper,
    socket: &mut Option<UdpSocket>,
    port: Option<u16>,
    hook: Option<&SocketHook>,
) {
    let opened_socket = match port.filter(|port| *port != 0).zip(gateway()) {
        Some((port, gateway)) => open(gateway, port, hook).await,
        None => None,
    };
    let target = opened_socket.as_ref().map(|(target, _)| *target);
    if target == mapper.target() {
        return mapper.check(now());
    }
    mapper.stop();
    send(mapper, socket.as_ref());
    *socket = None;
    if let Some((target, opened)) = opened_socket {
        mapper.start(target, now());
        *socket = Some(opened);
    }
}

fn gateway() -> Option<Ipv4Addr> {
    let found = Netlink::open().and_then(|netlink| netlink.default_gateway());
    found.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the gateway");
        None
    })
}

/// A socket to a gateway, with its addresses and the port.
async fn open(
    gateway: Ipv4Addr,
    port: u16,
    hook: Option<&SocketHook>,
) -> Option<(Target, UdpSocket)> {
    let opened = async {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        hook.map_or(Ok(()), |hook| hook(socket.as_fd()))?;
        socket.connect((gateway, PORT)).await?;
        std::io::Result::Ok((socket.local_addr()?, socket))
    };
    match opened.await {
        Ok((SocketAddr::V4(own), socket)) => {
            Some((Target { gateway, own: *own.ip(), port }, socket))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, %gateway, "port mapping");
            None
        }
    }
}

/// Errors are ignored, because the mapper repeats its requests.
fn send(mapper: &mut Mapper, socket: Option<&UdpSocket>) {
    while let Some(datagram) = mapper.poll_transmit() {
        if let Some(Err(error)) = socket.map(|socket| socket.try_send(&datagram)) {
            tracing::debug!(%error, "port mapping");
        }
    }
}

/// Receives a datagram; waits forever without a socket. A closed port of the gateway causes an
/// error for each sent datagram.
async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match socket {
        Some(socket) => socket.recv(buffer).await,
        None => std::future::pending().await,
    }
}
