//! A coordinator with answers from the test's script.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Body, Frame, Incoming},
    header::{CONNECTION, UPGRADE},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use tailnet::{
    keys::{MachineKey, MachinePublic},
    ts2021::{noise_handshake, noise_stream::NoiseStream},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use zeroize::Zeroizing;

/// Longer than any expected event: a script that waits this long fails the test.
const FOREVER: Duration = Duration::from_secs(3600);

/// Behaviour of the coordinator before HTTP/2.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Behaviour {
    #[default]
    Good,
    /// Connections are never established.
    NeverConnects,
    /// It accepts the connection and does not answer.
    NeverAnswers,
    /// It answers every request with these bytes.
    Sends(Vec<u8>),
    /// It answers every request with these bytes again and again, one byte per interval.
    Drips(Vec<u8>, Duration),
    /// It does not support ts2021.
    TooOld,
    /// It has another key, as if another server answered at its address.
    Impostor,
    /// It answers the first Noise message with these bytes.
    RepliesWith(Vec<u8>),
    /// After the handshake, it sends these bytes instead of records.
    ThenSends(Vec<u8>),
    /// After the handshake, it does not answer.
    ThenSilent,
    /// It closes the connection after each answer.
    Closes,
}

/// A member's request, which the test answers.
pub struct MemberRequest {
    pub method: Method,
    pub path: String,
    pub body: Value,
    reply: oneshot::Sender<Reply>,
}

enum Reply {
    Status(u16, String),
    Stream(mpsc::Receiver<Bytes>),
}

impl MemberRequest {
    pub fn json(self, value: &Value) {
        self.status(200, &value.to_string());
    }

    pub fn status(self, status: u16, text: &str) {
        let _ = self.reply.send(Reply::Status(status, text.into()));
    }

    pub fn stream(self) -> MapStream {
        let (pieces, body) = mpsc::channel(16);
        let _ = self.reply.send(Reply::Stream(body));
        MapStream(pieces)
    }

    pub fn is_stream(&self) -> bool {
        self.body["Stream"] == true
    }
}

/// The body of a map stream.
#[derive(Clone)]
pub struct MapStream(mpsc::Sender<Bytes>);

impl MapStream {
    /// # Panics
    /// If the member does not read the stream.
    pub async fn send(&self, map: &Value) {
        self.raw(&packed(map)).await;
    }

    /// # Panics
    /// If the member does not read the stream.
    pub async fn raw(&self, bytes: &[u8]) {
        assert!(self.offers(bytes).await, "the member reads the stream");
    }

    /// Sends bytes. Returns whether the member reads the stream.
    pub async fn offers(&self, bytes: &[u8]) -> bool {
        self.0.send(Bytes::copy_from_slice(bytes)).await.is_ok()
    }
}

/// A frame of the stream with a map.
pub fn packed(map: &Value) -> Vec<u8> {
    framed(&compress_to_vec(map.to_string().as_bytes(), CompressionLevel::Fastest))
}

/// A frame of the stream.
///
/// # Panics
/// If it is too long for the length field.
pub fn framed(packed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(packed.len()).expect("a test's frame is short");
    [&length.to_le_bytes(), packed].concat()
}

/// A coordinator.
pub struct Coordinator {
    acceptor: Acceptor,
    requests: mpsc::Receiver<MemberRequest>,
}

/// Accepts connections to the coordinator.
#[derive(Clone)]
pub struct Acceptor(Arc<Shared>);

struct Shared {
    behaviour: Mutex<Behaviour>,
    requests: mpsc::Sender<MemberRequest>,
}

impl Coordinator {
    pub fn new(behaviour: Behaviour) -> Self {
        let (sender, requests) = mpsc::channel(16);
        let shared = Shared { behaviour: Mutex::new(behaviour), requests: sender };
        Self { acceptor: Acceptor(Arc::new(shared)), requests }
    }

    pub fn acceptor(&self) -> Acceptor {
        self.acceptor.clone()
    }

    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.acceptor.set_behaviour(behaviour);
    }

    /// Waits for the next request over HTTP/2.
    ///
    /// # Panics
    /// If none arrives.
    pub async fn next_request(&mut self) -> MemberRequest {
        let next = timeout(FOREVER, self.requests.recv()).await;
        next.expect("the member sends a request").expect("the acceptor exists")
    }

    /// Waits for the next registration. Answers updates before it.
    ///
    /// # Panics
    /// If another request arrives.
    pub async fn next_registration(&mut self) -> MemberRequest {
        loop {
            let request = self.next_request().await;
            if request.path == "/machine/register" {
                assert_eq!(request.method, Method::POST);
                return request;
            }
            assert!(!request.is_stream());
            request.status(200, "");
        }
    }

    /// Waits for the next request for a map stream. Answers updates before it.
    ///
    /// # Panics
    /// If another request arrives.
    pub async fn next_map_stream(&mut self) -> MemberRequest {
        loop {
            let request = self.next_request().await;
            assert_eq!(request.path, "/machine/map");
            if request.is_stream() {
                return request;
            }
            request.status(200, "");
        }
    }

    /// Waits for the next request about tailnet lock. Answers updates before it.
    ///
    /// # Panics
    /// If another request arrives.
    pub async fn next_tka_request(&mut self) -> MemberRequest {
        loop {
            let request = self.next_request().await;
            if request.path.starts_with("/machine/tka/") {
                return request;
            }
            assert!(request.path == "/machine/map" && !request.is_stream());
            request.status(200, "");
        }
    }

    /// Waits for the next update.
    ///
    /// # Panics
    /// If another request arrives.
    pub async fn next_update(&mut self) -> MemberRequest {
        let request = self.next_request().await;
        assert_eq!((request.path.as_str(), request.is_stream()), ("/machine/map", false));
        request
    }

    /// Whether no request arrives during this time.
    pub async fn is_idle_for(&mut self, time: Duration) -> bool {
        timeout(time, self.requests.recv()).await.is_err()
    }
}

