//! One connection to a coordinator: its key, the upgrade, the handshake, and HTTP/2 over it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::{http1, http2},
    header::{CONNECTION, HOST, LOCATION, RETRY_AFTER, UPGRADE},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Deserialize;
use tailnet::{
    control::{
        CAPABILITY_VERSION, HANDSHAKE_HEADER, LOAD_BALANCE_HEADER, UPGRADE_PATH, UPGRADE_PROTOCOL,
        dial::{Attempt, Candidate, ControlUrl, rounds},
        noise::{Initiation, REPLY, REPLY_HEADER, Reply},
        stream::NoiseStream,
    },
    keys::{MachineKey, MachinePublic, NodePublic},
};
use tokio::{
    io::AsyncReadExt,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use zeroize::Zeroizing;

use super::{
    Settings,
    dial::{Dialer, Stream, Target, race},
    trouble::{Trouble, root_cause, shown},
};

/// The longest answer that is no map, in bytes: one to a registration has a user's profile.
const LONGEST_ANSWER: usize = 256 << 10;
/// How long an answer that is no map may take.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// When nothing was received for this long, whether the other end is there is asked: beyond the
/// 50 to 60 s of a coordinator's own keep-alives, so that a healthy stream needs none.
const PING_AFTER: Duration = Duration::from_secs(70);
/// How long the answer to that may take.
const PONG: Duration = Duration::from_secs(20);
/// How much of the map's stream may wait here unread, in bytes.
const WINDOW: u32 = 512 << 10;
/// What HTTP has of waits that the coordinator asks for (tailscale `controlclient/direct.go`).
const LONGEST_WAIT: u64 = 3600;
const DEFAULT_WAIT: u64 = 8;

/// Opens byte streams to a coordinator.
pub trait Carrier: Clone + Send + Sync + 'static {
    /// Opens one.
    fn open(&self, target: Target)
    -> impl Future<Output = Result<Box<dyn Stream>, Trouble>> + Send;
}

impl Carrier for Dialer {
    async fn open(&self, target: Target) -> Result<Box<dyn Stream>, Trouble> {
        self.dial(&target).await
    }
}

/// HTTP/2 with a coordinator. Ends when it is dropped.
pub struct Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
    driver: JoinHandle<()>,
    /// Why it ended, once it has.
    ended: Arc<OnceLock<String>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to the addresses of the URL and of the coordinator's plan. Also returns the key that the
    /// coordinator proved to have.
    ///
    /// # Errors
    /// What was in the way, of the last attempt; but that the key is another one, of any.
    pub async fn open<C: Carrier>(
        settings: &Settings<C>,
        plan: &[Candidate],
    ) -> Result<(Self, MachinePublic), Trouble> {
        let Settings { url, server_key, machine_key, dialer } = settings;
        let mut trouble = None;
        for round in rounds(url, plan) {
            let attempts = round.into_iter().map(|attempt| {
                let begin = Begin {
                    carrier: dialer.clone(),
                    url: url.clone(),
                    server_key: *server_key,
                    machine: machine_key.clone(),
                    attempt,
                };
                (attempt.after, begin.run())
            });
            match race(attempts).await {
                Ok((stream, key)) => return Ok((Self::over(stream, url).await?, key)),
                Err(error) => trouble = Some(error.or(trouble)),
            }
        }
        Err(trouble.unwrap_or_else(|| Trouble::Ended("there was nothing to try".into())))
    }

    async fn over(stream: NoiseStream<Box<dyn Stream>>, url: &ControlUrl) -> Result<Self, Trouble> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Trouble::ended)?;
        let ended = Arc::new(OnceLock::new());
        let slot = Arc::clone(&ended);
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                let _ = slot.set(root_cause(&error));
            }
        });
        Ok(Self { sender, authority: url.authority(), driver, ended })
    }

    /// Posts a request. Returns the answer where its status is 200.
    pub(super) async fn post(
        &self,
        what: &'static str,
        path: &str,
        node: &NodePublic,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Trouble> {
        self.ask(Method::POST, what, path, node, body).await
    }

    /// Sends a request. Returns the answer where its status is 200.
    pub(super) async fn ask(
        &self,
        method: Method,
        what: &'static str,
        path: &str,
        node: &NodePublic,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Trouble> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority))
            .header(LOAD_BALANCE_HEADER, node.to_string())
            .body(Full::from(body))
            .map_err(|error| Trouble::BadAnswer(what, error.to_string()))?;
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            _ => Err(refusal(what, response).await),
        }
    }

    /// Sends any request.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Trouble> {
        self.sender.clone().send_request(request).await.map_err(|error| self.trouble(&error))
    }

    /// Why something over this connection failed: of the connection, if that has ended.
    pub(super) fn trouble(&self, error: &hyper::Error) -> Trouble {
        let why = self.ended.get().cloned();
        Trouble::Ended(why.unwrap_or_else(|| root_cause(error)))
    }
}

/// An attempt to reach the coordinator, as far as its handshake.
struct Begin<C> {
    carrier: C,
    url: ControlUrl,
    /// The key that the coordinator must have; zero for any.
    server_key: MachinePublic,
    machine: MachineKey,
    attempt: Attempt,
}

