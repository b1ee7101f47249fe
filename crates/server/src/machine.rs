//! What a machine asks inside Noise. Its machine key is proved by then; that the node key that it
//! names is its own is looked at in every request.

mod asked;
pub mod held;
pub mod ssh;

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use coordinator::{MapRequest, RegisterCommand, RegisterRequest, RegisterResponse, Session, State};
use hyper::{Method, Response, StatusCode, Uri, body::Incoming};
use tailnet::keys::MachinePublic;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::{
    body::{self, Answer, Pieces, json, text},
    clock::now,
    lock, pings,
    serve::Server,
    slow_hash,
    stream::{Stream, encode_frame},
    visitors::Visitor,
};

/// The oldest client that is spoken with, that of 1.80: it reads all that is said.
const OLDEST: u16 = 113;
/// How long a registration is held that waits for an administrator. The client asks again.
const HOLD: Duration = Duration::from_secs(50);

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its machine.
    pub machine: MachinePublic,
    /// What it speaks.
    pub version: u16,
    /// The address, or the network of IPv6, that it comes from.
    pub from: IpAddr,
}

/// Answers a request.
pub async fn answer(
    server: Arc<Server>,
    client: Client,
    visitor: Arc<Visitor>,
    (method, uri): (Method, Uri),
    body: Incoming,
) -> Result<Response<Answer>, Infallible> {
    let mut asking = visitor.begin_request();
    if client.version < OLDEST {
        let words = "this client is too old: the server speaks with those of 1.80 and later\n";
        return Ok(text(StatusCode::BAD_REQUEST, words));
    }
    let path = uri.path();
    let handled = match (&method, path) {
        (&Method::GET, _) if path.starts_with(ssh::PATH) => {
            Box::pin(ssh::answer(&server, client, &uri)).await
        }
        // Told by older clients; nobody asks for it.
        (&Method::POST, "/machine/update-health") => Ok(text(StatusCode::OK, "")),
        _ if path.starts_with("/machine/") => {
            let longest = longest(&server, &client, visitor.longest_body(), path);
            match body::read_while(body, longest, |bytes| asking.takes(bytes)).await {
                Ok(body) => {
                    let visitor = Arc::clone(&visitor);
                    // In a box: until its body is read, a request takes little memory.
                    Box::pin(with_body(&server, client, visitor, (&method, path), body)).await
                }
                Err(refusal) => Ok(refusal),
            }
        }
        _ => Ok(text(StatusCode::NOT_FOUND, "there is nothing here\n")),
    };
    Ok(handled.unwrap_or_else(|error| {
        tracing::warn!("{path}: {error:#}");
        text(StatusCode::SERVICE_UNAVAILABLE, "the server cannot do that now\n")
    }))
}

/// Answers a request that may say something.
async fn with_body(
    server: &Arc<Server>,
    client: Client,
    visitor: Arc<Visitor>,
    (method, path): (&Method, &str),
    body: Bytes,
) -> anyhow::Result<Response<Answer>> {
    match (method, path) {
        (&Method::POST, "/machine/map") => map(server, client, visitor, &body).await,
        (&Method::POST, "/machine/register") => register(server, client, &body).await,
        (&Method::HEAD | &Method::POST, _) if path.starts_with(pings::PATH) => {
            Ok(asked::answered(server, client, path, body))
        }
        (&Method::GET | &Method::POST, _) if path.starts_with(lock::ROOT) => {
            lock::answer(server, client.machine, &path[lock::ROOT.len()..], &body).await
        }
        _ => Ok(asked::not_done(method, path, &body)),
    }
}

/// The longest body of a request, in bytes, if others of the connection may have `most`.
fn longest(server: &Server, client: &Client, most: usize, path: &str) -> usize {
    let turns_lock_on = |state: &State| state.is_initializing_tka(&client.machine, now());
    match path {
        _ if path.starts_with(pings::PATH) => most.min(pings::LONGEST),
        _ if path.starts_with(lock::ROOT) && server.network.read(turns_lock_on) => {
            most.max(lock::LONGEST)
        }
        _ => most,
    }
}

async fn register(
    server: &Arc<Server>,
    client: Client,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = RegisterRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request to register\n"));
    };
    server.network.read_on().await;
    let find = |state: &State, now| state.unverified_key(&request, now);
    slow_hash::prove(&server.network, &server.sessions, client.from, find).await?;
    let (request, url) = (Arc::new(request), Arc::new(format!("{}/register/", server.url)));
    let number = random_number()?;
    let deadline = Instant::now() + HOLD;
    loop {
        let (asked, root, number) = (Arc::clone(&request), Arc::clone(&url), number.clone());
        let registered = server.network.run(move |state, now| {
            let (machine, number, from) = (client.machine, number.as_str(), Some(client.from));
            state.register(
                RegisterCommand { machine, request: &asked, number, url: &root, from },
                now,
            )
        });
        match registered.await? {
            RegisterResponse::Immediate(answer) => return Ok(json(StatusCode::OK, answer)),
            RegisterResponse::Refused(answer) => {
                server.network.counted().refused.machine.add(1);
                return Ok(json(StatusCode::OK, answer));
            }
            RegisterResponse::Deferred(answer) => {
                let followed = request.followup.strip_prefix(&**url).unwrap_or_default();
                let decided = server.held.hold(&server.network, followed);
                if !timeout_at(deadline, decided).await.unwrap_or_default() {
                    return Ok(json(StatusCode::OK, answer));
                }
            }
        }
    }
}

/// A name that nobody guesses: of a registration that may have to wait, and of a server.
pub fn random_number() -> anyhow::Result<String> {
    let mut number = [0; 12];
    getrandom::fill(&mut number)?;
    Ok(base16ct::lower::encode_string(&number))
}

async fn map(
    server: &Arc<Server>,
    client: Client,
    visitor: Arc<Visitor>,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = MapRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request for a map\n"));
    };
    let key = request.node_key;
    let owned = || server.network.read(|state| state.find_machine_node(&client.machine, &key));
    let owned = match owned() {
        // It may have joined by another server a moment ago.
        None => {
            anyhow::ensure!(server.network.read_on().await, "the database does not answer");
            owned()
        }
        known => known,
    };
    let Some(id) = owned else {
        // Without a map it would ask again for ever: one that ends its login is understood.
        if request.omit_peers {
            return Ok(text(StatusCode::NOT_FOUND, "this machine has no such node\n"));
        }
        return Ok(pieces(encode_frame(&Session::refusal_frame(key))));
    };
    // It may not have been known when its request came.
    visitor.belongs_to(client.machine);
    let (is_stream, omits) = (request.stream, request.omit_peers);
    let session = Session::new(id, key).resumable(&server.name, &request);
    if let Some(version) = server.network.read(|state| session.resumed_version(state)) {
        server.network.catch_up(version).await;
    }
    let heard = server.network.run(move |state, now| state.apply_map_request(id, &request, now));
    heard.await?;
    if omits && !is_stream {
        return Ok(text(StatusCode::OK, ""));
    }
    let ((to, receiver), server) = (mpsc::channel(1), Arc::clone(server));
    let stream = Stream { session, visitor, to };
    if is_stream {
        tokio::spawn(stream.follow(server));
    } else {
        tokio::spawn(stream.once(server));
    }
    Ok(Response::new(Answer::Pieces(Pieces::new(receiver))))
}

/// A stream that has these parts and ends.
fn pieces(parts: body::Parts) -> Response<Answer> {
    Response::new(Answer::Text(Some(parts.concat().into())))
}
