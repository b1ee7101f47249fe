//! Requests of machines, inside Noise. The handshake proves the machine key. Each request checks
//! that the node key belongs to this machine.

mod other_requests;
pub(crate) mod ssh;
mod waiting_requests;

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use coordinator::{MapRequest, RegisterCommand, RegisterRequest, RegisterResponse, Session, State};
use hyper::{Method, Response, StatusCode, Uri, body::Incoming};
use tailnet::keys::{MachineKey, MachinePublic};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use self::waiting_requests::WaitingRequests;
use crate::{
    admin::{sessions::Sessions, slow_hash},
    clients::{
        frames::encode_frame,
        map_stream::{MapSource, MapStream},
        pings::{self, Pings},
        tka,
    },
    clock::now,
    http::body::{self, Answer, Pieces, json, text},
    net::{
        address::ServerUrl,
        connections::{self, Connection},
    },
    network::NetworkState,
    random::random_number,
};

/// The oldest supported client version, of 1.80. It understands all messages of the server.
const OLDEST: u16 = 113;
/// How long a request waits for an administrator's decision. The client then repeats it.
const HOLD: Duration = Duration::from_secs(50);

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    /// Its machine key.
    pub machine: MachinePublic,
    /// Its protocol version.
    pub version: u16,
    /// Its source: an IPv4 address, or an IPv6 network.
    pub from: IpAddr,
}

/// Parts of a network that its machines use.
pub struct ControlPlane {
    network: Arc<NetworkState>,
    /// The Noise key.
    noise: MachineKey,
    /// URL under which clients reach the network.
    url: ServerUrl,
    /// Name of the network in streams. It is the same at all servers of a shared database.
    name: String,
    maps: Arc<MapSource>,
    pings: Arc<Pings>,
    waiting_requests: WaitingRequests,
    /// Counts wrong auth keys.
    sessions: Arc<Sessions>,
}

impl ControlPlane {
    /// Creates the control plane of a network. `name` identifies it in streams.
    pub fn new(
        (network, pings, sessions): (Arc<NetworkState>, Arc<Pings>, Arc<Sessions>),
        noise: MachineKey,
        url: ServerUrl,
        name: String,
    ) -> Self {
        let maps = Arc::new(MapSource::new(Arc::clone(&network), Arc::clone(&pings)));
        let waiting_requests = WaitingRequests::default();
        Self { network, noise, url, name, maps, pings, waiting_requests, sessions }
    }

    /// The Noise key.
    pub fn noise(&self) -> &MachineKey {
        &self.noise
    }

    /// Whether a machine has a node in the network.
    pub fn has_machine(&self, machine: &MachinePublic) -> bool {
        self.network.read(|state| state.has_machine(machine))
    }

    /// Wakes requests whose registrations are decided, until the network ends.
    pub async fn wake_decided_requests(&self) {
        self.waiting_requests.follow(&self.network).await;
    }
}

