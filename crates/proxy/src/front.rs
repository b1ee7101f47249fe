//! All proxies of a process: bound first, served once there is a tunnel.
//!
//! ```text
//!   Front::bind ──► Front::serve ──► Served: services, counters, ping
//!                        `─────────► Work::start ──► Serving: a thread, until it is dropped
//! ```

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use config::{
    conf::{self, Dns},
    uapi::{ProxyStats, Service},
};
use sys::process::OpenFiles;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};
use wg::PublicKey;

use crate::{
    capacity::Capacity,
    connections::{Connections, Source},
    dial::Dialer,
    gate::Gate,
    half_open::Client,
    identity::Identity,
    reach::Reach,
    services::{Bound, Rules},
    stack::Stack,
    users::Users,
};

/// The proxies of a process, bound but not served yet.
pub struct Front<S: Stack> {
    stack: S,
    bound: Bound<S>,
    runtime: Runtime,
}

/// The tunnel behind the proxies.
pub struct TunnelSide {
    /// Who we are in it.
    pub identity: Arc<Identity>,
    /// The name servers.
    pub dns: Dns,
    /// Finds the peer whose allowed IPs have an address, at the time of the call.
    pub peer_of: PeerOf,
}

/// Finds the peer whose allowed IPs have an address.
pub type PeerOf = Arc<dyn Fn(IpAddr) -> Option<PublicKey> + Send + Sync>;

impl<S: Stack> Front<S> {
    /// Binds all listeners of the file.
    ///
    /// # Errors
    /// An address is not available.
    pub fn bind(stack: S, conf: &conf::Proxy) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
        let bound = runtime.block_on(Bound::new(&stack, conf))?;
        Ok(Self { stack, bound, runtime })
    }

    /// Prepares to serve clients. Those that must log in are `users`.
    pub fn serve(self, tunnel: TunnelSide, users: Users, files: OpenFiles) -> (Served<S>, Work) {
        let Self { stack, bound, runtime } = self;
        let capacity = Capacity::new(files, bound.datagram_services());
        let TunnelSide { identity, dns, peer_of } = tunnel;
        let allowed = peer_of.clone();
        let reach = Reach::new(identity, move |ip| allowed(ip).is_some());
        let dialer = Arc::new(Dialer::new(Arc::new(stack), reach, dns, capacity.dialling));
        let connections = runtime.block_on(async { Connections::new(capacity) });
        let gate = Arc::new(Gate { dialer, users, connections });
        let rules = Rules { datagrams: capacity.datagrams, source: source(peer_of) };
        let services = runtime.block_on(async { bound.serve(&gate, &rules) });
        let services = services.iter().map(|service| Service::parse(service)).collect();
        let served = Served { gate, services, runtime: runtime.handle().clone() };
        (served, Work(runtime))
    }
}

/// A client in the tunnel counts as its peer, whichever of the peer's addresses it uses.
fn source(peer_of: PeerOf) -> Arc<dyn Fn(IpAddr) -> Source + Send + Sync> {
    Arc::new(move |ip| peer_of(ip).map_or(Source::Client(Client::Ip(ip)), Source::Peer))
}

/// The services that run, for the control socket.
pub struct Served<S: Stack> {
    gate: Arc<Gate<S>>,
    services: Vec<Service>,
    runtime: Handle,
}

impl<S: Stack> Served<S> {
    /// The part of `linerate show` about the proxies.
    pub fn stats(&self) -> ProxyStats {
        ProxyStats {
            stack: self.gate.dialer.stack.name().to_owned(),
            services: self.services.clone(),
            dropped: self.gate.dialer.stack.dropped(),
            ..self.gate.connections.counters().stats()
        }
    }

    /// Offloads were switched on or off.
    pub fn offloads_changed(&self) {
        self.gate.dialer.stack.offloads_changed();
    }

    /// Sends one ICMP echo request through the tunnel. Returns who answered, and the time it took.
    ///
    /// # Errors
    /// There was no answer.
    pub fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        self.runtime.block_on(self.gate.dialer.ping(host))
    }
}

/// Serves clients, once it is started.
pub struct Work(Runtime);

impl Work {
    /// Serves clients in a thread of its own.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(self) -> io::Result<Serving> {
        let Self(runtime) = self;
        let (stop, stopped) = oneshot::channel();
        let serving = move || {
            // The sender is only dropped, never used.
            let _ = runtime.block_on(stopped);
        };
        let thread = thread::Builder::new().name("proxy".into()).spawn(serving)?;
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

/// Serves clients until it is dropped. Dropping waits for the thread, which removes the files of
/// Unix sockets.
pub struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the clients panicked");
        }
    }
}
