//! One connection to a coordinator: its key, the upgrade, the handshake, and HTTP/2.

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
use mesh::dialing::{Attempt, Candidate, ControlUrl, rounds};
use serde::Deserialize;
use tailnet::{
    keys::{MachineKey, MachinePublic, NodePublic},
    ts2021::{
        CAPABILITY_VERSION, HANDSHAKE_HEADER, LOAD_BALANCE_HEADER, UPGRADE_PATH, UPGRADE_PROTOCOL,
        noise_handshake::{Initiation, REPLY, REPLY_HEADER, Reply},
        noise_stream::NoiseStream,
    },
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
    error::{ControlError, printable, root_cause},
};

/// The longest answer except maps, in bytes. The answer to a registration contains a user's
/// profile.
const MAX_ANSWER: usize = 256 << 10;
/// The time limit of an answer except maps.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time without received data after which HTTP/2 sends a ping. It is longer than the interval
/// of a coordinator's own keepalives (50 to 60 s), so a healthy stream never needs a ping.
const PING_AFTER: Duration = Duration::from_secs(70);
/// The time limit of the answer to that ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);
/// The receive window of the map stream, in bytes.
const WINDOW: u32 = 512 << 10;
/// Limits of the header `Retry-After`, in seconds (tailscale `controlclient/direct.go`).
const MAX_RETRY_AFTER: u64 = 3600;
const DEFAULT_RETRY_AFTER: u64 = 8;

/// Opens byte streams to a coordinator.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Opens a stream to a target.
    fn open(
        &self,
        target: Target,
    ) -> impl Future<Output = Result<Box<dyn Stream>, ControlError>> + Send;
}

impl Transport for Dialer {
    async fn open(&self, target: Target) -> Result<Box<dyn Stream>, ControlError> {
        self.dial(&target).await
    }
}

/// An HTTP/2 connection to a coordinator. It is closed on drop.
pub struct Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
    driver: JoinHandle<()>,
    /// The reason for its end.
    ended: Arc<OnceLock<String>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to the addresses of the URL and of the coordinator's dial plan. Also returns the
    /// proven key of the coordinator.
    ///
    /// # Errors
    /// The error of the last attempt. A key mismatch takes precedence.
    pub async fn open<C: Transport>(
        settings: &Settings<C>,
        plan: &[Candidate],
    ) -> Result<(Self, MachinePublic), ControlError> {
        let Settings { url, server_key, machine_key, dialer } = settings;
        let mut failure = None;
        for round in rounds(url, plan) {
            let attempts = round.into_iter().map(|attempt| {
                let connecting = ConnectAttempt {
                    transport: dialer.clone(),
                    url: url.clone(),
                    server_key: *server_key,
                    machine: machine_key.clone(),
                    attempt,
                };
                (attempt.after, connecting.run())
            });
            match race(attempts).await {
                Ok((stream, key)) => return Ok((Self::over(stream, url).await?, key)),
                Err(error) => failure = Some(error.or(failure)),
            }
        }
        Err(failure.unwrap_or_else(|| ControlError::ConnectionEnded("no addresses to try".into())))
    }

    async fn over(
        stream: NoiseStream<Box<dyn Stream>>,
        url: &ControlUrl,
    ) -> Result<Self, ControlError> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ControlError::connection_ended)?;
        let ended = Arc::new(OnceLock::new());
        let slot = Arc::clone(&ended);
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                let _ = slot.set(root_cause(&error));
            }
        });
        Ok(Self { sender, authority: url.authority(), driver, ended })
    }

    /// Sends a POST request. Returns the response if its status is 200.
    pub(super) async fn post(
        &self,
        what: &'static str,
        path: &str,
        node: &NodePublic,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ControlError> {
        self.request(Method::POST, what, path, node, body).await
    }

    /// Sends a request. Returns the response if its status is 200.
    pub(super) async fn request(
        &self,
        method: Method,
        what: &'static str,
        path: &str,
        node: &NodePublic,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ControlError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority))
            .header(LOAD_BALANCE_HEADER, node.to_string())
            .body(Full::from(body))
            .map_err(|error| ControlError::BadResponse(what, error.to_string()))?;
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            _ => Err(refusal(what, response).await),
        }
    }

    /// Sends a request.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ControlError> {
        self.sender.clone().send_request(request).await.map_err(|error| self.error(&error))
    }

    /// The reason for a failed request: that of the connection's end, if the connection has ended.
    pub(super) fn error(&self, error: &hyper::Error) -> ControlError {
        let why = self.ended.get().cloned();
        ControlError::ConnectionEnded(why.unwrap_or_else(|| root_cause(error)))
    }
}

/// An attempt to connect to the coordinator, including the handshake.
struct ConnectAttempt<C> {
    transport: C,
    url: ControlUrl,
    /// The required key of the coordinator; zero accepts any.
    server_key: MachinePublic,
    machine: MachineKey,
    attempt: Attempt,
}

