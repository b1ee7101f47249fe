//! A server on loopback, with its administrators and machines.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use server::{admin::api, configuration::Configuration};
use tailnet::{
    keys::{MachineKey, MachinePublic, NodePublic},
    ts2021::{noise_handshake::Initiation, noise_stream::NoiseStream},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::loopback::{free, inside, start};

/// A network of a server.
pub(crate) struct World {
    pub address: SocketAddr,
    folder: Arc<TempDir>,
    host: String,
    socket: PathBuf,
}

pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    async fn of(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Self { status: head.status, headers: head.headers, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// The network of the top level, on a server with these additional tables.
    pub(crate) async fn with(tables: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free();
        let mut configuration = Configuration {
            // Browsers accept cookies for TLS only from this name, even without TLS.
            server_url: Some(format!("http://localhost:{}", address.port()).parse().unwrap()),
            listen_plain: vec![address],
            state_dir: folder.path().to_owned(),
            socket: folder.path().join("socket"),
            base_domain: "net.example.com".into(),
            ..toml::from_str(tables).unwrap()
        };
        configuration.derp.stun_listen = Vec::new();
        start(configuration, address).await;
        let socket = folder.path().join("socket");
        Self { address, folder: Arc::new(folder), host: "localhost".into(), socket }
    }

    /// Another network of the same server, with this name and host.
    pub(crate) fn other(&self, name: &str, host: &str) -> Self {
        let (folder, host) = (Arc::clone(&self.folder), host.to_owned());
        Self {
            address: self.address,
            socket: self.folder().join(format!("socket.{name}")),
            folder,
            host,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a command over the local socket.
    pub(crate) async fn command(&self, method: Method, path: &str, body: Value) -> Value {
        let stream = self.commands().await;
        let path = format!("{}{path}", api::ROOT);
        let answer = request(stream, "local", method, &path, &[], body.to_string()).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
        answer.json()
    }

    /// The same for a command that may be refused.
    pub(crate) async fn try_command(&self, method: Method, path: &str) -> Answer {
        let stream = self.commands().await;
        request(stream, "local", method, &format!("{}{path}", api::ROOT), &[], String::new()).await
    }

    async fn commands(&self) -> UnixStream {
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Sends a request over the network.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        request(stream, &self.host, method, path, headers, body.to_owned()).await
    }

    /// Prefix of a new API key, and its authorization header.
    pub(crate) async fn api_key(&self) -> (String, String) {
        let key = self.command(Method::POST, "apikey", json!({})).await;
        let text = key["key"].as_str().unwrap().to_owned();
        (key["prefix"].as_str().unwrap().to_owned(), format!("Bearer {text}"))
    }

    /// Opens the page with a link, and returns the cookie.
    pub(crate) async fn log_in(&self) -> String {
        let answer = self.submit_login(&self.link().await).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        let cookie = answer.headers["set-cookie"].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// Token of a new link.
    pub(crate) async fn link(&self) -> String {
        let link = self.command(Method::POST, "admin/link", json!(null)).await;
        link["link"].as_str().unwrap().split_once('#').unwrap().1.to_owned()
    }

    pub(crate) async fn submit_login(&self, key: &str) -> Answer {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        self.request(Method::POST, "/admin/login", &form, &format!("key={key}")).await
    }

    /// Joins a machine with this description.
    pub(crate) async fn join(&self, number: u8, auth_key: &str, hostinfo: Value) {
        let body = json!({
            "Version": 131, "NodeKey": NodePublic([number; 32]), "Auth": { "AuthKey": auth_key },
            "Hostinfo": hostinfo,
        });
        let answer = self.register(number, &body).await;
        assert_eq!(answer["MachineAuthorized"], true, "{answer}");
    }

    /// The answer to a registration request.
    pub(crate) async fn register(&self, number: u8, body: &Value) -> Value {
        let mut machine = self.machine(number).await;
        let response = machine.send_request(machine_request("register", body)).await.unwrap();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&answer).unwrap()
    }

    /// The network's Noise key.
    pub(crate) async fn server_key(&self) -> MachinePublic {
        let key = self.request(Method::GET, "/key?v=131", &[], "").await.json();
        serde_json::from_value(key["publicKey"].clone()).unwrap()
    }

    /// A machine's connection inside Noise.
    pub(crate) async fn machine(&self, number: u8) -> http2::SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let server = self.server_key().await;
        let machine = MachineKey::new(Box::new([number; 32].into()));
        let (initiation, message) =
            Initiation::new(&machine, &server, 131, [number ^ 0x55; 32].into()).unwrap();
        let stream = upgraded(stream, &self.host, initiation, &message).await;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // Answers are not sent before they are read.
        builder.initial_stream_window_size(64);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

/// A POST request of a machine.
pub(crate) fn machine_request(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(format!("https://a/machine/{path}"));
    request.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// The answer to a GET request of a machine.
pub(crate) async fn machine_get(
    machine: &mut http2::SendRequest<Full<Bytes>>,
    path: &str,
) -> Answer {
    let request = Request::get(format!("https://a/machine/{path}"));
    let response = machine.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    Answer::of(response).await
}

async fn request(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Answer {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    Answer::of(sender.send_request(request).await.unwrap()).await
}

/// Opens a Noise stream after an upgrade by POST.
async fn upgraded(
    mut stream: TcpStream,
    host: &str,
    initiation: Initiation,
    message: &[u8],
) -> NoiseStream<TcpStream> {
    let message = Base64::encode_string(message);
    let request = format!(
        "POST /ts2021 HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\n\
         Upgrade: tailscale-control-protocol\r\nX-Tailscale-Handshake: {message}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    inside(stream, initiation).await
}