/// Answers a request.
pub(crate) async fn answer(
    control: Arc<ControlPlane>,
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
            Box::pin(ssh::answer((&control.network, &control.url), client, &uri)).await
        }
        // Older clients send this. The server does not use it.
        (&Method::POST, "/machine/update-health") => Ok(text(StatusCode::OK, "")),
        _ if path.starts_with("/machine/") => {
            let longest = longest(&control, &client, connection.longest_body(), path);
            match body::read_while(body, longest, |bytes| guard.takes(bytes)).await {
                Ok(body) => {
                    let connection = Arc::clone(&connection);
                    // Boxed: until its body is read, a request takes little
                    // memory.
                    Box::pin(with_body(&control, client, connection, (&method, path), body)).await
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
    control: &ControlPlane,
    client: Client,
    connection: Arc<Connection>,
    (method, path): (&Method, &str),
    body: Bytes,
) -> anyhow::Result<Response<Answer>> {
    match (method, path) {
        (&Method::POST, "/machine/map") => map(control, client, connection, &body).await,
        (&Method::POST, "/machine/register") => register(control, client, &body).await,
        (&Method::HEAD | &Method::POST, _) if path.starts_with(pings::PATH) => {
            Ok(other_requests::receive_ping_answer(
                (&control.network, &control.pings),
                client,
                path,
                body,
            ))
        }
        (&Method::GET | &Method::POST, _) if path.starts_with(tka::ROOT) => {
            tka::answer(&control.network, client.machine, &path[tka::ROOT.len()..], &body).await
        }
        _ => Ok(other_requests::unsupported(method, path, &body)),
    }
}

/// Maximum size of a request's body, in bytes. `most` is the limit for other requests of the
/// connection.
fn longest(control: &ControlPlane, client: &Client, most: usize, path: &str) -> usize {
    let turns_lock_on = |state: &State| state.is_initializing_tka(&client.machine, now());
    match path {
        _ if path.starts_with(pings::PATH) => most.min(pings::LONGEST),
        _ if path.starts_with(tka::ROOT) && control.network.read(turns_lock_on) => {
            most.max(connections::LONGEST_TKA_BODY)
        }
        _ => most,
    }
}

async fn register(
    control: &ControlPlane,
    client: Client,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = RegisterRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request to register\n"));
    };
    control.network.refresh().await;
    let find = |state: &State, now| state.unverified_key(&request, now);
    slow_hash::prove(&control.network, &control.sessions, client.from, find).await?;
    let (request, url) = (Arc::new(request), Arc::new(format!("{}/register/", control.url)));
    let number = random_number()?;
    let deadline = Instant::now() + HOLD;
    loop {
        let (body, root, number) = (Arc::clone(&request), Arc::clone(&url), number.clone());
        let registered = control.network.run(move |state, now| {
            let (machine, number, from) = (client.machine, number.as_str(), Some(client.from));
            state.register(
                RegisterCommand { machine, request: &body, number, url: &root, from },
                now,
            )
        });
        match registered.await? {
            RegisterResponse::Immediate(answer) => return Ok(json(StatusCode::OK, answer)),
            RegisterResponse::Refused(answer) => {
                control.network.counters().refused.machine.add(1);
                return Ok(json(StatusCode::OK, answer));
            }
            RegisterResponse::Deferred(answer) => {
                let followed = request.followup.strip_prefix(&**url).unwrap_or_default();
                let decided = control.waiting_requests.wait(&control.network, followed);
                if !timeout_at(deadline, decided).await.unwrap_or_default() {
                    return Ok(json(StatusCode::OK, answer));
                }
            }
        }
    }
}

async fn map(
    control: &ControlPlane,
    client: Client,
    connection: Arc<Connection>,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Ok(request) = MapRequest::read(body) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request for a map\n"));
    };
    let key = request.node_key;
    let owned = || control.network.read(|state| state.find_machine_node(&client.machine, &key));
    let owned = match owned() {
        // It may have joined at another server a moment ago.
        None => {
            anyhow::ensure!(control.network.refresh().await, "the database does not answer");
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
    let session = Session::new(id, key).resumable(&control.name, &request);
    if let Some(version) = control.network.read(|state| session.resumed_version(state)) {
        control.network.catch_up(version).await;
    }
    let applied = control.network.run(move |state, now| state.apply_map_request(id, &request, now));
    applied.await?;
    if omits && !is_stream {
        return Ok(text(StatusCode::OK, ""));
    }
    let ((to, receiver), source) = (mpsc::channel(1), Arc::clone(&control.maps));
    let stream = MapStream { session, connection, to };
    if is_stream {
        tokio::spawn(stream.follow(source));
    } else {
        tokio::spawn(stream.once(source));
    }
    Ok(Response::new(Answer::Pieces(Pieces::new(receiver))))
}

/// An answer that consists of one frame.
fn pieces(parts: body::Parts) -> Response<Answer> {
    Response::new(Answer::Text(Some(parts.concat().into())))
}