impl<C: Transport> ConnectAttempt<C> {
    async fn run(self) -> Result<(NoiseStream<Box<dyn Stream>>, MachinePublic), ControlError> {
        let deadline = Instant::now() + self.attempt.limit;
        let no_answer = |what| ControlError::NoAnswer(self.url.authority(), what);
        let first = async {
            let mut http = self.connect().await?;
            let key = self.fetch_key(&mut http).await?;
            Ok::<_, ControlError>((http, key))
        };
        let (http, key) = match timeout_at(deadline, first).await {
            Ok(answered) => answered?,
            Err(_) => return Err(no_answer("to the first request")),
        };
        match timeout_at(deadline, self.upgrade(http, &key)).await {
            Ok(upgraded) => Ok((upgraded?, key)),
            Err(_) => Err(no_answer("to the handshake")),
        }
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, ControlError> {
        let Attempt { port, tls, address, .. } = self.attempt;
        let stream =
            self.transport.open(Target { host: self.url.host.clone(), port, tls, address }).await?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ControlError::connection_ended)?;
        // Ends with `sender`, or with the upgraded stream.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn fetch_key(
        &self,
        http: &mut http1::SendRequest<Full<Bytes>>,
    ) -> Result<MachinePublic, ControlError> {
        #[derive(Deserialize)]
        struct Keys {
            #[serde(default, rename = "publicKey")]
            public: MachinePublic,
        }
        let request = Request::get(format!("/key?v={CAPABILITY_VERSION}"))
            .header(HOST, self.url.authority())
            .body(Full::default())
            .expect("a URL's host makes a header");
        let response = http.send_request(request).await.map_err(ControlError::connection_ended)?;
        let (url, status) = (self.url.to_string(), response.status());
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).map_or(&b""[..], |to| to.as_bytes());
            return Err(ControlError::Redirected(url, printable(to)));
        }
        let body = collect("key", response.into_body()).await?;
        if status != StatusCode::OK {
            return Err(ControlError::NotACoordinator(
                url,
                format!("{status}: {}", printable(&body)),
            ));
        }
        match serde_json::from_slice::<Keys>(&body) {
            Ok(Keys { public }) if public.is_zero() => Err(ControlError::CoordinatorTooOld(url)),
            Ok(Keys { public }) if !self.server_key.is_zero() && public != self.server_key => {
                Err(ControlError::KeyMismatch { url, expected: self.server_key, offered: public })
            }
            Ok(Keys { public }) => Ok(public),
            Err(_) => {
                Err(ControlError::NotACoordinator(url, format!("it answers: {}", printable(&body))))
            }
        }
    }

    async fn upgrade(
        &self,
        mut http: http1::SendRequest<Full<Bytes>>,
        key: &MachinePublic,
    ) -> Result<NoiseStream<Box<dyn Stream>>, ControlError> {
        // The server may close the connection after each answer.
        if http.ready().await.is_err() {
            http = self.connect().await?;
        }
        let mut ephemeral = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *ephemeral).map_err(ControlError::connection_ended)?;
        let (initiation, message) =
            Initiation::new(&self.machine, key, CAPABILITY_VERSION, ephemeral)?;
        let request = Request::post(UPGRADE_PATH)
            .header(HOST, self.url.authority())
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, UPGRADE_PROTOCOL)
            .header(HANDSHAKE_HEADER, Base64::encode_string(&message))
            .body(Full::default())
            .expect("a URL's host makes a header");
        let response = http.send_request(request).await.map_err(ControlError::connection_ended)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal("upgrade", response).await);
        }
        let upgraded =
            hyper::upgrade::on(response).await.map_err(ControlError::connection_ended)?;
        handshake(TokioIo::new(upgraded), initiation).await
    }
}

async fn handshake(
    mut stream: impl Stream + 'static,
    initiation: Initiation,
) -> Result<NoiseStream<Box<dyn Stream>>, ControlError> {
    let mut header = [0; REPLY_HEADER];
    stream.read_exact(&mut header).await.map_err(ControlError::connection_ended)?;
    match Reply::read(header)? {
        Reply::Accepted => {
            let mut reply = [0; REPLY];
            stream.read_exact(&mut reply).await.map_err(ControlError::connection_ended)?;
            let (sealer, opener) = initiation.finish(&reply)?;
            Ok(NoiseStream::of_member(Box::new(stream), sealer, opener))
        }
        Reply::Refused(length) => {
            let mut text = vec![0; length];
            stream.read_exact(&mut text).await.map_err(ControlError::connection_ended)?;
            Err(ControlError::HandshakeRefused(printable(&text)))
        }
    }
}

/// The error that a response with another status than 200 stands for.
async fn refusal(what: &'static str, response: Response<Incoming>) -> ControlError {
    let (head, body) = response.into_parts();
    if head.status == StatusCode::TOO_MANY_REQUESTS {
        let wait = head.headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        let wait =
            wait.filter(|wait| (1..=MAX_RETRY_AFTER).contains(wait)).unwrap_or(DEFAULT_RETRY_AFTER);
        return ControlError::Busy(Duration::from_secs(wait));
    }
    let text = collect(what, body).await.unwrap_or_default();
    let text = if text.is_empty() { String::new() } else { printable(&text) };
    // headscale: `hscontrol/noise.go`.
    if text.contains("unsupported client version") {
        return ControlError::ClientTooOld(text);
    }
    ControlError::Status(what, head.status.as_u16(), text)
}

/// Reads a response except maps.
pub(super) async fn collect(what: &'static str, body: Incoming) -> Result<Bytes, ControlError> {
    collect_up_to(MAX_ANSWER, what, body).await
}

/// As [`collect`], with another limit in bytes.
pub(super) async fn collect_up_to(
    max_len: usize,
    what: &'static str,
    body: Incoming,
) -> Result<Bytes, ControlError> {
    match timeout(ANSWER_TIMEOUT, Limited::new(body, max_len).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(ControlError::BadResponse(what, error.to_string())),
        Err(_) => Err(ControlError::NoAnswer("the coordinator".into(), what)),
    }
}
