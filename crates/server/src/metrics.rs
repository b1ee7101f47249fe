//! Counters for Prometheus, at an address of their own: how much a network talks is no business of
//! its clients'. Whether the server is well is told there, too.

mod text;

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    body::{self, Answer},
    health,
    networks::Networks,
};

/// Scrapers are few, and each asks one thing.
const MOST: usize = 16;
/// Within this one has asked and was answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without file descriptors, that long until the next try.
const REST: Duration = Duration::from_millis(100);

/// Serves each client that connects, for as long as the server runs.
pub async fn serve(networks: Arc<Networks>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let networks = Arc::clone(&networks);
                tokio::spawn(async move {
                    // One that is too slow is gone.
                    let _ = timeout(PATIENCE, converse(networks, stream)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("accepting a connection for metrics: {error}");
                sleep(REST).await;
            }
        }
    }
}

async fn converse(networks: Arc<Networks>, stream: TcpStream) {
    let service = service_fn(move |request| answer(Arc::clone(&networks), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("metrics: {error}");
    }
}

async fn answer(
    networks: Arc<Networks>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let mut response = body::text(StatusCode::OK, &text::write(&networks));
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        (&Method::GET, "/health") => health::answer_of_all(&networks).await,
        (&Method::GET, _) => body::text(StatusCode::NOT_FOUND, "the counters are at /metrics\n"),
        _ => body::text(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n"),
    })
}