impl<C: Carrier> Begin<C> {
    async fn run(self) -> Result<(NoiseStream<Box<dyn Stream>>, MachinePublic), Trouble> {
        let deadline = Instant::now() + self.attempt.limit;
        let silent = |what| Trouble::Silent(self.url.authority(), what);
        let ask = async {
            let mut http = self.connect().await?;
            let key = self.ask_key(&mut http).await?;
            Ok::<_, Trouble>((http, key))
        };
        let (http, key) = match timeout_at(deadline, ask).await {
            Ok(answered) => answered?,
            Err(_) => return Err(silent("to the first request")),
        };
        match timeout_at(deadline, self.upgrade(http, &key)).await {
            Ok(upgraded) => Ok((upgraded?, key)),
            Err(_) => Err(silent("to the handshake")),
        }
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, Trouble> {
        let Attempt { port, tls, address, .. } = self.attempt;
        let stream =
            self.carrier.open(Target { host: self.url.host.clone(), port, tls, address }).await?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(Trouble::ended)?;
        // Ends with `sender`, or with the stream that it is upgraded to.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn ask_key(
        &self,
        http: &mut http1::SendRequest<Full<Bytes>>,
    ) -> Result<MachinePublic, Trouble> {
        #[derive(Deserialize)]
        struct Keys {
            #[serde(default, rename = "publicKey")]
            public: MachinePublic,
        }
        let request = Request::get(format!("/key?v={CAPABILITY_VERSION}"))
            .header(HOST, self.url.authority())
            .body(Full::default())
            .expect("a URL's host makes a header");
        let response = http.send_request(request).await.map_err(Trouble::ended)?;
        let (url, status) = (self.url.to_string(), response.status());
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).map_or(&b""[..], |to| to.as_bytes());
            return Err(Trouble::Redirects(url, shown(to)));
        }
        let body = collect("key", response.into_body()).await?;
        if status != StatusCode::OK {
            return Err(Trouble::NotACoordinator(url, format!("{status}: {}", shown(&body))));
        }
        match serde_json::from_slice::<Keys>(&body) {
            Ok(Keys { public }) if public.is_zero() => Err(Trouble::CoordinatorTooOld(url)),
            Ok(Keys { public }) if !self.server_key.is_zero() && public != self.server_key => {
                Err(Trouble::OtherKey { url, expected: self.server_key, offered: public })
            }
            Ok(Keys { public }) => Ok(public),
            Err(_) => Err(Trouble::NotACoordinator(url, format!("it says: {}", shown(&body)))),
        }
    }

    async fn upgrade(
        &self,
        mut http: http1::SendRequest<Full<Bytes>>,
        key: &MachinePublic,
    ) -> Result<NoiseStream<Box<dyn Stream>>, Trouble> {
        // What answered may close each connection behind its answer.
        if http.ready().await.is_err() {
            http = self.connect().await?;
        }
        let mut ephemeral = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *ephemeral).map_err(Trouble::ended)?;
        let (initiation, message) =
            Initiation::new(&self.machine, key, CAPABILITY_VERSION, ephemeral)?;
        let request = Request::post(UPGRADE_PATH)
            .header(HOST, self.url.authority())
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, UPGRADE_PROTOCOL)
            .header(HANDSHAKE_HEADER, Base64::encode_string(&message))
            .body(Full::default())
            .expect("a URL's host makes a header");
        let response = http.send_request(request).await.map_err(Trouble::ended)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal("upgrade", response).await);
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(Trouble::ended)?;
        handshake(TokioIo::new(upgraded), initiation).await
    }
}

async fn handshake(
    mut stream: impl Stream + 'static,
    initiation: Initiation,
) -> Result<NoiseStream<Box<dyn Stream>>, Trouble> {
    let mut header = [0; REPLY_HEADER];
    stream.read_exact(&mut header).await.map_err(Trouble::ended)?;
    match Reply::read(header)? {
        Reply::Accepted => {
            let mut reply = [0; REPLY];
            stream.read_exact(&mut reply).await.map_err(Trouble::ended)?;
            let (sealer, opener) = initiation.finish(&reply)?;
            Ok(NoiseStream::of_member(Box::new(stream), sealer, opener))
        }
        Reply::Refused(length) => {
            let mut said = vec![0; length];
            stream.read_exact(&mut said).await.map_err(Trouble::ended)?;
            Err(Trouble::HandshakeRefused(shown(&said)))
        }
    }
}

/// What an answer other than 200 means.
async fn refusal(what: &'static str, response: Response<Incoming>) -> Trouble {
    let (head, body) = response.into_parts();
    if head.status == StatusCode::TOO_MANY_REQUESTS {
        let wait = head.headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        let wait = wait.filter(|wait| (1..=LONGEST_WAIT).contains(wait)).unwrap_or(DEFAULT_WAIT);
        return Trouble::Later(Duration::from_secs(wait));
    }
    let said = collect(what, body).await.unwrap_or_default();
    let said = if said.is_empty() { String::new() } else { shown(&said) };
    // headscale: `hscontrol/noise.go`.
    if said.contains("unsupported client version") {
        return Trouble::MemberTooOld(said);
    }
    Trouble::Status(what, head.status.as_u16(), said)
}

/// Reads an answer that is no map.
pub(super) async fn collect(what: &'static str, body: Incoming) -> Result<Bytes, Trouble> {
    collect_up_to(LONGEST_ANSWER, what, body).await
}

/// The same, where it may be longer or is to be shorter.
pub(super) async fn collect_up_to(
    longest: usize,
    what: &'static str,
    body: Incoming,
) -> Result<Bytes, Trouble> {
    match timeout(ANSWER, Limited::new(body, longest).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Trouble::BadAnswer(what, error.to_string())),
        Err(_) => Err(Trouble::Silent("the coordinator".into(), what)),
    }
}
