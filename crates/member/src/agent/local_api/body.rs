//! Bodies of answers: a whole text, or a stream of lines.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    body::{Frame, SizeHint},
    header::{CONTENT_TYPE, HeaderValue},
};
use mesh::local_json::Notify;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::{ApiError, Watcher, watcher};

pub(super) enum Body {
    Whole(Full<Bytes>),
    Lines { notifications: mpsc::Receiver<Arc<Notify>>, _permit: OwnedSemaphorePermit },
}

/// A watcher and the answer that it feeds, unless there are too many.
pub(super) fn watch(permits: &Arc<Semaphore>) -> Option<(Watcher, Response<Body>)> {
    let permit = permits.clone().try_acquire_owned().ok()?;
    let (watcher, notifications) = watcher();
    let body = Body::Lines { notifications, _permit: permit };
    Some((watcher, typed(Response::new(body), "application/json")))
}

pub(super) fn json(value: &impl Serialize) -> Result<Response<Body>, ApiError> {
    let mut text = serde_json::to_vec(value).map_err(ApiError::failed)?;
    text.push(b'\n');
    Ok(typed(Response::new(Body::Whole(text.into())), "application/json"))
}

/// An answer without a body.
pub(super) fn done() -> Response<Body> {
    let mut response = Response::new(Body::Whole(Full::default()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(super) fn text(text: impl Into<Bytes>) -> Response<Body> {
    typed(Response::new(Body::Whole(text.into().into())), "text/plain")
}

impl From<ApiError> for Response<Body> {
    /// As JSON, of which the command prints only the message.
    fn from(error: ApiError) -> Self {
        let text = serde_json::json!({ "error": error.text }).to_string();
        let mut response = typed(Self::new(Body::Whole(text.into())), "application/json");
        *response.status_mut() = error.status;
        response
    }
}

fn typed(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Lines { notifications, .. } => {
                let line = |notify: Arc<Notify>| Ok(Frame::data(notify.line().into()));
                notifications.poll_recv(context).map(|notify| notify.map(line))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Lines { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Lines { .. } => SizeHint::default(),
        }
    }
}
