//! Port mapping by UPnP: a search by UDP, then requests over TCP. The task sends nothing to hosts
//! other than the gateway, even if an answer names one.
//!
//! ```text
//!   search ──► description ──► map ──► wait ── half its lifetime, or the router restarted
//!     ▲            │ failure    │ ▲                │
//!     '── pause ◄──┴────────────' '────────────────'
//! ```

use std::{
    fmt,
    net::{SocketAddr, SocketAddrV4},
    os::fd::AsFd,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use mesh::portmap::{
    Target,
    upnp_messages::{self, LONGEST_ANSWER, LONGEST_TEXT, Refusal, SearchResponse, Service},
};
use sys::clock::boottime as now;
use tokio::{
    net::{TcpSocket, UdpSocket},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::UpnpState;
use crate::agent::control::dial::SocketHook;

/// The requested lifetime of a mapping. Some routers map permanently.
const LIFETIME: Duration = Duration::from_secs(7200);
/// The waits after each search. An answer may take a second (`MX`).
const SEARCH_WAITS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(1200), Duration::from_millis(1500)];
/// The time limit of a request, including the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The delay after a failure, which doubles each time.
const RETRY_DELAY: Duration = Duration::from_secs(2 * 60);
const MAX_DOUBLINGS: u32 = 4;
/// The delay if a mapping could not be renewed.
const RENEWAL_RETRY: Duration = Duration::from_secs(30);
/// The shortest interval between two checks for a restart.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The age at which a mapping is renewed if the router does not report restarts.
const RENEW_AFTER_CHECK: Duration = Duration::from_secs(5 * 60);
/// The number of external ports to try.
const MAX_PORTS: usize = 4;

/// The task for UPnP.
pub(super) struct Upnp {
    wanted: watch::Sender<Wanted>,
    state: watch::Receiver<UpnpState>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    target: Option<Target>,
    checks: u32,
}

impl Upnp {
    /// A task without a port to map.
    pub(super) fn start(hook: Option<SocketHook>) -> Self {
        let (wanted, wanted_receiver) = watch::channel(Wanted::default());
        let (state_sender, state) = watch::channel(UpnpState::default());
        let task = tokio::spawn(run(hook, wanted_receiver, state_sender));
        Self { wanted, state, task }
    }

    /// Sets the address and port to map, if any.
    pub(super) fn set_target(&self, target: Option<Target>) {
        self.wanted
            .send_if_modified(|wanted| std::mem::replace(&mut wanted.target, target) != target);
    }

    /// Checks whether the router still has the mapping.
    pub(super) fn check(&self) {
        self.wanted.send_modify(|wanted| wanted.checks = wanted.checks.wrapping_add(1));
    }

    /// The present state.
    pub(super) fn state(&self) -> UpnpState {
        *self.state.borrow()
    }

    /// Waits until the state changes.
    pub(super) async fn changed(&mut self) {
        // The task ends only after its owner.
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Releases the port.
    pub(super) async fn end(self) {
        drop(self.wanted);
        let _ = self.task.await;
    }
}

async fn run(
    hook: Option<SocketHook>,
    mut wanted: watch::Receiver<Wanted>,
    state: watch::Sender<UpnpState>,
) {
    while wanted.wait_for(|wanted| wanted.target.is_some()).await.is_ok() {
        let Some(target) = wanted.borrow().target else { continue };
        let mut router = Router { target, hook: hook.clone(), service: None, mapping: None };
        let checks = wanted.clone();
        tokio::select! {
            _ = wanted.wait_for(|wanted| wanted.target != Some(target)) => {}
            () = router.serve(checks, &state) => {}
        }
        router.release().await;
        state.send_replace(UpnpState::default());
    }
}

/// The reason for a missing mapping.
#[derive(Debug)]
enum UpnpError {
    /// The gateway did not answer a search.
    NoAnswer,
    /// The gateway refused, or an error occurred.
    Failed(String),
}

impl fmt::Display for UpnpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("no answer"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl UpnpError {
    fn of(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

struct Router {
    target: Target,
    hook: Option<SocketHook>,
    /// The answer to the search, and the service that maps ports.
    service: Option<(SearchResponse, Service)>,
    /// The external address, its expiry, and the time of the mapping.
    mapping: Option<(SocketAddrV4, Duration, Duration)>,
}

impl Router {
    /// Maps the port and renews the mapping.
    async fn serve(
        &mut self,
        mut checks: watch::Receiver<Wanted>,
        state: &watch::Sender<UpnpState>,
    ) {
        let mut failures = 0;
        loop {
            let mapped = self.map().await;
            self.mapping = self.mapping.filter(|(_, expires, _)| *expires > now());
            let is_supported =
                !matches!(mapped, Err(UpnpError::NoAnswer)) || self.mapping.is_some();
            let mapping = self.mapping.map(|(external, expires, _)| (external, expires));
            state.send_replace(UpnpState { is_supported: Some(is_supported), mapping });
            match mapped {
                Ok(()) => {
                    failures = 0;
                    self.wait_for_renewal(&mut checks).await;
                }
                Err(why) => {
                    tracing::debug!(gateway = %self.target.gateway, %why, "UPnP");
                    let delay = RETRY_DELAY * (1 << failures.min(MAX_DOUBLINGS));
                    failures += 1;
                    sleep(if self.mapping.is_some() { RENEWAL_RETRY } else { delay }).await;
                }
            }
        }
    }

    /// Waits until the mapping must be renewed.
    async fn wait_for_renewal(&self, checks: &mut watch::Receiver<Wanted>) {
        let renewal = Instant::now() + LIFETIME / 2;
        checks.mark_unchanged();
        loop {
            match timeout_at(renewal, checks.changed()).await {
                Ok(Ok(())) if !self.may_have_restarted().await => sleep(CHECK_INTERVAL).await,
                Ok(Err(_)) => sleep(LIFETIME).await,
                _ => return,
            }
        }
    }

    /// Whether the router may have restarted.
    async fn may_have_restarted(&self) -> bool {
        let (Some((before, _)), Some((.., since))) = (&self.service, self.mapping) else {
            return true;
        };
        match self.search().await {
            Ok(found) if found.boot.is_some() => found != *before,
            Ok(_) => now() >= since + RENEW_AFTER_CHECK,
            // The router will return, or the mapping expires.
            Err(_) => false,
        }
    }

    async fn map(&mut self) -> Result<(), UpnpError> {
        let found = self.search().await?;
        let service = self.describe(&found).await?;
        self.service = Some((found, service.clone()));
        let (_, answer) = self.call(&service, &upnp_messages::Request::Address).await?;
        let address = upnp_messages::read_address(&answer).ok_or_else(|| {
            UpnpError::Failed("the router did not report its external address".into())
        })?;
        let mut lifetime = LIFETIME;
        let previous = self.mapping.map(|(external, ..)| external.port());
        let mut external = previous.unwrap_or(self.target.port);
        for _ in 0..=MAX_PORTS {
            let Target { own, port, .. } = self.target;
            let seconds = lifetime.as_secs().try_into().unwrap_or(0);
            let map =
                upnp_messages::Request::Map { external, own, internal: port, lifetime: seconds };
            let (status, answer) = self.call(&service, &map).await?;
            match upnp_messages::read_refusal(&answer) {
                None if status == StatusCode::OK => {
                    let (external, since) = (SocketAddrV4::new(address, external), now());
                    self.mapping = Some((external, since + LIFETIME, since));
                    return Ok(());
                }
                Some(Refusal::Taken) => external = random_port()?,
                Some(Refusal::OnlyPermanent) if !lifetime.is_zero() => lifetime = Duration::ZERO,
                refusal => {
                    self.mapping = None;
                    return Err(UpnpError::Failed(format!("{status}, {refusal:?}")));
                }
            }
        }
        Err(UpnpError::Failed("the external ports are in use".into()))
    }

    async fn release(&mut self) {
        if let (Some((_, service)), Some((external, ..))) =
            (self.service.take(), self.mapping.take())
        {
            let delete = upnp_messages::Request::Delete { external: external.port() };
            if let Err(why) = self.call(&service, &delete).await {
                tracing::debug!(gateway = %self.target.gateway, %why, "UPnP");
            }
        }
    }

    /// Searches for UPnP at the gateway.
    async fn search(&self) -> Result<SearchResponse, UpnpError> {
        let Target { gateway, own, .. } = self.target;
        let socket = UdpSocket::bind((own, 0)).await.map_err(UpnpError::of)?;
        self.mark(&socket)?;
        let (search, mut answer) = (upnp_messages::search(), [0; LONGEST_ANSWER]);
        for wait in SEARCH_WAITS {
            // Some routers receive only one of them.
            for to in [gateway, upnp_messages::MULTICAST] {
                if let Err(error) =
                    socket.send_to(search.as_bytes(), (to, upnp_messages::PORT)).await
                {
                    tracing::debug!(%error, %to, "UPnP");
                }
            }
            let until = Instant::now() + wait;
            while let Ok(received) = timeout_at(until, socket.recv_from(&mut answer)).await {
                // An ICMP error: the port is closed.
                let Ok((len, SocketAddr::V4(from))) = received else { continue };
                if *from.ip() == gateway
                    && let Some(found) = SearchResponse::read(&answer[..len], gateway)
                {
                    return Ok(found);
                }
            }
        }
        Err(UpnpError::NoAnswer)
    }

    /// Finds the service that maps ports.
    async fn describe(&self, found: &SearchResponse) -> Result<Service, UpnpError> {
        if let Some((before, service)) = &self.service
            && before == found
        {
            return Ok(service.clone());
        }
        let request = Request::get(&found.description.path);
        let (_, text) = self.send(found.description.port, request, String::new()).await?;
        Service::read(&text, &found.description, self.target.gateway)
            .ok_or_else(|| UpnpError::Failed("its description lacks a port mapping service".into()))
    }

    async fn call(
        &self,
        service: &Service,
        request: &upnp_messages::Request,
    ) -> Result<(StatusCode, String), UpnpError> {
        let (action, body) = service.encode(request);
        let request = Request::post(&service.place.path)
            .header(header::CONTENT_TYPE, "text/xml; charset=\"utf-8\"")
            .header("SOAPAction", action);
        self.send(service.place.port, request, body).await
    }

    async fn send(
        &self,
        port: u16,
        request: hyper::http::request::Builder,
        body: String,
    ) -> Result<(StatusCode, String), UpnpError> {
        let host = SocketAddrV4::new(self.target.gateway, port);
        let request = request
            .header(header::HOST, host.to_string())
            .header(header::CONNECTION, "close")
            .body(Full::from(body))
            .map_err(UpnpError::of)?;
        match timeout(ANSWER_TIMEOUT, self.exchange(host, request)).await {
            Ok(answered) => answered,
            Err(_) => Err(UpnpError::Failed(format!("it does not answer at port {port}"))),
        }
    }

    async fn exchange(
        &self,
        host: SocketAddrV4,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, String), UpnpError> {
        let socket = TcpSocket::new_v4().map_err(UpnpError::of)?;
        self.mark(&socket)?;
        let stream = TokioIo::new(socket.connect(host.into()).await.map_err(UpnpError::of)?);
        // Parsers of routers expect this case of header names.
        let http = http1::Builder::new().title_case_headers(true).handshake(stream).await;
        let (mut sender, connection) = http.map_err(UpnpError::of)?;
        // Ends with `sender`, or with the answer's body.
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.map_err(UpnpError::of)?.into_parts();
        let text = Limited::new(body, LONGEST_TEXT).collect().await.map_err(UpnpError::of)?;
        Ok((head.status, String::from_utf8_lossy(&text.to_bytes()).into_owned()))
    }

    fn mark(&self, socket: &impl AsFd) -> Result<(), UpnpError> {
        let marked = self.hook.as_ref().map_or(Ok(()), |hook| hook(socket.as_fd()));
        marked.map_err(UpnpError::of)
    }
}

/// A random port, because the used ones are unknown.
fn random_port() -> Result<u16, UpnpError> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(UpnpError::of)?;
    Ok(u16::from_ne_bytes(bytes) | 0x8000)
}
