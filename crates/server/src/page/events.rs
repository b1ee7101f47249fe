//! Says that something changed, by server-sent events. What it is a page asks for itself.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{
        StatusCode,
        header::{CONTENT_TYPE, HeaderName},
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{sleep, timeout},
};

use super::Visitor;
use crate::{body::Answer, clock::now};

/// Between two events of a stream: what changes together is shown together.
const REST: Duration = Duration::from_millis(500);
/// Proxies close what says nothing for a minute.
const SIGN: Duration = Duration::from_secs(25);
/// A browser that takes nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(20);
/// The word of the protocol for proxies that would wait for more.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub async fn follow(visitor: Visitor) -> Response {
    let Ok(room) = Arc::clone(&visitor.server.streams).try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (to, from) = mpsc::channel(1);
    tokio::spawn(tell(visitor, to, room));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (BUFFERING, "no")];
    (headers, Body::new(Answer::Pieces(from))).into_response()
}

async fn tell(visitor: Visitor, to: mpsc::Sender<Bytes>, _room: OwnedSemaphorePermit) {
    let Visitor { server, session } = visitor;
    let mut kept = server.network.kept();
    // A page that was made before the stream began may have missed something by then.
    let mut event = "event: changed\ndata:\n\n";
    while session.until > now()
        && matches!(timeout(PATIENCE, to.send(event.into())).await, Ok(Ok(())))
    {
        sleep(REST).await;
        tokio::select! {
            changed = kept.changed() => match changed {
                Ok(()) => event = "event: changed\ndata:\n\n",
                Err(_) => return,
            },
            () = sleep(SIGN) => event = ":\n\n",
            () = to.closed() => return,
        }
    }
}
