//! The task of the port mapping, with one UDP socket, connected to the gateway, so that the kernel
//! drops datagrams of other senders; and a task for routers that only support UPnP.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd as _,
    time::Duration,
};

use mesh::portmap::{
    Mapper, Nonce, Target,
    mapping_messages::{LONGEST, PORT},
};
use sys::{clock::boottime as now, netlink::Netlink};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{Router, Wanted, upnp::Upnp};
use crate::agent::{check_tasks::CheckResult, control::dial::SocketHook};

/// The time for PCP and NAT-PMP before UPnP is tried as well.
const UPNP_DELAY: Duration = Duration::from_millis(500);

/// Maps the requested port. Releases it when the channel is closed.
pub(in crate::agent) async fn run(
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
