//! The gate between this machine and the tunnel: what every proxy of a process has in
//! common, and what they do with a client alike.

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
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
/// How long a client that had its last answer is listened to, in all and when it says
/// nothing; as nginx does.
const FAREWELL: Duration = Duration::from_secs(30);
const FAREWELL_SILENT: Duration = Duration::from_secs(5);
/// Bytes that it may say: who could send so many has had the answer.
const FAREWELL_BYTES: usize = 4 << 20;
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
    } else {
        tokio::join!(take_leave(&mut here), take_leave(&mut there));
    }
    carried
}

/// Hears out somebody whom we have told our end: to what came behind a close the kernel
/// would answer by RST, and with that take our last words back (RFC 9112, section 9.6).
pub(super) async fn take_leave(stream: &mut (impl AsyncRead + Unpin)) {
    let hearing = async {
        let mut rest = vec![0; 16 * 1024];
        let mut heard = 0;
        while heard < FAREWELL_BYTES {
            match timeout(FAREWELL_SILENT, stream.read(&mut rest)).await {
                Ok(Ok(len)) if len > 0 => heard += len,
                _ => return,
            }
        }
    };
    // Whether it ended or not, it has had its time.
    let _ = timeout(FAREWELL, hearing).await;
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
    take_leave(&mut stream).await;
    Ok(())
}

#[cfg(test)]
mod tests;
