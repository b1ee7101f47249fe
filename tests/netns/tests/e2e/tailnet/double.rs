//! A network of a coordinator and a relay that are doubles, which behave well until a test changes that.
//!
//! ```text
//!   test ── scripts ──► a thread, on sockets of the coordinator's host
//!                          443  TLS ── doubles::Coordinator ── maps of all registered nodes
//!                         8443  TLS ── doubles::relay, of region 1; 8444 of region 2 if needed
//!                         3478  UDP ── STUN
//! ```

mod coordinator;
mod maps;
mod relay;
mod stun;

use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use doubles::coordinator::{Acceptor, Behaviour, Coordinator};
use netns::{Certificate, Family, Host, Member, MemberKind, Switch, Uplink, in_background};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio_rustls::TlsAcceptor;

use self::coordinator::State;
pub(super) use self::maps::peer;
pub(super) use self::relay::RelayBehaviour;

const HTTPS: u16 = 443;
pub(super) const DERP: u16 = 8443;
const STUN: u16 = 3478;

/// Bytes sent after valid data.
#[derive(Clone, Default)]
pub(super) struct Payload {
    pub bytes: Arc<[u8]>,
    /// Bytes per write, with a pause after each; 0 for all at once.
    pub piece: usize,
    pub rest: Duration,
    /// Whether the connection ends after them.
    pub then_ends: bool,
}

/// Contents of map streams.
#[derive(Clone)]
pub(super) enum Stream {
    /// Maps.
    Good,
    /// These bytes after a valid first map.
    Then(Payload),
    /// A valid first map after this change.
    First(Change),
}

/// Changes a map.
pub(super) type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// The network; it ends when it is dropped.
pub(super) struct Double {
    switch: Switch,
    /// The host of the sockets.
    pub host: Host,
    shared: Arc<Shared>,
    _runs: oneshot::Sender<()>,
}

struct Shared {
    acceptor: Acceptor,
    state: Mutex<State>,
    relay: Mutex<RelayBehaviour>,
    stream: Mutex<Stream>,
    tls: Mutex<TlsAcceptor>,
    /// Ends the current connections.
    cut: Notify,
    cut_relay: Notify,
    streams: AtomicUsize,
    logins: AtomicUsize,
}

impl Payload {
    /// Sent once.
    pub(super) fn once(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into().into(), ..Self::default() }
    }

    /// Sent once before the connection closes.
    pub(super) fn cut_off(bytes: impl Into<Vec<u8>>) -> Self {
        Self { then_ends: true, ..Self::once(bytes) }
    }

    /// One byte every tenth of a second.
    pub(super) fn dripping(bytes: impl Into<Vec<u8>>) -> Self {
        Self { piece: 1, rest: Duration::from_millis(100), ..Self::once(bytes) }
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let piece = if self.piece == 0 { self.bytes.len().max(1) } else { self.piece };
        self.bytes.chunks(piece)
    }
}

impl Double {
    /// A well-behaved network with this certificate.
    pub(super) fn start(certificate: &Certificate) -> Self {
        Self::of_regions(certificate, 1)
    }

    /// The same with one or two regions. Only the first one can misbehave.
    pub(super) fn of_regions(certificate: &Certificate, regions: u16) -> Self {
        let (switch, host) = Switch::new(&certificate.authority);
        let coordinator = Coordinator::new(Behaviour::Good);
        let shared = Arc::new(Shared {
            acceptor: coordinator.acceptor(),
            state: Mutex::new(State::of_regions(regions)),
            relay: Mutex::new(RelayBehaviour::Good),
            stream: Mutex::new(Stream::Good),
            tls: Mutex::new(tls(certificate)),
            cut: Notify::new(),
            cut_relay: Notify::new(),
            streams: AtomicUsize::new(0),
            logins: AtomicUsize::new(0),
        });
        let (runs, ended) = oneshot::channel();
        let everywhere = Ipv6Addr::UNSPECIFIED;
        let sockets = host.inside(|| {
            let listen = |port| TcpListener::bind((everywhere, port)).expect("the port is free");
            let stun = UdpSocket::bind((everywhere, STUN)).expect("the port is free");
            (listen(HTTPS), listen(DERP), listen(DERP + 1), stun)
        });
        let all = Arc::clone(&shared);
        in_background("double", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let (https, derp, second, stun) = sockets;
                let concurrent = Arc::clone(&all);
                tokio::select! {
                    () = coordinator::accept(https, Arc::clone(&all)) => {}
                    () = coordinator::answer(coordinator, Arc::clone(&all)) => {}
                    () = relay::accept(derp, all) => {}
                    () = relay::accept_well(second, concurrent) => {}
                    () = stun::answer(stun) => {}
                    _ = ended => {}
                }
            });
        });
        Self { switch, host, shared, _runs: runs }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", Switch::coordinator().of(Family::V4))
    }

    pub(super) fn new_host(&self, name: &str) -> Host {
        self.switch.host(name, Uplink::Switch)
    }

    pub(super) fn join(&self, name: &str) -> Member {
        Member::join_at(&self.url(), "key", self.new_host(name), MemberKind::Linerate, "")
    }

    /// Sets the coordinator's behaviour towards connections, and ends the current ones.
    pub(super) fn set_behaviour(&self, behaviour: Behaviour) {
        self.shared.acceptor.set_behaviour(behaviour);
        self.shared.cut.notify_waiters();
    }

    /// Sets the certificate of both servers, and ends connections to the coordinator.
    pub(super) fn certify(&self, certificate: &Certificate) {
        *self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls(certificate);
        self.shared.cut.notify_waiters();
    }

    /// Sets the contents of map streams, and ends the current ones.
    pub(super) fn set_stream(&self, stream: Stream) {
        *self.shared.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        self.shared.cut.notify_waiters();
    }

    /// Sets the relay's behaviour, and ends its current connections.
    pub(super) fn relay(&self, manner: RelayBehaviour) {
        *self.shared.relay.lock().unwrap_or_else(PoisonError::into_inner) = manner;
        self.shared.cut_relay.notify_waiters();
    }

    /// Number of requested map streams.
    pub(super) fn streams(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Number of logins at the relay.
    pub(super) fn logins(&self) -> usize {
        self.shared.logins.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn tls(&self) -> TlsAcceptor {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn listener(listener: TcpListener) -> tokio::net::TcpListener {
    listener.set_nonblocking(true).expect("a socket can be non-blocking");
    tokio::net::TcpListener::from_std(listener).expect("a runtime")
}

fn tls(certificate: &Certificate) -> TlsAcceptor {
    let chain = CertificateDer::from_pem_slice(certificate.chain.as_bytes()).expect("it is PEM");
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("it is PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![chain], key));
    TlsAcceptor::from(Arc::new(config.expect("the certificate is valid")))
}
