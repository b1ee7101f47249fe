//! The local socket of the API. Every process that can open its file is an administrator.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use axum::{Extension, Router, response::IntoResponse};
use hyper::{StatusCode, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};

use super::answer::{Code, refusal};
use crate::http::arrival::Arrival;

/// Maximum time for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates the socket. A socket file without a listener is replaced.
///
/// # Errors
/// It cannot be created, or another server listens at it.
pub fn bind(file: &Path) -> anyhow::Result<UnixListener> {
    let name = || file.display().to_string();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    if net::UnixStream::connect(file).is_ok() {
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

/// Serves connections to a network's socket while the server runs. `router` returns the router of the
/// API, or `None` before the network has started.
pub async fn serve(listener: UnixListener, router: impl Fn() -> Option<Router> + Send) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let routes = router().unwrap_or_else(|| Router::new().fallback(not_begun));
                tokio::spawn(converse(routes, stream));
            }
            Err(error) => {
                tracing::warn!("accepting a command: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn not_begun() -> impl IntoResponse {
    let message = "this network has not started yet: see the server's log";
    refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, message)
}

async fn converse(routes: Router, stream: UnixStream) {
    let user = stream.peer_cred().ok().map(|peer| peer.uid());
    let service = TowerToHyperService::new(routes.layer(Extension(Arrival::Socket { user })));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("a command: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_servers_user_can_open_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = folder.path().join("socket");
        let _listener = bind(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
