//! Upgrades of a connection to another protocol.

use std::sync::Arc;

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
};

use super::body::Answer;
use crate::net::connections::Connection;

/// The answer that switches protocols.
pub(crate) fn switching(protocol: HeaderValue) -> Response<Answer> {
    let mut response = Response::new(Answer::Text(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, protocol);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

/// The connection that a request arrived on.
pub(crate) fn connection_of(request: &Request<Incoming>) -> Arc<Connection> {
    let connection = request.extensions().get::<Arc<Connection>>();
    Arc::clone(connection.expect("listen.rs puts it into every request"))
}
