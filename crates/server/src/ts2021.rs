//! The server's end of ts2021: an upgrade by POST or a WebSocket by GET, Noise, HTTP/2.

use std::{sync::Arc, time::Duration};

use base64ct::{Base64, Encoding};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tailnet::control::{
    HANDSHAKE_HEADER, UPGRADE_PROTOCOL,
    noise::{LONGEST_INITIATION, Response as Handshake, refusal},
    stream::NoiseStream,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use zeroize::Zeroizing;

use crate::{
    body::{Answer, text},
    machine::{self, Client},
    serve::Server,
    visitors::{Stage, Visitor},
    web_socket::{self, WebSocket},
};

/// Whether the other end is there is asked that often, beside the map's own signs of life.
const PING: Duration = Duration::from_secs(45);
/// How long the answer to that may take.
const PONG: Duration = Duration::from_secs(20);
/// The most requests of a client at once: its map, and a few others.
const STREAMS: u32 = 8;
/// The longest list of headers of a request, in bytes, unpacked.
const HEADERS: u32 = 8 << 10;
/// The most streams that the server resets for a client's errors before it ends the connection.
const RESET: usize = 128;
/// How long an upgrade may take once it was answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// What of a map may wait here for its client, in bytes.
const AHEAD: usize = 64 << 10;
/// What of requests may wait here unread, in bytes: the least that HTTP/2 allows.
const WINDOW: u32 = (64 << 10) - 1;
/// The longest message of a WebSocket, in bytes: some records of Noise.
const MESSAGE: usize = 16 << 10;

/// Answers a request for ts2021, and serves it.
pub fn upgrade(server: &Arc<Server>, request: Request<Incoming>) -> Response<Answer> {
    if *request.method() == Method::POST {
        return by_post(server, request);
    }
    by_web_socket(server, request)
}

fn by_post(server: &Arc<Server>, request: Request<Incoming>) -> Response<Answer> {
    let asks = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    if asks != Some(UPGRADE_PROTOCOL.as_bytes()) {
        return text(StatusCode::BAD_REQUEST, "the request asks for no upgrade to ts2021\n");
    }
    let message = request.headers().get(HANDSHAKE_HEADER).map(HeaderValue::as_bytes);
    let Some(message) = message.and_then(decode) else {
        return text(StatusCode::BAD_REQUEST, "the request has no first message of Noise\n");
    };
    let (server, visitor) = (Arc::clone(server), visitor_of(&request));
    tokio::spawn(async move {
        let upgraded = timeout(PATIENCE, hyper::upgrade::on(request)).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        tokio::select! {
            () = speak(&server, TokioIo::new(upgraded), &message, &visitor) => {}
            () = visitor.must_leave() => {}
        }
    });
    switching(HeaderValue::from_static(UPGRADE_PROTOCOL))
}

/// What says that the protocol is another from here on.
pub fn switching(protocol: HeaderValue) -> Response<Answer> {
    let mut response = Response::new(Answer::Text(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, protocol);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

fn by_web_socket(server: &Arc<Server>, request: Request<Incoming>) -> Response<Answer> {
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let mut pairs = form_urlencoded::parse(query);
    let message = pairs.find(|(name, _)| name.eq_ignore_ascii_case(HANDSHAKE_HEADER));
    let Some(message) = message.and_then(|(_, message)| decode(message.as_bytes())) else {
        return text(StatusCode::BAD_REQUEST, "the request has no first message of Noise\n");
    };
    let Some(response) = web_socket::accept(&request, UPGRADE_PROTOCOL) else {
        return text(StatusCode::UPGRADE_REQUIRED, "here is ts2021, by POST or WebSocket\n");
    };
    let (server, visitor) = (Arc::clone(server), visitor_of(&request));
    tokio::spawn(async move {
        let upgraded = timeout(PATIENCE, hyper::upgrade::on(request)).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        let stream = WebSocket::new(TokioIo::new(upgraded), MESSAGE).await;
        tokio::select! {
            () = speak(&server, stream, &message, &visitor) => {}
            () = visitor.must_leave() => {}
        }
    });
    response
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let longest = LONGEST_INITIATION.div_ceil(3) * 4;
    let text = str::from_utf8(text).ok().filter(|text| text.len() <= longest)?;
    Base64::decode_vec(text).ok()
}

/// Whose connection a request comes by.
pub fn visitor_of(request: &Request<Incoming>) -> Arc<Visitor> {
    let visitor = request.extensions().get::<Arc<Visitor>>();
    Arc::clone(visitor.expect("listen.rs puts it into every request"))
}

/// Noise, then HTTP/2 until either end has enough.
async fn speak(
    server: &Arc<Server>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    message: &[u8],
    visitor: &Arc<Visitor>,
) {
    let mut ephemeral = Zeroizing::new([0; 32]);
    if getrandom::fill(&mut *ephemeral).is_err() {
        return;
    }
    let handshake = visitor.in_turn(|| Handshake::new(&server.noise, message, ephemeral)).await;
    let handshake = match handshake {
        Ok(handshake) => handshake,
        Err(error) => {
            tracing::debug!("{error}");
            // The client may be gone.
            let _ = stream.write_all(&refusal(&error.to_string())).await;
            return;
        }
    };
    visitor.reaches(Stage::Speaking);
    let Handshake { reply, machine, version, sealer, opener } = handshake;
    if timeout(PATIENCE, stream.write_all(&reply)).await.is_err() {
        return;
    }
    let stream = NoiseStream::of_coordinator(stream, sealer, opener);
    let client = Client { machine, version, from: visitor.source() };
    let (server, of_client) = (Arc::clone(server), Arc::clone(visitor));
    let service = service_fn(move |request: Request<Incoming>| {
        let visitor = Arc::clone(&of_client);
        if visitor.is_stranger() && server.network.read(|state| state.has_machine(&machine)) {
            visitor.belongs_to(machine);
        }
        // The headers are dropped here, and the path is copied, because it shares its memory with them.
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let (method, uri) = (head.method, Uri::try_from(path.to_owned()).unwrap_or_default());
        machine::answer(Arc::clone(&server), client, visitor, (method, uri), body)
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .max_local_error_reset_streams(RESET)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(AHEAD)
        .serve_connection(TokioIo::new(stream), service);
    visitor.begins();
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!("{machine}: {error}");
            }
        }
        () = visitor.is_idle() => tracing::debug!("{machine}: a stranger without a request"),
    }
}
