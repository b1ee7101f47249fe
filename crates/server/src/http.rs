//! What the server answers over HTTP to anybody.

use std::{convert::Infallible, env, sync::Arc};

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
    acme, api,
    body::{self, Answer, json, text},
    clock::now,
    derp,
    machine::ssh,
    networks::{Astray, Networks},
    oidc::{self, Purpose},
    page,
    serve::Server,
    ts2021,
};

const CHALLENGE: HeaderName = HeaderName::from_static("x-tailscale-challenge");
const CHALLENGED: HeaderName = HeaderName::from_static("x-tailscale-response");
/// The longest question of a relay, in bytes.
const LONGEST: usize = 4 << 10;

/// Answers a request, by the network that it is for. An authority asks about names, which may be none
/// of a network's.
pub fn answer(
    networks: &Networks,
    sni: Option<&str>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
    let path = request.uri().path();
    let is_authority = *request.method() == Method::GET && path.starts_with(acme::ROOT);
    let found = match &networks.acme {
        Some(resolver) if is_authority => Err(acme::answer(resolver, path)),
        _ => networks.of(sni, &request).map(Arc::clone).map_err(Astray::response),
    };
    async move {
        match found {
            Ok(server) => answer_of(server, request).await,
            Err(answer) => Ok(answer),
        }
    }
}

/// Answers a request for this network.
async fn answer_of(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let path = request.uri().path();
    let fronts = server.fronts();
    let front = match path {
        _ if path.starts_with(api::BASE) => Some(&fronts.api),
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
        // In boxes: the future of every request would be as large.
        (&Method::POST, "/verify") => Box::pin(verify(&server, request)).await,
        (&Method::GET, "/version") => version(),
        (&Method::GET, "/health") => Box::pin(server.health.answer(&server.network)).await,
        (&Method::GET, _) if path.starts_with("/register/") => {
            Box::pin(waiting(&server, path, Purpose::Machine)).await
        }
        (&Method::GET, _) if path.starts_with(ssh::PAGE) => {
            Box::pin(waiting(&server, path, Purpose::Ssh)).await
        }
        (_, path)
            if path.starts_with("/oidc/")
                && let Some(oidc) = &server.oidc =>
        {
            Box::pin(oidc::answer(&server, oidc, request)).await
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

/// The version in headscale's form. Clients of headscale choose their requests by it, so it begins with a
/// version of headscale: that of the API at `/api/v1/`.
fn version() -> Response<Answer> {
    let version = format!("v0.29.2+linerate-server.{}", env!("CARGO_PKG_VERSION"));
    let version = json!({
        "version": version, "commit": "unknown", "buildTime": "unknown", "dirty": false,
        "go": { "version": "none", "os": env::consts::OS, "arch": env::consts::ARCH },
    });
    json(StatusCode::OK, version.to_string())
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
    let allow = server.network.read(|state| state.has_valid_key(&node_public, now()));
    json(StatusCode::OK, json!({ "Allow": allow }).to_string())
}

/// The page of what waits under a number: a machine without a key, or a login by SSH that is checked.
/// A login at the provider lets it go on, or an administrator.
async fn waiting(server: &Server, path: &str, purpose: Purpose) -> Response<Answer> {
    let Some(number) = number(path) else {
        return text(StatusCode::NOT_FOUND, "nothing waits there\n");
    };
    if let Some(oidc) = &server.oidc {
        return oidc::begin(server, oidc, purpose, number).await;
    }
    let (what, command) = (purpose.what(), purpose.command(number));
    let words = format!(
        "This {what} waits for an administrator of the network, who runs on the server:\n\n    \
         {command}\n"
    );
    text(StatusCode::OK, &words)
}

/// The number that a link ends with.
fn number(path: &str) -> Option<&str> {
    let number = path.rsplit('/').next()?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then_some(number)
}
