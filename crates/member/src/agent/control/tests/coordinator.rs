//! A coordinator in the test's own process: what it answers is the test's script.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
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
    control::{
        noise::prologue,
        record::{Opener, Sealer},
    },
    keys::{MachineKey, MachinePublic},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy_bidirectional, duplex},
    sync::{Notify, mpsc, oneshot},
    time::timeout,
};
use zeroize::Zeroizing;

use super::super::{
    connection::Carrier,
    dial::{Stream, Target},
    stream::NoiseStream,
    trouble::Trouble,
};

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
    /// It has no key.
    TooOld,
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

/// The body of a map's stream.
pub struct MapStream(mpsc::Sender<Bytes>);

impl MapStream {
    pub async fn send(&self, map: &Value) {
        let packed = compress_to_vec(map.to_string().as_bytes(), CompressionLevel::Fastest);
        self.raw(&framed(&packed)).await;
    }

    pub async fn raw(&self, bytes: &[u8]) {
        self.0.send(Bytes::copy_from_slice(bytes)).await.expect("the member follows the stream");
    }
}

pub fn framed(packed: &[u8]) -> Vec<u8> {
    [&u32::try_from(packed.len()).unwrap().to_le_bytes(), packed].concat()
}

/// The coordinator, and what it is reached by.
pub struct Coordinator {
    shared: Arc<Shared>,
    asked: mpsc::Receiver<Asked>,
}

struct Shared {
    manner: Mutex<Manner>,
    targets: Mutex<Vec<Target>>,
    asked: mpsc::Sender<Asked>,
    cut: Notify,
}

/// Its network.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

impl Coordinator {
    pub fn new(manner: Manner) -> Self {
        let (sender, asked) = mpsc::channel(16);
        let shared = Shared {
            manner: Mutex::new(manner),
            targets: Mutex::default(),
            asked: sender,
            cut: Notify::new(),
        };
        Self { shared: Arc::new(shared), asked }
    }

    pub fn network(&self) -> Network {
        Network(Arc::clone(&self.shared))
    }

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Nothing passes by the connections of now any more, and no end is told.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Where the member connected to since the last time.
    pub fn targets(&self) -> Vec<Target> {
        std::mem::take(&mut *self.shared.targets.lock().unwrap())
    }

    /// The next request over HTTP/2.
    pub async fn asked(&mut self) -> Asked {
        let next = timeout(Duration::from_secs(3600), self.asked.recv()).await;
        next.expect("the member asks something").expect("the network stands")
    }

    /// The next request to register. Updates before it are answered.
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

impl Carrier for Network {
    async fn open(&self, target: Target) -> Result<Box<dyn Stream>, Trouble> {
        self.0.targets.lock().unwrap().push(target);
        let manner = self.0.manner.lock().unwrap().clone();
        if manner == Manner::NeverConnects {
            std::future::pending::<()>().await;
        }
        let (ours, mut near) = duplex(16 << 10);
        let (mut far, theirs) = duplex(16 << 10);
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                () = shared.cut.notified() => std::future::pending().await,
            }
        });
        tokio::spawn(serve(theirs, manner, Arc::clone(&self.0)));
        Ok(Box::new(ours))
    }
}

async fn serve(mut stream: DuplexStream, manner: Manner, shared: Arc<Shared>) {
    match &manner {
        Manner::NeverAnswers => return std::future::pending().await,
        Manner::Says(bytes) => {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(bytes).await;
            return std::future::pending().await;
        }
        _ => {}
    }
    let keep_alive = manner != Manner::Closes;
    let service = service_fn(move |request| answer(request, manner.clone(), Arc::clone(&shared)));
    let connection = http1::Builder::new()
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let _ = connection.await;
}

fn key() -> MachineKey {
    MachineKey::new(Box::new(Zeroizing::new([9; 32])))
}

async fn answer(
    mut request: Request<Incoming>,
    manner: Manner,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/key" {
        assert_eq!(request.uri().query(), Some("v=119"));
        let public =
            if manner == Manner::TooOld { MachinePublic::default() } else { key().public() };
        let keys = json!({ "legacyPublicKey": MachinePublic::default(), "publicKey": public });
        return Ok(Response::new(Full::from(keys.to_string())));
    }
    assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/ts2021"));
    let message = Base64::decode_vec(request.headers()["x-tailscale-handshake"].to_str().unwrap());
    let message = message.unwrap();
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        speak(TokioIo::new(upgraded), &message, manner, shared).await;
    });
    Ok(Response::builder()
        .status(101)
        .header(UPGRADE, "tailscale-control-protocol")
        .header(CONNECTION, "upgrade")
        .body(Full::default())
        .unwrap())
}

/// Noise, the early payload in records of a byte, then HTTP/2.
async fn speak(mut stream: impl Stream, message: &[u8], manner: Manner, shared: Arc<Shared>) {
    let mut state = snow::Builder::new("Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().unwrap())
        .prologue(prologue(u16::from_be_bytes([message[0], message[1]])).as_bytes())
        .unwrap()
        .local_private_key(key().bytes())
        .unwrap()
        .build_responder()
        .unwrap();
    state.read_message(&message[5..], &mut [0; 128]).unwrap();
    let mut reply = [2, 0, 48].to_vec();
    reply.resize(51, 0);
    state.write_message(&[], &mut reply[3..]).unwrap();
    if let Manner::RepliesWith(bytes) = &manner {
        reply.clone_from(bytes);
    }
    stream.write_all(&reply).await.unwrap();
    match manner {
        Manner::RepliesWith(_) | Manner::ThenSilent => return std::future::pending().await,
        Manner::ThenSays(bytes) => {
            let _ = stream.write_all(&bytes).await;
            return std::future::pending().await;
        }
        _ => {}
    }
    let keys = Arc::new(state.into_stateless_transport_mode().unwrap());
    let (sealer, opener) = (Sealer::new(Arc::clone(&keys)), Opener::new(keys));
    let mut stream = NoiseStream::of_coordinator(stream, sealer, opener);
    for byte in b"\xff\xff\xffTS\0\0\0\x02{}" {
        stream.write_all(&[*byte]).await.unwrap();
    }
    let service = service_fn(move |request| take(request, Arc::clone(&shared)));
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Hands a request to the script.
async fn take(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Answer>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (reply, replied) = oneshot::channel();
    let path = head.uri.path_and_query().unwrap().to_string();
    let _ = shared.asked.send(Asked { method: head.method, path, body, reply }).await;
    Ok(match replied.await {
        Ok(Reply::Status(status, text)) => {
            Response::builder().status(status).body(Answer::Text(Some(text.into()))).unwrap()
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
