//! What the server answers over HTTP to anybody.

use std::{convert::Infallible, sync::Arc};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::json;
use tailnet::{
    control::UPGRADE_PATH,
    keys::{MachinePublic, NodePublic},
};

use tower_service::Service;

use crate::{
    api,
    body::{self, Answer, json, text},
    derp, oidc, page,
    serve::Server,
    ts2021,
};

const CHALLENGE: HeaderName = HeaderName::from_static("x-tailscale-challenge");
const CHALLENGED: HeaderName = HeaderName::from_static("x-tailscale-response");
/// The longest question of a relay, in bytes.
const LONGEST: usize = 4 << 10;

/// Answers a request.
pub async fn answer(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let path = request.uri().path();
    let fronts = server.fronts();
    let front = match path {
        _ if path.starts_with(api::ROOT) => Some(&fronts.api),
        _ if path.starts_with(page::ROOT) || path == "/" => Some(&fronts.page),
        _ => None,
    };
    if let Some(front) = front {
        return Ok(front.clone().call(request).await?.map(Answer::Routed));
    }
    Ok(match (request.method(), path) {
        (&Method::GET, "/key") => key(&server),
        (&Method::GET | &Method::POST, UPGRADE_PATH) => ts2021::upgrade(&server, request),
        (&Method::GET, "/derp") if server.relay.is_some() => derp::upgrade(&server, request),
        (&Method::GET | &Method::HEAD, "/derp/probe" | "/derp/latency-check") => probe(),
        (&Method::GET, "/generate_204") => generate_204(&request),
        // Clients ask for addresses of relays; their map has them.
        (&Method::GET, "/bootstrap-dns") => json(StatusCode::OK, "{}".into()),
        (&Method::POST, "/verify") => verify(&server, request).await,
        (&Method::GET, "/health") => json(StatusCode::OK, r#"{"status":"pass"}"#.into()),
        (&Method::GET, _) if path.starts_with("/register/") => registration(&server, path).await,
        (_, path)
            if path.starts_with("/oidc/")
                && let Some(oidc) = &server.oidc =>
        {
            oidc::answer(&server, oidc, request).await
        }
        _ => text(StatusCode::NOT_FOUND, "there is nothing here\n"),
    })
}

/// The key of Noise. The other one is of a protocol that nobody speaks any more.
fn key(server: &Server) -> Response<Answer> {
    let keys = json!({
        "legacyPublicKey": MachinePublic::default(), "publicKey": server.noise.public(),
    });
    json(StatusCode::OK, keys.to_string())
}

/// Browsers measure the way to relays as well.
fn probe() -> Response<Answer> {
    let mut response = text(StatusCode::OK, "");
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Says that nothing stands between client and relay: a captive portal cannot answer the challenge.
fn generate_204(request: &Request<Incoming>) -> Response<Answer> {
    let mut response = text(StatusCode::NO_CONTENT, "");
    let is_sound = |challenge: &&str| {
        challenge.len() <= 64
            && challenge.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    let challenge = request.headers().get(CHALLENGE).and_then(|text| text.to_str().ok());
    if let Some(challenge) = challenge.filter(is_sound)
        && let Ok(answer) = HeaderValue::from_str(&format!("response {challenge}"))
    {
        response.headers_mut().insert(CHALLENGED, answer);
    }
    response
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Verify {
    node_public: NodePublic,
}

/// Tells a relay of others whether it may serve a client.
async fn verify(server: &Server, request: Request<Incoming>) -> Response<Answer> {
    let body = match body::read(request.into_body(), LONGEST).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let Ok(Verify { node_public }) = serde_json::from_slice(&body) else {
        return text(StatusCode::BAD_REQUEST, "not a question of a relay's\n");
    };
    let allow = server.network.read(|state| state.has_key(&node_public));
    json(StatusCode::OK, json!({ "Allow": allow }).to_string())
}

/// The page that a client is sent to that has no key: a login lets it in, or an administrator.
async fn registration(server: &Server, path: &str) -> Response<Answer> {
    let number = path.rsplit('/').next().unwrap_or_default();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return text(StatusCode::NOT_FOUND, "there is no such registration\n");
    }
    if let Some(oidc) = &server.oidc {
        return oidc::begin(server, oidc, number).await;
    }
    let words = format!(
        "This machine waits for an administrator of the network, who runs on the server:\n\n    \
         linerate-server nodes register --user USER --key {number}\n"
    );
    text(StatusCode::OK, &words)
}
