//! What administrators ask, as JSON over HTTP: today over a local socket, whose file says who may.

mod asked;
mod shown;

use std::{
    convert::Infallible, fs, io, os::unix::fs::PermissionsExt, path::Path, sync::Arc,
    time::Duration,
};

use anyhow::Context;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};

use self::asked::{Asked, Trouble};
use crate::{
    body::{self, Answer, json as answer_json},
    serve::Server,
};

/// What all paths begin with.
pub const ROOT: &str = "/api/v1/";
/// The longest request, in bytes.
const LONGEST: usize = 1 << 20;
/// Within this a request has come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the socket, in place of one that nobody listens at.
///
/// # Errors
/// It cannot be made, or a server listens there.
pub fn bind(file: &Path) -> anyhow::Result<UnixListener> {
    let name = || file.display().to_string();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    if std::os::unix::net::UnixStream::connect(file).is_ok() {
        anyhow::bail!("{}: another server listens there", file.display());
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(name);
        }
        _ => {}
    }
    let listener = UnixListener::bind(file).with_context(name)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).with_context(name)?;
    Ok(listener)
}

/// Serves who connects, for as long as the server runs.
pub async fn serve(server: Arc<Server>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(Arc::clone(&server), stream));
            }
            Err(error) => {
                tracing::warn!("accepting a command: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(server: Arc<Server>, stream: UnixStream) {
    let service = service_fn(move |request| answer(Arc::clone(&server), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("a command: {error}");
    }
}

async fn answer(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let (head, body) = request.into_parts();
    let body = match body::read(body, LONGEST).await {
        Ok(body) => body,
        Err(refusal) => return Ok(refusal),
    };
    let path = head.uri.path().strip_prefix(ROOT).unwrap_or_default();
    let query = head.uri.query().unwrap_or_default();
    let asked = Asked { server: &server, path, query, body: &body };
    let answered = match head.method {
        Method::GET => asked.get(),
        Method::POST => asked.post().await,
        Method::DELETE => asked.delete().await,
        _ => Err(Trouble::NoSuchThing),
    };
    Ok(match answered {
        Ok(value) => answer_json(StatusCode::OK, value.to_string()),
        Err(trouble) => {
            let (status, message) = trouble.said();
            answer_json(status, json!({ "message": message }).to_string())
        }
    })
}
