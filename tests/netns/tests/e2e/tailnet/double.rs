//! A network whose coordinator and relay are doubles: good, until a test has them be otherwise.
//!
//! ```text
//!   test ── scripts ──► a thread, on sockets of the coordinator's host
//!                          443  TLS ── doubles::Coordinator ── maps of all that registered
//!                         8443  TLS ── doubles::relay, of region 1; 8444 of region 2 where wanted
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

use doubles::coordinator::{Coordinator, Door, Manner};
use netns::{Certificate, Family, Host, Member, MemberKind, Switch, Uplink, in_background};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio_rustls::TlsAcceptor;

use self::coordinator::State;
pub use self::maps::peer;
pub use self::relay::RelayManner;

const HTTPS: u16 = 443;
pub const DERP: u16 = 8443;
const STUN: u16 = 3478;

/// Bytes said behind what is good.
#[derive(Clone, Default)]
pub struct Words {
    pub bytes: Arc<[u8]>,
    /// So many at once, and then a rest; 0 for all.
    pub piece: usize,
    pub rest: Duration,
    /// Whether the connection ends behind them.
    pub then_ends: bool,
}

/// What is said on a map's stream.
#[derive(Clone)]
pub enum Stream {
    /// Maps.
    Good,
    /// These, behind a first map that is good.
    Then(Words),
    /// What this makes of a good first map.
    First(Change),
}

/// Changes a map.
pub type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// The network; it ends when it is dropped.
pub struct Double {
    switch: Switch,
    /// Has the addresses that the sockets are at.
    pub host: Host,
    shared: Arc<Shared>,
    _runs: oneshot::Sender<()>,
}

struct Shared {
    door: Door,
    state: Mutex<State>,
    relay: Mutex<RelayManner>,
    stream: Mutex<Stream>,
    tls: Mutex<TlsAcceptor>,
    /// Has the connections of now end.
    cut: Notify,
    cut_relay: Notify,
    streams: AtomicUsize,
    logins: AtomicUsize,
}

impl Words {
    /// Said once.
    pub fn once(bytes: impl Into<Vec<u8>>) -> Words {
        Words { bytes: bytes.into().into(), ..Words::default() }
    }

    /// The beginning of something, and no more.
    pub fn cut_off(bytes: impl Into<Vec<u8>>) -> Words {
        Words { then_ends: true, ..Words::once(bytes) }
    }

    /// A byte each tenth of a second.
    pub fn dripping(bytes: impl Into<Vec<u8>>) -> Words {
        Words { piece: 1, rest: Duration::from_millis(100), ..Words::once(bytes) }
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let piece = if self.piece == 0 { self.bytes.len().max(1) } else { self.piece };
        self.bytes.chunks(piece)
    }
}

impl Double {
    /// A good one, which has this certificate.
    pub fn start(certificate: &Certificate) -> Double {
        Double::of_regions(certificate, 1)
    }

    /// A good one with so many regions, one or two. Only the first has another manner.
    pub fn of_regions(certificate: &Certificate, regions: u16) -> Double {
        let (switch, host) = Switch::new(&certificate.authority);
        let coordinator = Coordinator::new(Manner::Good);
        let shared = Arc::new(Shared {
            door: coordinator.door(),
            state: Mutex::new(State::of_regions(regions)),
            relay: Mutex::new(RelayManner::Good),
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
                let beside = Arc::clone(&all);
                tokio::select! {
                    () = coordinator::accept(https, Arc::clone(&all)) => {}
                    () = coordinator::answer(coordinator, Arc::clone(&all)) => {}
                    () = relay::accept(derp, all) => {}
                    () = relay::accept_well(second, beside) => {}
                    () = stun::answer(stun) => {}
                    _ = ended => {}
                }
            });
        });
        Double { switch, host, shared, _runs: runs }
    }

    pub fn url(&self) -> String {
        format!("https://{}", Switch::coordinator().of(Family::V4))
    }

    pub fn new_host(&self, name: &str) -> Host {
        self.switch.host(name, Uplink::Switch)
    }

    pub fn join(&self, name: &str) -> Member {
        Member::join_at(&self.url(), "key", self.new_host(name), MemberKind::Linerate, "")
    }

    /// Has the coordinator behave so towards connections from now on, and ends those of now.
    pub fn behave(&self, manner: Manner) {
        self.shared.door.behave(manner);
        self.shared.cut.notify_waiters();
    }

    /// Has both servers have this certificate from now on, and ends connections to the coordinator.
    pub fn certify(&self, certificate: &Certificate) {
        *self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls(certificate);
        self.shared.cut.notify_waiters();
    }

    /// Has maps' streams go on so from now on, and ends those of now.
    pub fn say(&self, stream: Stream) {
        *self.shared.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        self.shared.cut.notify_waiters();
    }

    /// Has the relay behave so from now on, and ends its connections of now.
    pub fn relay(&self, manner: RelayManner) {
        *self.shared.relay.lock().unwrap_or_else(PoisonError::into_inner) = manner;
        self.shared.cut_relay.notify_waiters();
    }

    /// How many streams of maps were asked for so far.
    pub fn streams(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// How many logins the relay took so far.
    pub fn logins(&self) -> usize {
        self.shared.logins.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn tls(&self) -> TlsAcceptor {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn listener(listener: TcpListener) -> tokio::net::TcpListener {
    listener.set_nonblocking(true).expect("a socket may be without waiting");
    tokio::net::TcpListener::from_std(listener).expect("a runtime")
}

fn tls(certificate: &Certificate) -> TlsAcceptor {
    let chain = CertificateDer::from_pem_slice(certificate.chain.as_bytes()).expect("it is PEM");
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("it is PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![chain], key));
    TlsAcceptor::from(Arc::new(config.expect("the certificate is sound")))
}
