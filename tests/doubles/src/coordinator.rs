//! A coordinator: what it answers is the test's script.

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
    control::{noise, stream::NoiseStream},
    keys::{MachineKey, MachinePublic},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use zeroize::Zeroizing;

/// Longer than anything that a test waits for: what a script waits for in vain fails the test.
const FOREVER: Duration = Duration::from_secs(3600);

/// How the coordinator behaves before HTTP/2.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Manner {
    #[default]
    Good,
    /// The name leads nowhere, and nothing says so.
    NeverConnects,
    /// It takes the connection and is silent.
    NeverAnswers,
    /// It answers all with these bytes.
    Says(Vec<u8>),
    /// It answers all with these bytes again and again, one each time.
    Drips(Vec<u8>, Duration),
    /// It has no key.
    TooOld,
    /// It has another key: another server answers at its address.
    Impostor,
    /// It answers the first Noise message with these bytes.
    RepliesWith(Vec<u8>),
    /// After the handshake, it sends these bytes instead of records.
    ThenSays(Vec<u8>),
    /// After the handshake, it is silent.
    ThenSilent,
    /// It closes the connection behind each answer.
    Closes,
}

/// A request of the member, to be answered.
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub body: Value,
    reply: oneshot::Sender<Reply>,
}

enum Reply {
    Status(u16, String),
    Stream(mpsc::Receiver<Bytes>),
}

impl Asked {
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

/// The body of a map's stream; clones are the same.
#[derive(Clone)]
pub struct MapStream(mpsc::Sender<Bytes>);

impl MapStream {
    /// # Panics
    /// When the member does not follow the stream.
    pub async fn send(&self, map: &Value) {
        self.raw(&packed(map)).await;
    }

    /// # Panics
    /// When the member does not follow the stream.
    pub async fn raw(&self, bytes: &[u8]) {
        assert!(self.offers(bytes).await, "the member follows the stream");
    }

    /// Sends bytes; whether the member follows the stream.
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
/// When it is longer than a frame can say.
pub fn framed(packed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(packed.len()).expect("a test's frame is not so long");
    [&length.to_le_bytes(), packed].concat()
}

/// A coordinator.
pub struct Coordinator {
    door: Door,
    asked: mpsc::Receiver<Asked>,
}

/// Where connections to it come in.
#[derive(Clone)]
pub struct Door(Arc<Shared>);

struct Shared {
    manner: Mutex<Manner>,
    asked: mpsc::Sender<Asked>,
}

impl Coordinator {
    pub fn new(manner: Manner) -> Self {
        let (sender, asked) = mpsc::channel(16);
        let shared = Shared { manner: Mutex::new(manner), asked: sender };
        Self { door: Door(Arc::new(shared)), asked }
    }

    pub fn door(&self) -> Door {
        self.door.clone()
    }

    pub fn behave(&self, manner: Manner) {
        self.door.behave(manner);
    }

    /// The next request over HTTP/2.
    ///
    /// # Panics
    /// When there is none.
    pub async fn asked(&mut self) -> Asked {
        let next = timeout(FOREVER, self.asked.recv()).await;
        next.expect("the member asks something").expect("the door stands")
    }

    /// The next request to register. Updates before it are answered.
    ///
    /// # Panics
    /// When something else is asked.
    pub async fn registers(&mut self) -> Asked {
        loop {
            let asked = self.asked().await;
            if asked.path == "/machine/register" {
                assert_eq!(asked.method, Method::POST);
                return asked;
            }
            assert!(!asked.is_stream());
            asked.status(200, "");
        }
    }

    /// The next request for a stream. Updates before it are answered.
    ///
    /// # Panics
    /// When something else is asked.
    pub async fn streams(&mut self) -> Asked {
        loop {
            let asked = self.asked().await;
            assert_eq!(asked.path, "/machine/map");
            if asked.is_stream() {
                return asked;
            }
            asked.status(200, "");
        }
    }

    /// The next question about tailnet lock. Updates before it are answered.
    ///
    /// # Panics
    /// When something else is asked.
    pub async fn is_asked(&mut self) -> Asked {
        loop {
            let asked = self.asked().await;
            if asked.path.starts_with("/machine/tka/") {
                return asked;
            }
            assert!(asked.path == "/machine/map" && !asked.is_stream());
            asked.status(200, "");
        }
    }

