//! Prometheus metrics, at a separate address, because the traffic of a network does not concern its
//! clients. `/health` is served there as well.

mod text;

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::join_all;
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

use super::body::{self, Answer, json};
use crate::{
    network::health::failing,
    tenants::{TenantSlot, Tenants},
};

/// Maximum number of connections. There are few scrapers, with one request each.
const MOST: usize = 16;
/// Maximum time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after an error for lack of file descriptors.
const REST: Duration = Duration::from_millis(100);

/// Serves all connections while the server runs.
pub(crate) async fn serve(tenants: Arc<Tenants>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let tenants = Arc::clone(&tenants);
                tokio::spawn(async move {
                    // A slow client is disconnected.
                    let _ = timeout(PATIENCE, converse(tenants, stream)).await;
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

async fn converse(tenants: Arc<Tenants>, stream: TcpStream) {
    let service = service_fn(move |request| answer(Arc::clone(&tenants), request));
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
    tenants: Arc<Tenants>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let mut response = body::text(StatusCode::OK, &text::write(&tenants));
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        (&Method::GET, "/health") => health_of_all(&tenants).await,
        (&Method::GET, _) => body::text(StatusCode::NOT_FOUND, "the counters are at /metrics\n"),
        _ => body::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n"),
    })
}

/// The answer to `/health` for all networks.
async fn health_of_all(tenants: &Tenants) -> Response<Answer> {
    if let [only] = tenants.all()
        && let Some(tenant) = only.tenant()
    {
        return tenant.health.answer(&tenant.network).await;
    }
    let checks = tenants.all().iter().map(|slot| async move {
        let message = match slot.tenant() {
            Some(tenant) => tenant.health.check(&tenant.network).await.err()?.message(),
            None => "it has not started",
        };
        Some(format!("{}: {message}", named(slot)))
    });
    let error: Vec<String> = join_all(checks).await.into_iter().flatten().collect();
    match error.is_empty() {
        true => json(StatusCode::OK, r#"{"status":"pass"}"#.into()),
        false => failing(&error.join("; ")),
    }
}

fn named(slot: &TenantSlot) -> &str {
    slot.name.as_ref().map_or("the network of the top level", |name| name.text())
}
