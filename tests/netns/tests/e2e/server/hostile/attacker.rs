//! An attacker of the server, on its own host.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use netns::{Family, Host, Switch};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tailnet::keys::{MachineKey, MachinePublic};
use tailnet::ts2021::noise_handshake::{Initiation, REPLY, REPLY_HEADER};
use tailnet::ts2021::noise_stream::NoiseStream;
use tailnet::ts2021::{HANDSHAKE_HEADER, UPGRADE_PROTOCOL};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time in which a server answers or closes the connection.
pub(super) const ANSWER: Duration = Duration::from_secs(20);
/// A supported version.
const VERSION: u16 = 131;

pub(super) type Tls = TlsStream<TcpStream>;
/// The body of a request.
pub(super) type Sent = BoxBody<Bytes, Infallible>;
pub(super) type Http2 = SendRequest<Sent>;

/// A body of this many one-byte pieces, which does not end after them.
pub(super) struct Endless(pub u32);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Pending;
        }
        self.0 -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
    }
}

/// The means of an attack.
#[derive(Clone)]
pub(super) struct Attacker {
    tls: TlsConnector,
    at: SocketAddr,
    name: ServerName<'static>,
    pub server: MachinePublic,
}

impl Attacker {
    /// Runs an attack from a host's network to its end.
    pub(super) fn run<F: Future<Output = ()>>(host: &Host, attack: impl FnOnce(Self) -> F + Send) {
        let authority = host.read("/run/rig/ca.pem");
        host.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                attack(Self::new(&authority).await).await;
            });
        });
    }

    async fn new(authority: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.as_bytes()).expect("the rig's");
        roots.add(authority).expect("the rig's authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = Switch::coordinator().of(Family::V4).to_owned();
        let mut attacker = Self {
            tls: TlsConnector::from(Arc::new(config)),
            at: format!("{host}:443").parse().expect("an address"),
            name: ServerName::try_from(host).expect("an address"),
            server: MachinePublic::default(),
        };
        let output =
            attacker.answer_to(b"GET /key?v=131 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let output = output.await;
        let json = output.split("\r\n\r\n").nth(1).unwrap_or_default();
        let keys: Value = serde_json::from_str(json).expect("the server's keys");
        attacker.server = serde_json::from_value(keys["publicKey"].clone()).expect("a key");
        attacker
    }

    pub(super) async fn tcp(&self) -> Option<TcpStream> {
        timeout(ANSWER, TcpStream::connect(self.at)).await.ok()?.ok()
    }

    pub(super) async fn tls(&self) -> Option<Tls> {
        let stream = self.tcp().await?;
        timeout(ANSWER, self.tls.connect(self.name.clone(), stream)).await.ok()?.ok()
    }

    /// The server's answer to these bytes, until it closes the connection or is silent for long.
    pub(super) async fn answer_to(&self, bytes: &[u8]) -> String {
        let Some(mut stream) = self.tls().await else { return String::new() };
        let mut output = Vec::new();
        // It may close the connection after the first bytes.
        let _ = stream.write_all(bytes).await;
        let _ = timeout(ANSWER, stream.read_to_end(&mut output)).await;
        String::from_utf8_lossy(&output).into_owned()
    }

    /// A connection on which these bytes were sent.
    pub(super) async fn connect_and_send(&self, bytes: &[u8]) -> Option<Tls> {
        let mut stream = self.tls().await?;
        stream.write_all(bytes).await.ok()?;
        stream.flush().await.ok()?;
        Some(stream)
    }

    /// A first Noise message for the server with this key.
    pub(super) fn first_message(
        machine: &MachineKey,
        server: &MachinePublic,
    ) -> (Initiation, Vec<u8>) {
        let made = Initiation::new(machine, server, VERSION, [3; 32].into());
        let (initiation, message) = made.expect("the key is not zero");
        (initiation, message.to_vec())
    }

    /// An upgrade by POST with this first message; returns the stream behind the answer's head.
    pub(super) async fn upgrade(&self, message: &[u8]) -> Option<Tls> {
        let mut stream = self.tls().await?;
        let request = format!(
            "POST /ts2021 HTTP/1.1\r\nHost: a\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n\
             Connection: upgrade\r\n{HANDSHAKE_HEADER}: {}\r\nContent-Length: 0\r\n\r\n",
            Base64::encode_string(message)
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(ANSWER, stream.read_u8()).await.ok()?.ok()?);
        }
        head.starts_with(b"HTTP/1.1 101").then_some(stream)
    }

    /// HTTP/2 in Noise, as a machine.
    pub(super) async fn http2(&self, machine: &MachineKey) -> Option<Http2> {
        let (initiation, message) = Self::first_message(machine, &self.server);
        let mut stream = self.upgrade(&message).await?;
        let mut header = [0; REPLY_HEADER];
        stream.read_exact(&mut header).await.ok()?;
        let mut reply = [0; REPLY];
        stream.read_exact(&mut reply).await.ok()?;
        let (sealer, opener) = initiation.finish(&reply).ok()?;
        let stream = TokioIo::new(NoiseStream::of_member(stream, sealer, opener));
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }
}

/// Posts a body. Returns status and answer if the server answers.
pub(super) async fn post(to: &Http2, path: &str, body: impl Into<Bytes>) -> Option<(u16, Value)> {
    let request =
        Request::post(format!("https://a{path}")).body(Full::new(body.into()).boxed()).ok()?;
    let response = timeout(ANSWER, to.clone().send_request(request)).await.ok()?.ok()?;
    let status = response.status().as_u16();
    let text = timeout(ANSWER, response.into_body().collect()).await.ok()?.ok()?.to_bytes();
    Some((status, serde_json::from_slice(&text).unwrap_or_default()))
}

/// The key of a machine with this number.
pub(super) fn machine(number: u32) -> MachineKey {
    let mut bytes = [7; 32];
    // Not the first byte: X25519 clears its lowest bits.
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    MachineKey::new(Box::new(bytes.into()))
}

/// A request to register, without a key.
pub(super) fn registration(number: u32) -> Value {
    let key = format!("nodekey:{number:064x}");
    serde_json::json!({
        "Version": VERSION, "NodeKey": key,
        "Hostinfo": { "Hostname": format!("flood-{number}"), "OS": "linux" },
    })
}
