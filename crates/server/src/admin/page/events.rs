//! Notifies pages of changes with server-sent events. A page then requests its content again.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Query, State},
    http::{
        StatusCode,
        header::{CONTENT_TYPE, HeaderName},
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{sleep, timeout},
};

use super::PageSession;
use crate::{
    admin::state::AdminSite,
    clock::now,
    http::body::{Answer, Next, Pieces},
};

/// Minimum time between two events, so that simultaneous changes cause one update.
const REST: Duration = Duration::from_millis(500);
/// Interval of keepalives. Proxies close connections that are silent for a minute.
const SIGN: Duration = Duration::from_secs(25);
/// A browser that reads nothing for this time is disconnected.
const PATIENCE: Duration = Duration::from_secs(20);
/// Header that prevents buffering by proxies.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

const CHANGED: &str = "event: changed\ndata:\n\n";
const SIGN_OF_LIFE: &str = ":\n\n";

#[derive(Deserialize)]
pub(super) struct Since {
    since: u64,
}

pub(super) async fn follow(
    State(site): State<Arc<AdminSite>>,
    session: PageSession,
    Query(Since { since }): Query<Since>,
) -> Response {
    let Ok(room) = Arc::clone(site.streams()).try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (to, from) = mpsc::channel(1);
    tokio::spawn(send_events(session, since, to, room));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (BUFFERING, "no")];
    (headers, Body::new(Answer::Pieces(Pieces::new(from)))).into_response()
}

async fn send_events(
    session: PageSession,
    since: u64,
    to: mpsc::Sender<Next>,
    _room: OwnedSemaphorePermit,
) {
    let PageSession { network, session } = session;
    let mut committed = network.committed();
    // The network may have changed between the page and its stream.
    let mut event = if *committed.borrow_and_update() == since { SIGN_OF_LIFE } else { CHANGED };
    while session.until > now()
        && matches!(
            timeout(PATIENCE, to.send(vec![Bytes::from_static(event.as_bytes())].into())).await,
            Ok(Ok(()))
        )
    {
        sleep(REST).await;
        tokio::select! {
            changed = committed.changed() => match changed {
                Ok(()) => event = CHANGED,
                Err(_) => return,
            },
            () = sleep(SIGN) => event = SIGN_OF_LIFE,
            () = to.closed() => return,
        }
    }
}
