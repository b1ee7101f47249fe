//! Ways to open ts2021: a WebSocket, an upgrade by POST, and invalid ones.

use std::{net::SocketAddr, path::Path};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use server::configuration::Configuration;
use tailnet::{
    keys::{MachineKey, MachinePublic},
    ts2021::noise_handshake::Initiation,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use super::loopback::{free, inside, start};

/// Starts a server with its files in this folder.
async fn server(folder: &Path) -> SocketAddr {
    let address = free();
    let mut configuration = Configuration {
        server_url: Some(format!("http://{address}").parse().unwrap()),
        listen_plain: vec![address],
        state_dir: folder.to_owned(),
        socket: folder.join("socket"),
        ..Configuration::default()
    };
    configuration.derp.enabled = false;
    start(configuration, address).await;
    address
}

/// The answer to an HTTP/1.1 request until the connection is closed.
async fn raw_answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn key(address: SocketAddr) -> MachinePublic {
    let answer =
        raw_answer(address, "GET /key?v=131 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = answer.await;
    let json: serde_json::Value =
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    serde_json::from_value(json["publicKey"].clone()).unwrap()
}

fn initiation(server: &MachinePublic) -> (Initiation, String) {
    let machine = MachineKey::new(Box::new([5; 32].into()));
    let (initiation, message) = Initiation::new(&machine, server, 131, [3; 32].into()).unwrap();
    (initiation, Base64::encode_string(&message))
}

#[tokio::test]
async fn ts2021_works_over_a_web_socket() {
    use futures_util::{SinkExt, StreamExt};

    let folder = tempfile::tempdir().unwrap();
    let address = server(folder.path()).await;
    let (initiation, message) = initiation(&key(address).await);
    let query = form_urlencoded::byte_serialize(message.as_bytes()).collect::<String>();
    let url = format!("ws://{address}/ts2021?X-Tailscale-Handshake={query}");
    let mut request = url.into_client_request().unwrap();
    let protocol = "tailscale-control-protocol".parse().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
    let stream = TcpStream::connect(address).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    let (mut to, mut from) = socket.split();
    let (ours, theirs) = duplex(64 << 10);
    let (mut read, mut write) = tokio::io::split(theirs);
    tokio::spawn(async move {
        while let Some(Ok(message)) = from.next().await {
            write.write_all(&message.into_data()).await.unwrap();
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 4096];
        while let Ok(len @ 1..) = read.read(&mut buffer).await {
            to.send(Message::Binary(Bytes::copy_from_slice(&buffer[..len]))).await.unwrap();
        }
    });
    assert_eq!(request_status(ours, initiation).await, StatusCode::NOT_IMPLEMENTED);
}

/// The status of an unsupported request.
async fn request_status(stream: tokio::io::DuplexStream, initiation: Initiation) -> StatusCode {
    let stream = TokioIo::new(inside(stream, initiation).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("https://a/machine/set-dns").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    response.into_body().collect().await.unwrap();
    status
}

#[tokio::test]
async fn an_invalid_handshake_is_refused_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let address = server(folder.path()).await;
    let post = |headers: &str| {
        format!("POST /ts2021 HTTP/1.1\r\nHost: a\r\nConnection: {headers}\r\n\r\n")
    };
    let upgrade = "upgrade\r\nUpgrade: tailscale-control-protocol";
    let none = raw_answer(address, &post("close")).await;
    assert!(none.starts_with("HTTP/1.1 400"), "{none}");
    let garbage = post(&format!("{upgrade}\r\nX-Tailscale-Handshake: AAAA"));
    let refused = raw_answer(address, &garbage).await;
    let (head, words) = refused.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{refused}");
    assert!(words.starts_with('\u{3}') && words.contains("handshake"), "{refused}");
    let long = "A".repeat(20 << 10);
    let long =
        raw_answer(address, &post(&format!("{upgrade}\r\nX-Tailscale-Handshake: {long}"))).await;
    assert!(long.starts_with("HTTP/1.1 431"), "{long}");
    assert!(!key(address).await.is_zero());
}
