//! The gate between this machine and the tunnel: what every proxy of a process has in
//! common, and what they do with a client alike.

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use super::{
    dial::Dialer,
    half_open::Client,
    local::{Listener, Stream},
    stack::{Accept, Stack},
    target::Target,
    users::Users,
};
use crate::conf::Place;

/// How long a client may take to say what it wants.
pub(super) const ASKING: Duration = Duration::from_secs(30);
/// How long a client that was refused is listened to: what it still sends would have
/// the kernel take the answer back by RST.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a listener rests when it cannot accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the proxies share.
pub(super) struct Gate<S> {
    pub dialer: Arc<Dialer<S>>,
    pub users: Users,
}

/// Serves the clients of a listener, each in a task of its own.
pub(super) async fn serve_each<F>(
    listener: Listener,
    what: String,
    serve: impl Fn(Stream, Client) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let serving = serve(stream, client);
                let what = what.clone();
                tokio::spawn(async move {
                    if let Err(error) = serving.await {
                        tracing::debug!(%error, ?client, "{what}");
                    }
                });
            }
            Err(error) => {
                // No file descriptor is left, or the client has gone already.
                tracing::error!(%error, "{what}: a client could not be served");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Carries bytes until both ends are done; what breaks one, breaks the other.
pub(super) async fn carry<S: Stack>(mut here: Stream, mut there: S::Stream) -> io::Result<()> {
    let carried = S::carry(&mut here, &mut there).await;
    if carried.is_err() {
        here.reset();
        S::reset(there);
    }
    carried
}

/// A forward: dials, and carries. A client that only half-closes has not given up.
pub(super) async fn forward<S: Stack>(
    gate: Arc<Gate<S>>,
    to: Arc<Target>,
    here: Stream,
    client: Client,
) -> io::Result<()> {
    match gate.dialer.dial(client, &to).await {
        Ok(there) => carry::<S>(here, there).await,
        Err(error) => {
            here.reset();
            Err(error)
        }
    }
}

/// An exposed service: takes connections of the tunnel to it. While the service is down,
/// who connects gets an RST.
pub(super) async fn expose<S: Stack>(listener: S::Listener, what: String, to: Arc<Place>) {
    loop {
        let (there, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "{what}: a client could not be served");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (what, to) = (what.clone(), to.clone());
        tokio::spawn(async move {
            let served = match Stream::connect(&to).await {
                Ok(here) => carry::<S>(here, there).await,
                Err(error) => {
                    S::reset(there);
                    Err(error)
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, %from, "{what}");
            }
        });
    }
}

/// Sends a last answer, so that it arrives.
pub(super) async fn refuse(mut stream: Stream, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    let ended = async { while stream.read(&mut rest).await.is_ok_and(|len| len > 0) {} };
    // Whether it ended or not, it has had its time.
    let _ = timeout(FAREWELL, ended).await;
    Ok(())
}
