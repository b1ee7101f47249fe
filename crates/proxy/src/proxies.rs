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
    half_open::Client,
    identity::Identity,
    reach::Reach,
    serve::ProxyContext,
    services::{BoundServices, ServiceLimits},
    stack::Stack,
    users::Users,
};

/// The proxies of a process, bound but not served yet.
pub struct Proxies<S: Stack> {
    stack: S,
    bound: BoundServices<S>,
    runtime: Runtime,
}

/// The tunnel behind the proxies.
pub struct TunnelSide {
    /// Who we are in it.
    pub identity: Arc<Identity>,
    /// The name servers.
    pub dns: Dns,
    /// Finds the peer whose allowed IPs have an address, at the time of the call.
    pub peer_of: PeerLookup,
}

/// Finds the peer whose allowed IPs have an address.
pub type PeerLookup = Arc<dyn Fn(IpAddr) -> Option<PublicKey> + Send + Sync>;

impl<S: Stack> Proxies<S> {
    /// Binds all listeners of the file.
    ///
    /// # Errors
    /// An address is not available.
    pub fn bind(stack: S, conf: &conf::Proxy) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
        let bound = runtime.block_on(BoundServices::new(&stack, conf))?;
        Ok(Self { stack, bound, runtime })
    }

    /// Prepares to serve clients. Those that must log in are `users`.
    pub fn serve(
        self,
        tunnel: TunnelSide,
        users: Users,
        files: OpenFiles,
    ) -> (ProxiesHandle<S>, ProxyRuntime) {
        let Self { stack, bound, runtime } = self;
        let capacity = Capacity::new(files, bound.datagram_services());
        let TunnelSide { identity, dns, peer_of } = tunnel;
        let allowed = peer_of.clone();
        let reach = Reach::new(identity, move |ip| allowed(ip).is_some());
        let dialer = Arc::new(Dialer::new(Arc::new(stack), reach, dns, capacity.dialling));
        let connections = runtime.block_on(async { Connections::new(capacity) });
        let context = Arc::new(ProxyContext { dialer, users, connections });
        let rules = ServiceLimits { datagrams: capacity.datagrams, source: source(peer_of) };
        let services = runtime.block_on(async { bound.serve(&context, &rules) });
        let services = services.iter().map(|service| Service::parse(service)).collect();
        let served = ProxiesHandle { context, services, runtime: runtime.handle().clone() };
        (served, ProxyRuntime(runtime))
    }
}

/// A client in the tunnel counts as its peer, whichever of the peer's addresses it uses.
fn source(peer_of: PeerLookup) -> Arc<dyn Fn(IpAddr) -> Source + Send + Sync> {
    Arc::new(move |ip| peer_of(ip).map_or(Source::Client(Client::Ip(ip)), Source::Peer))
}

/// The services that run, for the control socket.
pub struct ProxiesHandle<S: Stack> {
    context: Arc<ProxyContext<S>>,
    services: Vec<Service>,
    runtime: Handle,
}

impl<S: Stack> ProxiesHandle<S> {
    /// The part of `linerate show` about the proxies.
    pub fn stats(&self) -> ProxyStats {
        ProxyStats {
            stack: self.context.dialer.stack.name().to_owned(),
            services: self.services.clone(),
            dropped: self.context.dialer.stack.dropped(),
            ..self.context.connections.counters().stats()
        }
    }

    /// Offloads were switched on or off.
    pub fn offloads_changed(&self) {
        self.context.dialer.stack.offloads_changed();
    }

    /// Sends one ICMP echo request through the tunnel. Returns who answered, and the time it took.
    ///
    /// # Errors
    /// There was no answer.
    pub fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        self.runtime.block_on(self.context.dialer.ping(host))
    }
}

/// Serves clients, once it is started.
pub struct ProxyRuntime(Runtime);

impl ProxyRuntime {
    /// Serves clients in a thread of its own.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(self) -> io::Result<ProxyThread> {
        let Self(runtime) = self;
        let (stop, stopped) = oneshot::channel();
        let serving = move || {
            // The sender is only dropped, never used.
            let _ = runtime.block_on(stopped);
        };
        let thread = thread::Builder::new().name("proxy".into()).spawn(serving)?;
        Ok(ProxyThread { stop: Some(stop), thread: Some(thread) })
    }
}

/// Serves clients until it is dropped. Dropping waits for the thread, which removes the files of
/// Unix sockets.
pub struct ProxyThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the clients panicked");
        }
    }
}
