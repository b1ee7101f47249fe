//! Says that something changed, by server-sent events. What it is a page asks for itself.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Query,
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

use super::Visitor;
use crate::{
    body::{Answer, Next, Pieces},
    clock::now,
};

/// Between two events of a stream: what changes together is shown together.
const REST: Duration = Duration::from_millis(500);
/// Proxies close what says nothing for a minute.
const SIGN: Duration = Duration::from_secs(25);
/// A browser that takes nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(20);
/// The word of the protocol for proxies that would wait for more.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

const CHANGED: &str = "event: changed\ndata:\n\n";
const SIGN_OF_LIFE: &str = ":\n\n";

#[derive(Deserialize)]
pub struct Since {
    since: u64,
}

pub async fn follow(visitor: Visitor, Query(Since { since }): Query<Since>) -> Response {
    let Ok(room) = Arc::clone(&visitor.server.streams).try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (to, from) = mpsc::channel(1);
    tokio::spawn(tell(visitor, since, to, room));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (BUFFERING, "no")];
    (headers, Body::new(Answer::Pieces(Pieces::new(from)))).into_response()
}

async fn tell(visitor: Visitor, since: u64, to: mpsc::Sender<Next>, _room: OwnedSemaphorePermit) {
    let Visitor { server, session } = visitor;
    let mut kept = server.network.kept();
    // Something may have changed between the page and its stream.
    let mut event = if *kept.borrow_and_update() == since { SIGN_OF_LIFE } else { CHANGED };
    while session.until > now()
        && matches!(
            timeout(PATIENCE, to.send(vec![Bytes::from_static(event.as_bytes())].into())).await,
            Ok(Ok(()))
        )
    {
        sleep(REST).await;
        tokio::select! {
            changed = kept.changed() => match changed {
                Ok(()) => event = CHANGED,
                Err(_) => return,
            },
            () = sleep(SIGN) => event = SIGN_OF_LIFE,
            () = to.closed() => return,
        }
    }
}
