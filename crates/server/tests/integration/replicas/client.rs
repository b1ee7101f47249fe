//! A client of the control protocol: Noise after an upgrade, HTTP/2, and JSON in zstd.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail, ensure};
use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use serde_json::{Value, json};
use tailnet::{
    keys::{DiscoPublic, MachineKey, MachinePublic, NodePublic},
    ts2021::{
        map_frames::FrameReader,
        noise_handshake::{Initiation, REPLY, REPLY_HEADER, Reply},
        noise_stream::NoiseStream,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A server that is silent for this time is considered dead.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine.
#[derive(Clone)]
pub(super) struct Machine {
    number: u16,
    key: [u8; 32],
    server: MachinePublic,
    /// Name of the stream that it follows, and its position.
    pub position: Option<(String, i64)>,
}

/// A stream of maps.
pub(super) struct Maps {
    body: Incoming,
    reader: FrameReader,
    /// The first map.
    pub first: Value,
}

/// Position of a map in the stream.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "MapSessionHandle")]
    handle: Option<String>,
    #[serde(rename = "Seq")]
    seq: Option<i64>,
}

type Sender = http2::SendRequest<Full<Bytes>>;

impl Machine {
    pub(super) fn new(number: u16, server: MachinePublic) -> Self {
        let mut key = [9; 32];
        // Curve25519 ignores the lowest bits of the first byte.
        key[4..6].copy_from_slice(&number.to_le_bytes());
        Self { number, key, server, position: None }
    }

    /// Its node key, as in maps.
    pub(super) fn node_key(&self) -> Value {
        json!(NodePublic(self.key))
    }

    /// Joins the network.
    pub(super) async fn join(&self, at: SocketAddr, auth_key: &str) -> anyhow::Result<()> {
        let mut sender = self.connect(at).await?;
        let request = json!({
            "Version": 131, "NodeKey": NodePublic(self.key), "Auth": { "AuthKey": auth_key },
            "Hostinfo": { "OS": "linux", "Hostname": format!("host-{}", self.number) },
        });
        let answer = post(&mut sender, "/machine/register", &request).await?;
        let answer = answer.into_body().collect().await?.to_bytes();
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!(answer["Error"] == "", "{}", answer["Error"]);
        self.send_endpoints(&mut sender).await
    }

    async fn send_endpoints(&self, sender: &mut Sender) -> anyhow::Result<()> {
        let request = json!({
            "Version": 131, "NodeKey": NodePublic(self.key), "DiscoKey": DiscoPublic(self.key),
            "Hostinfo": { "OS": "linux", "Hostname": format!("host-{}", self.number) },
            "OmitPeers": true, "Endpoints": [format!("192.0.2.1:{}", self.number + 1)],
        });
        let answer = post(sender, "/machine/map", &request).await?;
        answer.into_body().collect().await?;
        Ok(())
    }

    /// Changes its endpoints.
    pub(super) async fn move_to(&self, at: SocketAddr, port: u16) -> anyhow::Result<()> {
        let mut sender = self.connect(at).await?;
        let request = json!({
            "Version": 131, "NodeKey": NodePublic(self.key), "DiscoKey": DiscoPublic(self.key),
            "Hostinfo": { "OS": "linux", "Hostname": format!("host-{}", self.number) },
            "OmitPeers": true, "Endpoints": [format!("198.51.100.1:{port}")],
        });
        let answer = post(&mut sender, "/machine/map", &request).await?;
        answer.into_body().collect().await?;
        Ok(())
    }

    /// Follows the network, and resumes its stream if the server can.
    pub(super) async fn follow(&mut self, at: SocketAddr) -> anyhow::Result<Maps> {
        let mut sender = self.connect(at).await?;
        let mut request = json!({
            "Version": 131, "NodeKey": NodePublic(self.key), "DiscoKey": DiscoPublic(self.key),
            "Stream": true, "Compress": "zstd",
        });
        if let Some((handle, seq)) = &self.position {
            (request["MapSessionHandle"], request["MapSessionSeq"]) = (json!(handle), json!(seq));
        }
        let body = post(&mut sender, "/machine/map", &request).await?.into_body();
        let mut maps = Maps { body, reader: FrameReader::default(), first: Value::Null };
        maps.first = maps.next().await?;
        let handle = maps.first["MapSessionHandle"].as_str().context("a stream has a name")?;
        let seq = maps.first["Seq"].as_i64().context("a map has a number")?;
        self.position = Some((handle.to_owned(), seq));
        Ok(maps)
    }

    async fn connect(&self, at: SocketAddr) -> anyhow::Result<Sender> {
        timeout(PATIENCE, self.try_connect(at)).await.context("it does not answer")?
    }

    async fn try_connect(&self, at: SocketAddr) -> anyhow::Result<Sender> {
        let machine = MachineKey::new(Box::new(self.key.into()));
        let random = [7; 32].into();
        let (initiation, message) = Initiation::new(&machine, &self.server, 131, random)?;
        let message = Base64::encode_string(&message);
        let mut stream = TcpStream::connect(at).await?;
        let head = format!(
            "POST /ts2021 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\
             Upgrade: tailscale-control-protocol\r\nX-Tailscale-Handshake: {message}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await?);
        }
        ensure!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        let mut header = [0; REPLY_HEADER];
        stream.read_exact(&mut header).await?;
        if Reply::read(header)? != Reply::Accepted {
            bail!("refused");
        }
        let mut reply = [0; REPLY];
        stream.read_exact(&mut reply).await?;
        let (sealer, opener) = initiation.finish(&reply)?;
        let stream = TokioIo::new(NoiseStream::of_member(stream, sealer, opener));
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Maps {
    /// The next map.
    pub(super) async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            let frame: Value = serde_json::from_slice(&self.frame().await?)?;
            if frame.get("KeepAlive").is_none() {
                return Ok(frame);
            }
        }
    }

    /// Reads until the stream ends, and notes the position. Maps are not stored, because there
    /// is no memory for those of thousands of clients.
    pub(super) async fn drain(&mut self, machine: &mut Machine) {
        self.first.take();
        while let Ok(frame) = self.frame().await {
            let Head { handle, seq } = serde_json::from_slice(&frame).expect("a frame is JSON");
            if let Some((own, position)) = &mut machine.position {
                *position = seq.unwrap_or(*position);
                *own = handle.unwrap_or_else(|| std::mem::take(own));
            }
        }
    }

    async fn frame(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(frame) = self.reader.poll_frame()? {
                return Ok(frame);
            }
            let frame = self.body.frame().await.context("the stream has ended")??;
            if let Ok(bytes) = frame.into_data() {
                self.reader.handle_bytes(&bytes);
            }
        }
    }

    /// Whether the first map was a full map.
    pub(super) fn is_full_map(&self) -> bool {
        self.first.get("Debug").is_some()
    }
}

async fn post(
    sender: &mut Sender,
    path: &str,
    request: &Value,
) -> anyhow::Result<Response<Incoming>> {
    let request = Request::post(format!("https://a{path}"))
        .body(Full::new(Bytes::from(request.to_string())))?;
    let answer = timeout(PATIENCE * 2, sender.send_request(request));
    let answer = answer.await.context("it does not answer")??;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    Ok(answer)
}

/// Repeats an action until it succeeds, as clients do. This is a macro, because the future of a
/// function that takes an `AsyncFnMut` cannot be shown to be `Send`.
macro_rules! retry {
    ($attempt:pat => $act:expr) => {{
        let mut attempts = 0_usize;
        loop {
            let $attempt = attempts;
            match $act.await {
                Ok(done) => break done,
                Err(why) => assert!(attempts < 300, "{why:#}"),
            }
            attempts += 1;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }};
}
pub(crate) use retry;
