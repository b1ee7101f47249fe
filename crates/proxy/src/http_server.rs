//! The HTTP proxy: [`super::http`] on sockets.
//!
//! ```text
//!   serve ─► read_request ─┬─ CONNECT ─► dial ─► carry
//!              ▲           └─ others ──► idle or dial ─► exchange ─┬─ another protocol ─► carry
//!              └───────────── the client's connection stays ◄──────┘
//! ```

mod exchange;
mod input;

use std::{future::poll_fn, io, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf},
    time::{Instant, sleep_until, timeout},
};

use super::{
    connections::{Connection, Group, Refused},
    half_open::Client,
    http::{self, Body, CONNECTED, Forward, Refusal, Request, RequestInfo},
    local::Stream,
    serve::{ProxyContext, REQUEST_TIMEOUT, carry, refuse},
    stack::Stack,
};
use config::target::Target;
use exchange::{End, exchange};
use input::Input;

/// How long a client may be silent between two requests: as in Squid (`client_idle_pconn_timeout`),
/// and longer than most clients hold a connection open.
const IDLE: Duration = Duration::from_mins(2);
/// How long an idle connection to an origin is stored for the client's next request: less than the 5 s
/// after which Node.js and Apache close it.
const ORIGIN_IDLE: Duration = Duration::from_secs(4);

/// Serves one client.
pub(super) async fn serve<S: Stack>(
    context: Arc<ProxyContext<S>>,
    mut here: Stream,
    client: Client,
    connection: Connection,
) -> io::Result<()> {
    let mut session = Session {
        context,
        client,
        connection,
        input: Input::default(),
        idle_origin: None,
        is_admitted: false,
    };
    loop {
        let request = match session.read_request(&mut here).await? {
            Some(Ok(request)) => request,
            Some(Err(refusal)) => {
                return refuse(here, &refusal.encode(refusal_text(refusal))).await;
            }
            None => return refuse(here, &[]).await,
        };
        // The next dial may take longer than an idle connection is safe from eviction.
        session.connection.touch();
        here = here.or_reset(session.admit().await)?;
        match request {
            Request::Connect(target) => return session.tunnel(here, &target).await,
            Request::Forward(forward) => match session.forward(here, forward).await? {
                Some(client) => here = client,
                None => return Ok(()),
            },
        }
    }
}

fn refusal_text(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::LastHop => "linerate: this is the last hop",
        _ => "linerate: the request was refused",
    }
}

/// The state of a client, without its socket.
struct Session<S: Stack> {
    context: Arc<ProxyContext<S>>,
    client: Client,
    connection: Connection,
    /// Bytes that were read and are not part of a request yet.
    input: Input,
    idle_origin: Option<IdleOrigin<S::Stream>>,
    /// Whether the client has sent a request.
    is_admitted: bool,
}

/// An idle connection to the last origin.
struct IdleOrigin<T> {
    to: Target,
    stream: T,
    until: Instant,
}

impl<S: Stack> Session<S> {
    async fn admit(&mut self) -> Result<(), Refused> {
        if !self.is_admitted {
            self.connection.wait_to_change_group(Group::Clients, S::CONNECTION).await?;
            self.is_admitted = true;
        }
        Ok(())
    }

    /// Reads the next request. Returns `None` if the client sends no other.
    async fn read_request(
        &mut self,
        here: &mut Stream,
    ) -> io::Result<Option<Result<Request, Refusal>>> {
        if self.is_admitted && self.input.is_empty() && !self.await_request(here).await? {
            return Ok(None);
        }
        match timeout(REQUEST_TIMEOUT, self.read_head(here)).await {
            Ok(read) => read,
            Err(_) => Ok(Some(Err(Refusal::TimedOut))),
        }
    }

