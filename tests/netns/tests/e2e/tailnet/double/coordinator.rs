//! Connections and answers of the coordinator.

use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use doubles::coordinator::{Coordinator, MapStream, MemberRequest, packed};
use serde_json::json;
use tokio::io::{copy_bidirectional, duplex};
use tokio::time::sleep;

use super::maps::Network;
use super::{Payload, Shared, Stream};

/// The coordinator's state, and the streams that continue with maps.
pub(super) struct State {
    pub network: Network,
    /// By the node's key.
    streams: Vec<(String, MapStream)>,
}

impl State {
    pub(super) fn of_regions(regions: u16) -> Self {
        Self { network: Network::of_regions(regions), streams: Vec::new() }
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes connections.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let listener = super::listener(listener);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, shared) = (shared.tls(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(mut stream) = tls.accept(stream).await else { return };
            let (mut near, far) = duplex(64 << 10);
            let acceptor = shared.acceptor.clone();
            tokio::spawn(async move { acceptor.serve(far).await });
            tokio::select! {
                _ = copy_bidirectional(&mut stream, &mut near) => {}
                () = shared.cut.notified() => {}
            }
        });
    }
}

/// Answers requests.
pub(super) async fn answer(mut coordinator: Coordinator, shared: Arc<Shared>) {
    loop {
        let request = coordinator.next_request().await;
        shared.state().network.learn(&request.body);
        if request.path == "/machine/register" {
            let user = json!({ "ID": 1, "LoginName": "rig@rig.test", "DisplayName": "Rig" });
            request.json(&json!({ "User": user, "Login": user, "MachineAuthorized": true }));
        } else if request.is_stream() {
            shared.streams.fetch_add(1, Ordering::Relaxed);
            begin(request, &shared);
        } else {
            request.status(200, "");
            send_maps(&shared).await;
        }
    }
}

fn begin(request: MemberRequest, shared: &Arc<Shared>) {
    let key = request.body["NodeKey"].as_str().unwrap_or_default().to_owned();
    let (stream, shared) = (request.stream(), Arc::clone(shared));
    tokio::spawn(async move {
        let script = shared.stream.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut first = shared.state().network.map(&key);
        match script {
            Stream::Good => {
                shared.state().streams.push((key, stream));
                send_maps(&shared).await;
            }
            Stream::Then(words) => {
                if stream.offers(&packed(&first)).await {
                    send_payload(stream, &words).await;
                }
            }
            Stream::First(change) => {
                change(&mut first);
                send_payload(stream, &Payload::once(packed(&first))).await;
            }
        }
    });
}

async fn send_payload(stream: MapStream, payload: &Payload) {
    for piece in payload.pieces() {
        if !stream.offers(piece).await {
            return;
        }
        sleep(payload.rest).await;
    }
    if !payload.then_ends {
        std::future::pending::<()>().await;
    }
}

/// Sends the current map to all valid streams.
async fn send_maps(shared: &Shared) {
    let streams = std::mem::take(&mut shared.state().streams);
    for (key, stream) in streams {
        let map = packed(&shared.state().network.map(&key));
        if stream.offers(&map).await {
            shared.state().streams.push((key, stream));
        }
    }
}
