//! Requests of machines, inside Noise. The handshake proves the machine key. Each request checks
//! that the node key belongs to this machine.

mod other_requests;
pub mod ssh;
pub mod waiting_requests;

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
    admin::slow_hash,
    clients::{
        map_stream::{MapStream, encode_frame},
        pings, tka,
    },
    clock::now,
    http::body::{self, Answer, Pieces, json, text},
    net::connections::Connection,
    serve::Tenant,
};

/// The oldest supported client version, of 1.80. It understands all messages of the server.
const OLDEST: u16 = 113;
/// How long a request waits for an administrator's decision. The client then repeats it.
const HOLD: Duration = Duration::from_secs(50);

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its machine key.
    pub machine: MachinePublic,
    /// Its protocol version.
    pub version: u16,
    /// Its source: an IPv4 address, or an IPv6 network.
    pub from: IpAddr,
}

/// Answers a request.
pub async fn answer(
    tenant: Arc<Tenant>,
    client: Client,
    connection: Arc<Connection>,
    (method, uri): (Method, Uri),
    body: Incoming,
) -> Result<Response<Answer>, Infallible> {
    let mut guard = connection.begin_request();
    if client.version < OLDEST {
        let words = "this client is too old: the server supports 1.80 and later\n";
        return Ok(text(StatusCode::BAD_REQUEST, words));
    }
    let path = uri.path();
    let handled = match (&method, path) {
        (&Method::GET, _) if path.starts_with(ssh::PATH) => {
            Box::pin(ssh::answer(&tenant, client, &uri)).await
        }
        // Older clients send this. The server does not use it.
        (&Method::POST, "/machine/update-health") => Ok(text(StatusCode::OK, "")),
        _ if path.starts_with("/machine/") => {
            let longest = longest(&tenant, &client, connection.longest_body(), path);
            match body::read_while(body, longest, |bytes| guard.takes(bytes)).await {
                Ok(body) => {
                    let connection = Arc::clone(&connection);
                    // Boxed: until its body is read, a request takes little
                    // memory.
                    Box::pin(with_body(&tenant, client, connection, (&method, path), body)).await
                }
                Err(refusal) => Ok(refusal),
            }
        }
        _ => Ok(text(StatusCode::NOT_FOUND, "not found\n")),
    };
    Ok(handled.unwrap_or_else(|error| {
        tracing::warn!("{path}: {error:#}");
        text(StatusCode::SERVICE_UNAVAILABLE, "the server cannot do this now\n")
    }))
}

/// Answers a request with its body.
async fn with_body(
    tenant: &Arc<Tenant>,
    client: Client,
    connection: Arc<Connection>,
    (method, path): (&Method, &str),
    body: Bytes,
) -> anyhow::Result<Response<Answer>> {
    match (method, path) {
        (&Method::POST, "/machine/map") => map(tenant, client, connection, &body).await,
        (&Method::POST, "/machine/register") => register(tenant, client, &body).await,
        (&Method::HEAD | &Method::POST, _) if path.starts_with(pings::PATH) => {
            Ok(other_requests::receive_ping_answer(tenant, client, path, body))
        }
        (&Method::GET | &Method::POST, _) if path.starts_with(tka::ROOT) => {
            tka::answer(tenant, client.machine, &path[tka::ROOT.len()..], &body).await
        }
        _ => Ok(other_requests::unsupported(method, path, &body)),
    }
}

/// Maximum size of a request's body, in bytes. `most` is the limit for other requests of the
/// connection.
fn longest(tenant: &Tenant, client: &Client, most: usize, path: &str) -> usize {
    let turns_lock_on = |state: &State| state.is_initializing_tka(&client.machine, now());
    match path {
        _ if path.starts_with(pings::PATH) => most.min(pings::LONGEST),
        _ if path.starts_with(tka::ROOT) && tenant.network.read(turns_lock_on) => {
            most.max(tka::LONGEST)
        }
        _ => most,
    }
}

async fn register(
    tenant: &Arc<Tenant>,
    client: Client,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = RegisterRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request to register\n"));
    };
    tenant.network.refresh().await;
    let find = |state: &State, now| state.unverified_key(&request, now);
    slow_hash::prove(&tenant.network, &tenant.sessions, client.from, find).await?;
    let (request, url) = (Arc::new(request), Arc::new(format!("{}/register/", tenant.url)));
    let number = random_number()?;
    let deadline = Instant::now() + HOLD;
    loop {
        let (body, root, number) = (Arc::clone(&request), Arc::clone(&url), number.clone());
        let registered = tenant.network.run(move |state, now| {
            let (machine, number, from) = (client.machine, number.as_str(), Some(client.from));
            state.register(
                RegisterCommand { machine, request: &body, number, url: &root, from },
                now,
            )
        });
        match registered.await? {
            RegisterResponse::Immediate(answer) => return Ok(json(StatusCode::OK, answer)),
            RegisterResponse::Refused(answer) => {
                tenant.network.counters().refused.machine.add(1);
                return Ok(json(StatusCode::OK, answer));
            }
            RegisterResponse::Deferred(answer) => {
                let followed = request.followup.strip_prefix(&**url).unwrap_or_default();
                let decided = tenant.waiting_requests.wait(&tenant.network, followed);
                if !timeout_at(deadline, decided).await.unwrap_or_default() {
                    return Ok(json(StatusCode::OK, answer));
                }
            }
        }
    }
}

/// A random name that cannot be guessed, for a waiting registration or a server.
pub fn random_number() -> anyhow::Result<String> {
    let mut number = [0; 12];
    getrandom::fill(&mut number)?;
    Ok(base16ct::lower::encode_string(&number))
}

async fn map(
    tenant: &Arc<Tenant>,
    client: Client,
    connection: Arc<Connection>,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = MapRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request for a map\n"));
    };
    let key = request.node_key;
    let owned = || tenant.network.read(|state| state.find_machine_node(&client.machine, &key));
    let owned = match owned() {
        // It may have joined at another server a moment ago.
        None => {
            anyhow::ensure!(tenant.network.refresh().await, "the database does not answer");
            owned()
        }
        known => known,
    };
    let Some(id) = owned else {
        // Without a map, the client would repeat its request for ever. It understands a map
        // that ends its login.
        if request.omit_peers {
            return Ok(text(StatusCode::NOT_FOUND, "this machine does not own this node\n"));
        }
        return Ok(pieces(encode_frame(&Session::refusal_frame(key))));
    };
    // The node may have joined after the connection's previous request.
    connection.set_machine(client.machine);
    let (is_stream, omits) = (request.stream, request.omit_peers);
    let session = Session::new(id, key).resumable(&tenant.name, &request);
    if let Some(version) = tenant.network.read(|state| session.resumed_version(state)) {
        tenant.network.catch_up(version).await;
    }
    let applied = tenant.network.run(move |state, now| state.apply_map_request(id, &request, now));
    applied.await?;
    if omits && !is_stream {
        return Ok(text(StatusCode::OK, ""));
    }
    let ((to, receiver), tenant) = (mpsc::channel(1), Arc::clone(tenant));
    let stream = MapStream { session, connection, to };
    if is_stream {
        tokio::spawn(stream.follow(tenant));
    } else {
        tokio::spawn(stream.once(tenant));
    }
    Ok(Response::new(Answer::Pieces(Pieces::new(receiver))))
}

/// An answer that consists of one frame.
fn pieces(parts: body::Parts) -> Response<Answer> {
    Response::new(Answer::Text(Some(parts.concat().into())))
}