    /// The next update.
    ///
    /// # Panics
    /// When something else is asked.
    pub async fn is_told(&mut self) -> Asked {
        let asked = self.asked().await;
        assert_eq!((asked.path.as_str(), asked.is_stream()), ("/machine/map", false));
        asked
    }

    /// Whether nothing is asked for so long.
    pub async fn is_left_alone(&mut self, time: Duration) -> bool {
        timeout(time, self.asked.recv()).await.is_err()
    }
}

impl Door {
    pub fn behave(&self, manner: Manner) {
        *self.0.manner.lock().unwrap_or_else(PoisonError::into_inner) = manner;
    }

    pub fn manner(&self) -> Manner {
        self.0.manner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves a connection in the manner of now, to its end.
    pub async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let manner = self.manner();
        match &manner {
            Manner::NeverConnects | Manner::NeverAnswers => return std::future::pending().await,
            Manner::Says(bytes) => {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes).await;
                return std::future::pending().await;
            }
            Manner::Drips(bytes, rest) => {
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
        let keep_alive = manner != Manner::Closes;
        let service = service_fn(move |request| answer(request, manner.clone(), self.clone()));
        let connection = http1::Builder::new()
            .keep_alive(keep_alive)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let _ = connection.await;
    }
}

/// The coordinator's key.
pub fn public_key() -> MachinePublic {
    key(&Manner::Good).public()
}

/// The key of the server that answers.
fn key(manner: &Manner) -> MachineKey {
    let seed = if *manner == Manner::Impostor { 10 } else { 9 };
    MachineKey::new(Box::new(Zeroizing::new([seed; 32])))
}

async fn answer(
    mut request: Request<Incoming>,
    manner: Manner,
    door: Door,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/key" {
        assert_eq!(request.uri().query(), Some("v=121"));
        let public = match manner {
            Manner::TooOld => MachinePublic::default(),
            _ => key(&manner).public(),
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
        // A member that ends the connection is none of the script's.
        let _ = speak(TokioIo::new(upgraded), &message, manner, door).await;
    });
    Ok(Response::builder()
        .status(101)
        .header(UPGRADE, "tailscale-control-protocol")
        .header(CONNECTION, "upgrade")
        .body(Full::default())
        .expect("the headers are sound"))
}

/// Noise, the early payload in records of a byte, then HTTP/2.
async fn speak(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    message: &[u8],
    manner: Manner,
    door: Door,
) -> std::io::Result<()> {
    let response = noise::Response::new(&key(&manner), message, Zeroizing::new([11; 32]));
    let response = response.expect("a member begins Noise");
    match &manner {
        Manner::RepliesWith(bytes) => stream.write_all(bytes).await?,
        _ => stream.write_all(&response.reply).await?,
    }
    match manner {
        Manner::RepliesWith(_) | Manner::ThenSilent => return std::future::pending().await,
        Manner::ThenSays(bytes) => {
            stream.write_all(&bytes).await?;
            return std::future::pending().await;
        }
        _ => {}
    }
    let mut plain = NoiseStream::of_coordinator(stream, response.sealer, response.opener);
    for byte in b"\xff\xff\xffTS\0\0\0\x02{}" {
        // Each is a record of its own.
        plain.write_all(&[*byte]).await?;
        plain.flush().await?;
    }
    let service = service_fn(move |request| take(request, door.clone()));
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(plain), service)
        .await;
    served.map_err(std::io::Error::other)
}

/// Hands a request to the script.
async fn take(
    request: Request<Incoming>,
    Door(shared): Door,
) -> Result<Response<Answer>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (reply, replied) = oneshot::channel();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let _ = shared.asked.send(Asked { method: head.method, path, body, reply }).await;
    Ok(match replied.await {
        Ok(Reply::Status(status, text)) => {
            let mut response = Response::new(Answer::Text(Some(text.into())));
            *response.status_mut() = status.try_into().expect("a script's status is one");
            response
        }
        Ok(Reply::Stream(pieces)) => Response::new(Answer::Pieces(pieces)),
        // The script let it fall: it is never answered.
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
