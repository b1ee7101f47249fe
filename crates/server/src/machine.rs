//! What a machine asks inside Noise. Its machine key is proved by then; that the node key that it
//! names is its own is looked at in every request.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use coordinator::{MapRequest, RegisterRequest, Registered, Registering, Session};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use tailnet::keys::MachinePublic;
use tokio::sync::mpsc;

use crate::{
    body::{self, Answer, Pieces, json, text},
    serve::Server,
    slow_hash,
    stream::{self, encode_frame},
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
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let (head, body) = request.into_parts();
    if client.version < OLDEST {
        let words = "this client is too old: the server speaks with those of 1.80 and later\n";
        return Ok(text(StatusCode::BAD_REQUEST, words));
    }
    let path = head.uri.path();
    let handled = match (&head.method, path) {
        (&Method::POST, "/machine/register" | "/machine/map") => {
            match taken(&visitor, body).await {
                Ok(body) if path == "/machine/map" => map(&server, client, &body).await,
                Ok(body) => register(&server, client, &body).await,
                Err(refusal) => Ok(refusal),
            }
        }
        // Told by older clients; nobody asks for it.
        (&Method::POST, "/machine/update-health") => Ok(text(StatusCode::OK, "")),
        _ if path.starts_with("/machine/") => {
            Ok(text(StatusCode::NOT_IMPLEMENTED, "this server does not do that\n"))
        }
        _ => Ok(text(StatusCode::NOT_FOUND, "there is nothing here\n")),
    };
    Ok(handled.unwrap_or_else(|error| {
        tracing::warn!("{path}: {error:#}");
        text(StatusCode::SERVICE_UNAVAILABLE, "the server cannot do that now\n")
    }))
}

/// A request's body, when its connection may send one.
async fn taken(visitor: &Visitor, body: Incoming) -> Result<Bytes, Response<Answer>> {
    let late = || text(StatusCode::SERVICE_UNAVAILABLE, "the server is about to end\n");
    let (_leave, most) = visitor.body().await.ok_or_else(late)?;
    body::read(body, most).await
}

async fn register(
    server: &Arc<Server>,
    client: Client,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = RegisterRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request to register\n"));
    };
    slow_hash::prove(&server.network, |state, now| state.unproved(&request, now)).await?;
    let (request, url) = (Arc::new(request), Arc::new(format!("{}/register/", server.url)));
    let number = random_number()?;
    let deadline = tokio::time::Instant::now() + HOLD;
    let mut changed = server.network.changed();
    loop {
        changed.borrow_and_update();
        let (request, url, number) = (Arc::clone(&request), Arc::clone(&url), number.clone());
        let registered = server.network.run(move |state, now| {
            let (machine, number, from) = (client.machine, number.as_str(), Some(client.from));
            state.register(Registering { machine, request: &request, number, url: &url, from }, now)
        });
        match registered.await? {
            Registered::Now(answer) => return Ok(json(StatusCode::OK, answer)),
            Registered::Later(answer) => {
                let waited = tokio::time::timeout_at(deadline, changed.changed()).await;
                if waited.is_err() {
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
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = MapRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request for a map\n"));
    };
    let key = request.node_key;
    let owned = server.network.read(|state| state.owned_by(&client.machine, &key));
    let Some(id) = owned else {
        // Without a map it would ask again for ever: one that ends its login is understood.
        if request.omit_peers {
            return Ok(text(StatusCode::NOT_FOUND, "this machine has no such node\n"));
        }
        return Ok(pieces(encode_frame(&Session::refuse(key))));
    };
    let (is_stream, omits) = (request.stream, request.omit_peers);
    let session = Session::new(id, key).resumable(&server.instance, &request);
    let heard = server.network.run(move |state, now| state.hear(id, &request, now));
    heard.await?;
    if is_stream {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(stream::follow(Arc::clone(server), session, sender));
        return Ok(Response::new(Answer::Pieces(Pieces::new(receiver))));
    }
    if omits {
        return Ok(text(StatusCode::OK, ""));
    }
    Ok(stream::once(server, session))
}

/// A stream that has these parts and ends.
pub fn pieces(parts: body::Parts) -> Response<Answer> {
    Response::new(Answer::Text(Some(parts.concat().into())))
}
