//! All proxies of a process. They are bound first, and served once the tunnel exists.
//!
//! ```text
//!   Proxies::bind ──► Proxies::serve ──► ProxiesHandle: services, counters, ping
//!                          `───────────► ProxyRuntime::start ──► ProxyThread
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
    /// Our addresses and the known names.
    pub identity: Arc<Identity>,
    /// The name servers.
    pub dns: Dns,
    /// Finds the peer of an address.
    pub peer_of: PeerLookup,
}

/// Finds the peer that has an address in its current allowed IPs.
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

    /// Prepares to serve clients. If `users` is not empty, clients must authenticate.
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

/// A handle of the running proxies for the control socket.
pub struct ProxiesHandle<S: Stack> {
    context: Arc<ProxyContext<S>>,
    services: Vec<Service>,
    runtime: Handle,
}

impl<S: Stack> ProxiesHandle<S> {
    /// The statistics of the proxies for `linerate show`.
    pub fn stats(&self) -> ProxyStats {
        ProxyStats {
            stack: self.context.dialer.stack.name().to_owned(),
            services: self.services.clone(),
            dropped: self.context.dialer.stack.dropped(),
            ..self.context.connections.counters().stats()
        }
    }

    /// Applies a change of the offloads.
    pub fn offloads_changed(&self) {
        self.context.dialer.stack.offloads_changed();
    }

    /// Sends one ICMP echo request through the tunnel. Returns the address that answered, and the
    /// round-trip time.
    ///
    /// # Errors
    /// The name cannot be resolved, or the answer did not arrive in time.
    pub fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        self.runtime.block_on(self.context.dialer.ping(host))
    }
}

/// The runtime of the proxies. It serves clients once it is started.
pub struct ProxyRuntime(Runtime);

impl ProxyRuntime {
    /// Serves clients in a new thread.
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

/// The thread that serves clients until this is dropped. Dropping waits for the thread, which removes
/// the files of Unix sockets.
pub struct ProxyThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that serves clients panicked");
        }
    }
}
