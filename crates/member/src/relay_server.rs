//! The process of a peer relay: a data plane without WireGuard keys.
//!
//! ```text
//!   UDP ──► Forwarder ── data of bound clients ──► UDP       a thread; data is not decrypted
//!               |  `─── binds ── Server ─ answer ─► UDP
//!               `────── STUN ──► line ──► agent
//!   agent ── Allocate ──► Service ──► Server                 a thread
//!         ── STUN ──────► Service ──► UDP
//! ```
//!
//! The agent decides about requests for endpoints and announces their addresses. If it ends, no
//! packet is lost: endpoints remain, and the next agent allocates more.

mod forwarder;

use std::{
    io,
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context;
use getrandom::{SysRng, rand_core::UnwrapErr};
use ipc::{
    self, Outgoing, PART, Reader,
    relay_process::{FromRelayServer, ToRelayServer},
};
use mesh::peer_relay::Server;
use packet::{ControlSend as _, Endpoint, Local};
use sys::{Channel, Offloads, UdpReceiver, UdpSocket, clock, poll::readable};
use tailnet::keys::DiscoKey;
use zeroize::Zeroizing;

use self::forwarder::Forwarder;

/// A bound socket, before its clients are served.
pub struct Bound {
    socket: UdpSocket,
    receiver: UdpReceiver,
    port: u16,
}

impl Bound {
    /// Binds a UDP port of all addresses, 0 for any, and sets a mark. It needs the privileges for
    /// the port, the mark and large buffers.
    ///
    /// # Errors
    /// The port is in use, or the kernel refuses.
    pub fn new(port: u16, mark: u32) -> anyhow::Result<Self> {
        let offloads = Arc::<Offloads>::default();
        let (socket, receiver) = UdpSocket::unbound(&offloads).context("socket")?;
        let port = socket.bind(port, mark).with_context(|| format!("UDP port {port}"))?;
        Ok(Self { socket, receiver, port })
    }

    /// Relays for clients that the agent on `line` permits, until `steward` is gone.
    ///
    /// # Errors
    /// The socket failed permanently, or the system starts no threads.
    pub fn serve(self, line: Channel, steward: &Channel) -> anyhow::Result<()> {
        line.set_nonblocking().context("line")?;
        let line = Arc::new(line);
        let mut key = Box::new(Zeroizing::new([0; 32]));
        getrandom::fill(&mut key[..]).context("randomness")?;
        let server = Server::new(DiscoKey::new(key), Box::new(UnwrapErr(SysRng)), now());
        let table = Arc::new(Mutex::new(server));
        let mut forwarder =
            Forwarder::new(table.clone(), self.receiver, self.socket.sender(), line.clone());
        let forwarding = move || -> io::Result<()> {
            loop {
                forwarder.step(now)?;
            }
        };
        let forwarding =
            thread::Builder::new().name("relay".into()).spawn(forwarding).context("threads")?;
        let service = Service { table, socket: self.socket, port: self.port, line };
        service.send_ready();
        service.run(steward, || forwarding.is_finished())
    }
}

/// Reports to the agent that relaying is not possible.
pub fn report_failure(line: &Channel, error: &anyhow::Error) {
    // An agent that does not read gets the error from the next process.
    let _ = ipc::write(&FromRelayServer::Failed(format!("{error:#}")), |part| line.send(part));
}

/// Carries out the agent's messages.
struct Service {
    table: Arc<Mutex<Server>>,
    socket: UdpSocket,
    port: u16,
    line: Arc<Channel>,
}

impl Service {
    fn run(&self, steward: &Channel, forwarder_ended: impl Fn() -> bool) -> anyhow::Result<()> {
        let (mut buffer, mut reader) = (vec![0; PART], Reader::default());
        loop {
            let due = lock(&self.table).poll_timeout().map(|due| due.saturating_sub(now()));
            let [has_message, ended] = readable([self.line.as_fd(), steward.as_fd()], due)?;
            if ended {
                return Ok(());
            }
            anyhow::ensure!(!forwarder_ended(), "the socket failed");
            lock(&self.table).handle_timeout(now());
            if !has_message {
                continue;
            }
            match self.line.receive(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => match reader.handle_part(&buffer[..len]) {
                    Ok(Some(message)) => self.handle(message),
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "invalid message from the agent"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("line"),
            }
        }
    }

    fn handle(&self, message: ToRelayServer) {
        match message {
            ToRelayServer::Hello => self.send_ready(),
            ToRelayServer::Allocate { id, requested_by, clients } => {
                let endpoint = lock(&self.table).allocate(requested_by, clients, now());
                self.send(&FromRelayServer::Allocated { id, endpoint });
            }
            ToRelayServer::Datagrams(datagrams) => {
                for Outgoing { to, source, hops, bytes, .. } in datagrams {
                    let local = source.map(|at| Local { addr: at.addr, interface: at.interface });
                    let to = Endpoint { local, ..Endpoint::new(to) };
                    // As if it was lost.
                    let _ = self.socket.send_control(&bytes, to, hops);
                }
            }
        }
    }

    fn send_ready(&self) {
        let key = lock(&self.table).key();
        self.send(&FromRelayServer::Ready { key, port: self.port });
    }

    fn send(&self, message: &FromRelayServer) {
        send_to_agent(&self.line, message);
    }
}

/// Sends a message, without waiting for an agent that does not read.
fn send_to_agent(line: &Channel, message: &FromRelayServer) {
    if let Err(error) = ipc::write(message, |part| line.send(part)) {
        tracing::debug!(%error, "a message to the agent was dropped");
    }
}

fn lock(table: &Mutex<Server>) -> MutexGuard<'_, Server> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Duration {
    clock::boottime()
}
