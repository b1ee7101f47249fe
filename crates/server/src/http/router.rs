//! HTTP requests that need no authentication.

use std::{convert::Infallible, env, sync::Arc};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::json;
use tailnet::{
    keys::{MachinePublic, NodePublic},
    ts2021::UPGRADE_PATH,
};

use tower_service::Service;

use crate::{
    admin::{api, page},
    clients::{machine::ssh, ts2021},
    clock::now,
    derp,
    http::body::{self, Answer, json, text},
    oidc::{self, Purpose},
    tenants::{RoutingError, Tenants, tenant::Tenant},
    tls::acme,
};

const CHALLENGE: HeaderName = HeaderName::from_static("x-tailscale-challenge");
const CHALLENGED: HeaderName = HeaderName::from_static("x-tailscale-response");
/// Maximum size of a relay's request, in bytes.
const LONGEST: usize = 4 << 10;

/// Routes a request to its network, and answers it. ACME challenges are answered for any host name.
pub(crate) fn answer(
    tenants: &Tenants,
    sni: Option<&str>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
    let path = request.uri().path();
    let is_authority = *request.method() == Method::GET && path.starts_with(acme::ROOT);
    let found = match &tenants.acme {
        Some(resolver) if is_authority => Err(acme::answer(resolver, path)),
        _ => tenants.of(sni, &request).map(Arc::clone).map_err(RoutingError::response),
    };
    async move {
        match found {
            Ok(tenant) => answer_of(tenant, request).await,
            Err(answer) => Ok(answer),
        }
    }
}

/// Answers a request for this network.
async fn answer_of(
    tenant: Arc<Tenant>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let path = request.uri().path();
    let fronts = &tenant.fronts;
    let front = match path {
        _ if path.starts_with(api::BASE) => Some(&fronts.api),
        _ if path.starts_with(page::ROOT) || path == "/" => Some(&fronts.page),
        _ => None,
    };
    if let Some(front) = front {
        return Ok(front.clone().call(request).await?.map(Answer::Routed));
    }
    Ok(match (request.method(), path) {
        (&Method::GET, "/key") => key(&tenant),
        (&Method::GET | &Method::POST, UPGRADE_PATH) => ts2021::upgrade(&tenant.control, request),
        (&Method::GET, "/derp") if let Some(relay) = &tenant.relay => {
            derp::upgrade(relay, &tenant.network, request)
        }
        (&Method::GET | &Method::HEAD, "/derp/probe" | "/derp/latency-check") => probe(),
        (&Method::GET, "/generate_204") => generate_204(&request),
        // Clients request the addresses of relays here. They have them from their map.
        (&Method::GET, "/bootstrap-dns") => json(StatusCode::OK, "{}".into()),
        // Boxed, because otherwise the future of every request would be as large.
        (&Method::POST, "/verify") => Box::pin(verify(&tenant, request)).await,
        (&Method::GET, "/version") => version(),
        (&Method::GET, "/health") => Box::pin(tenant.health.answer(&tenant.network)).await,
        (&Method::GET, _) if path.starts_with("/register/") => {
            Box::pin(waiting(&tenant, path, Purpose::Machine)).await
        }
        (&Method::GET, _) if path.starts_with(ssh::PAGE) => {
            Box::pin(waiting(&tenant, path, Purpose::Ssh)).await
        }
        (_, path)
            if path.starts_with("/oidc/")
                && let Some(oidc) = &tenant.oidc =>
        {
            Box::pin(oidc::answer(&tenant.network, oidc, request)).await
        }
        _ => text(StatusCode::NOT_FOUND, "not found\n"),
    })
}

/// The server's Noise key. The legacy key belongs to a protocol that no client uses any more.
fn key(tenant: &Tenant) -> Response<Answer> {
    let keys = json!({
        "legacyPublicKey": MachinePublic::default(), "publicKey": tenant.noise,
    });
    json(StatusCode::OK, keys.to_string())
}

/// The version in headscale's form. Clients of headscale select their requests by it, so it starts
/// with the headscale version whose API is at `/api/v1/`.
fn version() -> Response<Answer> {
    let version = format!("v0.29.2+linerate-server.{}", env!("CARGO_PKG_VERSION"));
    let version = json!({
        "version": version, "commit": "unknown", "buildTime": "unknown", "dirty": false,
        "go": { "version": "none", "os": env::consts::OS, "arch": env::consts::ARCH },
    });
    json(StatusCode::OK, version.to_string())
}

/// Browsers measure the latency of relays as well.
fn probe() -> Response<Answer> {
    let mut response = text(StatusCode::OK, "");
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Confirms a direct connection to the server: a captive portal does not answer the challenge.
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

/// Answers another relay whether it may serve a client.
async fn verify(tenant: &Tenant, request: Request<Incoming>) -> Response<Answer> {
    let body = match body::read(request.into_body(), LONGEST).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let Ok(Verify { node_public }) = serde_json::from_slice(&body) else {
        return text(StatusCode::BAD_REQUEST, "not a request of a relay\n");
    };
    let allow = tenant.network.read(|state| state.has_valid_key(&node_public, now()));
    json(StatusCode::OK, json!({ "Allow": allow }).to_string())
}

/// The page for a waiting registration or SSH login. It is approved by a login at the provider or by
/// an administrator.
async fn waiting(tenant: &Tenant, path: &str, purpose: Purpose) -> Response<Answer> {
    let Some(number) = number(path) else {
        return text(StatusCode::NOT_FOUND, "no such registration or login\n");
    };
    if let Some(oidc) = &tenant.oidc {
        return oidc::begin(&tenant.network, oidc, purpose, number).await;
    }
    let (what, command) = (purpose.what(), purpose.command(number));
    let words = format!(
        "This {what} waits for an administrator of the network. To approve it, run on the server:\n\n    \
         {command}\n"
    );
    text(StatusCode::OK, &words)
}

/// The ID at the end of a path.
fn number(path: &str) -> Option<&str> {
    let number = path.rsplit('/').next()?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then_some(number)
}