    /// Waits for the first bytes of the next request. Returns whether they came.
    async fn await_request(&mut self, here: &mut Stream) -> io::Result<bool> {
        let until = Instant::now() + IDLE;
        loop {
            let kept_until =
                self.idle_origin.as_ref().map_or(until, |idle_origin| idle_origin.until.min(until));
            tokio::select! {
                read = here.read_buf(self.input.tail()) => return Ok(read? > 0),
                () = sleep_until(kept_until) => {
                    self.idle_origin = None;
                    if kept_until == until {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Reads up to the end of a head. The bytes after it stay in `input`.
    async fn read_head(
        &mut self,
        here: &mut Stream,
    ) -> io::Result<Option<Result<Request, Refusal>>> {
        loop {
            if self.input.may_hold_head() {
                match http::parse(&self.input, &self.context.users) {
                    Ok(Some((request, len))) => {
                        self.input.consume(len);
                        return Ok(Some(Ok(request)));
                    }
                    Ok(None) => {}
                    Err(refusal) => return Ok(Some(Err(refusal))),
                }
            }
            if here.read_buf(self.input.tail()).await? == 0 {
                // An empty line does not begin a request (RFC 9112, section 2.2).
                let is_over = self.input.trim_ascii().is_empty();
                return if is_over { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Serves a CONNECT.
    async fn tunnel(mut self, mut here: Stream, target: &Target) -> io::Result<()> {
        match self.dial(&mut here, target).await {
            Ok(mut there) => {
                here.write_all(CONNECTED).await?;
                there.write_all(&self.input).await?;
                carry::<S>(here, there, &self.connection).await
            }
            Err(error) => {
                let refusal = Refusal::of_error(&error);
                refuse(here, &refusal.encode(&failure_text(target, &error))).await?;
                Err(error)
            }
        }
    }

    /// Serves a request of another method. Returns the client's connection if it stays open.
    async fn forward(&mut self, mut here: Stream, request: Forward) -> io::Result<Option<Stream>> {
        let Forward { target, head, body, info } = request;
        let is_repeatable = info.is_idempotent && body.is_empty();
        let mut idle_origin = self.take_idle_origin(&target, is_repeatable).await;
        // An idle connection may close at the same time. Then the request is sent again.
        let mut again = idle_origin.is_some().then(|| head.clone());
        let (mut head, mut body) = (head, body);
        loop {
            let there = match idle_origin.take() {
                Some(there) => there,
                None => match self.dial(&mut here, &target).await {
                    Ok(there) => there,
                    Err(error) => {
                        let is_over = body.is_empty();
                        return self.fail(here, (&target, &error), &info, is_over).await;
                    }
                },
            };
            let input = std::mem::take(&mut self.input);
            let request = exchange::Request { head, body, input, info };
            let exchanged = exchange::<S>(here, there, request, &self.connection).await;
            let there = exchanged.there;
            (here, self.input) = (exchanged.here, exchanged.input);
            match exchanged.end {
                End::Answered { client_stays, origin_stays } => {
                    if origin_stays && client_stays {
                        let until = Instant::now() + ORIGIN_IDLE;
                        self.idle_origin = Some(IdleOrigin { to: target, stream: there, until });
                    }
                    if client_stays {
                        return Ok(Some(here));
                    }
                    return refuse(here, &[]).await.map(|()| None);
                }
                End::Upgraded(rest) => return self.upgrade(here, there, &rest).await,
                End::Unanswered { error, silent } => {
                    drop(there);
                    let Some(again) = again.take().filter(|_| silent) else {
                        return self.fail(here, (&target, &error), &info, false).await;
                    };
                    (head, body) = (again, Body::Bytes(0));
                }
                End::Broken(error) => {
                    here.reset();
                    S::reset(there);
                    return Err(error);
                }
            }
        }
    }

    /// Dials. Meanwhile it reads further bytes of the client into `input`, which is bounded.
    async fn dial(&mut self, here: &mut Stream, to: &Target) -> io::Result<S::Stream> {
        let dialed = self.context.dialer.dial_for(self.client, here, self.input.tail(), to).await;
        dialed.map_err(|error| io::Error::new(error.kind(), format!("{to}: {error}")))
    }

    /// The idle connection, if it leads to this origin and is still open. A request that must not be
    /// sent twice gets a new one: an idle one may close before the answer (RFC 9112, section 9.3.1).
    async fn take_idle_origin(&mut self, to: &Target, is_repeatable: bool) -> Option<S::Stream> {
        let mut idle_origin = self.idle_origin.take().filter(|idle_origin| {
            is_repeatable && idle_origin.to == *to && Instant::now() < idle_origin.until
        })?;
        let mut byte = [0];
        let is_quiet = poll_fn(|cx| {
            let read =
                Pin::new(&mut idle_origin.stream).poll_read(cx, &mut ReadBuf::new(&mut byte));
            std::task::Poll::Ready(read.is_pending())
        });
        is_quiet.await.then_some(idle_origin.stream)
    }

    /// Answers a request on behalf of its origin. The client's connection stays open if the whole
    /// request was read.
    async fn fail(
        &self,
        mut here: Stream,
        (target, error): (&Target, &io::Error),
        info: &RequestInfo,
        is_over: bool,
    ) -> io::Result<Option<Stream>> {
        let info = RequestInfo { closes: info.closes || !is_over, ..*info };
        let text = Refusal::of_error(error).encode_for(&failure_text(target, error), &info);
        let why = || io::Error::new(error.kind(), error.to_string());
        if error.kind() == io::ErrorKind::ConnectionAborted {
            // The client itself is gone.
            return Err(why());
        }
        if info.closes {
            refuse(here, &text).await?;
            return Err(why());
        }
        tracing::debug!(%error, client = ?self.client, "http");
        here.write_all(&text).await?;
        Ok(Some(here))
    }

    async fn upgrade(
        &mut self,
        mut here: Stream,
        mut there: S::Stream,
        rest: &[u8],
    ) -> io::Result<Option<Stream>> {
        here.write_all(rest).await?;
        there.write_all(&std::mem::take(&mut self.input)).await?;
        carry::<S>(here, there, &self.connection).await.map(|()| None)
    }
}

fn failure_text(target: &Target, error: &io::Error) -> String {
    let text = error.to_string();
    let prefix = format!("{target}: ");
    format!("linerate: {target}: {}", text.strip_prefix(&prefix).unwrap_or(&text))
}

#[cfg(test)]
mod tests;