impl Acceptor {
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        *self.0.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = behaviour;
    }

    pub fn behaviour(&self) -> Behaviour {
        self.0.behaviour.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves a connection with the current behaviour, to its end.
    pub async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let behaviour = self.behaviour();
        match &behaviour {
            Behaviour::NeverConnects | Behaviour::NeverAnswers => {
                return std::future::pending().await;
            }
            Behaviour::Sends(bytes) => {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes).await;
                return std::future::pending().await;
            }
            Behaviour::Drips(bytes, rest) => {
                let _ = stream.read(&mut [0; 1024]).await;
                for byte in bytes.iter().cycle() {
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    sleep(*rest).await;
                }
            }
            _ => {}
        }
        let keep_alive = behaviour != Behaviour::Closes;
        let service = service_fn(move |request| answer(request, behaviour.clone(), self.clone()));
        let connection = http1::Builder::new()
            .keep_alive(keep_alive)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let _ = connection.await;
    }
}

/// The coordinator's key.
pub fn public_key() -> MachinePublic {
    key(&Behaviour::Good).public()
}

/// The key of the server with this behaviour.
fn key(behaviour: &Behaviour) -> MachineKey {
    let seed = if *behaviour == Behaviour::Impostor { 10 } else { 9 };
    MachineKey::new(Box::new(Zeroizing::new([seed; 32])))
}

async fn answer(
    mut request: Request<Incoming>,
    behaviour: Behaviour,
    acceptor: Acceptor,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/key" {
        assert_eq!(request.uri().query(), Some("v=121"));
        let public = match behaviour {
            Behaviour::TooOld => MachinePublic::default(),
            _ => key(&behaviour).public(),
        };
        let keys = json!({ "legacyPublicKey": MachinePublic::default(), "publicKey": public });
        return Ok(Response::new(Full::from(keys.to_string())));
    }
    assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/ts2021"));
    let message = request.headers()["x-tailscale-handshake"].as_bytes();
    let message = Base64::decode_vec(&String::from_utf8_lossy(message));
    let message = message.expect("a member writes base64");
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.expect("the answer said so");
        // The member may close the connection.
        let _ = serve_noise(TokioIo::new(upgraded), &message, behaviour, acceptor).await;
    });
    Ok(Response::builder()
        .status(101)
        .header(UPGRADE, "tailscale-control-protocol")
        .header(CONNECTION, "upgrade")
        .body(Full::default())
        .expect("the headers are valid"))
}

/// Serves Noise, the early payload in records of one byte, then HTTP/2.
async fn serve_noise(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    message: &[u8],
    behaviour: Behaviour,
    acceptor: Acceptor,
) -> std::io::Result<()> {
    let response =
        noise_handshake::Response::new(&key(&behaviour), message, Zeroizing::new([11; 32]));
    let response = response.expect("a member starts Noise");
    match &behaviour {
        Behaviour::RepliesWith(bytes) => stream.write_all(bytes).await?,
        _ => stream.write_all(&response.reply).await?,
    }
    match behaviour {
        Behaviour::RepliesWith(_) | Behaviour::ThenSilent => return std::future::pending().await,
        Behaviour::ThenSends(bytes) => {
            stream.write_all(&bytes).await?;
            return std::future::pending().await;
        }
        _ => {}
    }
    let mut plain = NoiseStream::of_coordinator(stream, response.sealer, response.opener);
    for byte in b"\xff\xff\xffTS\0\0\0\x02{}" {
        // Each byte is its own record.
        plain.write_all(&[*byte]).await?;
        plain.flush().await?;
    }
    let service = service_fn(move |request| hand_over(request, acceptor.clone()));
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(plain), service)
        .await;
    served.map_err(std::io::Error::other)
}

/// Passes a request to the script.
async fn hand_over(
    request: Request<Incoming>,
    Acceptor(shared): Acceptor,
) -> Result<Response<Answer>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (reply, replied) = oneshot::channel();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let _ = shared.requests.send(MemberRequest { method: head.method, path, body, reply }).await;
    Ok(match replied.await {
        Ok(Reply::Status(status, text)) => {
            let mut response = Response::new(Answer::Text(Some(text.into())));
            *response.status_mut() = status.try_into().expect("a script's status is valid");
            response
        }
        Ok(Reply::Stream(pieces)) => Response::new(Answer::Pieces(pieces)),
        // The script dropped the request, which is never answered.
        Err(_) => std::future::pending().await,
    })
}

enum Answer {
    Text(Option<Bytes>),
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Pieces(pieces) => {
                pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }
}
