//! The paths below `/localapi/v0/`.

use std::net::{IpAddr, SocketAddr};

use hyper::{Method, Response, body::Incoming, header::HeaderValue};
use mesh::{
    local_json::{PingKind, Status, WatchMask},
    prefs::Prefs,
};
use serde_json::{Value, json};
use tailnet::keys::NodePublic;

use super::{
    ApiError, Request, WhoIsQuery,
    api::Api,
    body::{Body, done, json, text, watch},
    call::{Answer, Call},
    tka,
    unsupported::absent,
};

/// The longest datagram of a ping: the largest MTU that is probed (tailscale
/// `magicsock/peermtu.go`), less the headers of IPv6 and UDP.
const MAX_PING: u16 = 9000 - 48;

/// Answers a request of a user.
pub(super) async fn answer(
    api: &Api,
    user: u32,
    request: hyper::Request<Incoming>,
) -> Response<Body> {
    let mut response = match route(api, user, request).await {
        Ok(response) => response,
        Err(error) => error.into(),
    };
    let headers = response.headers_mut();
    headers.insert("Content-Security-Policy", HeaderValue::from_static("default-src 'none'"));
    headers.insert("X-Content-Type-Options", HeaderValue::from_static("nosniff"));
    // `Tailscale-Version` is absent, because the command would warn about a different version.
    response
}

async fn route(api: &Api, user: u32, request: hyper::Request<Incoming>) -> Answer {
    match Call::new(api, user, request)? {
        (Some(name), call) => dispatch(&name, call).await,
        (None, call) if call.path == "/" => Ok(text("linerate\n")),
        (None, call) => Err(ApiError::absent(format_args!("not found: {}", call.path))),
    }
}

/// Answers the request with this name.
async fn dispatch(name: &str, call: Call<'_>) -> Answer {
    match name {
        "prefs" | "check-prefs" | "start" | "login-interactive" | "logout" => {
            change(name, call).await
        }
        "status" | "whois" | "ping" | "watch-ipn-bus" => read(name, call).await,
        "derpmap" | "dns-config" | "peer-by-id" | "user-profile" | "cert-domains" | "debug" => {
            map(name, call).await
        }
        _ if name.starts_with("tka/") => tka::answer(name, call).await,
        _ if name.starts_with("linerate/") => own(name, call).await,
        _ if name.starts_with("profiles/") => profiles(name, call).await,
        _ => constant(name, call).await,
    }
}

async fn change(name: &str, call: Call<'_>) -> Answer {
    match name {
        "prefs" if call.method == Method::PATCH => {
            call.check_write(&Method::PATCH)?;
            let api = call.api;
            let edits = call.body().await?;
            json(&*api.request(|reply| Request::EditPrefs { edits, reply }).await?)
        }
        "prefs" => {
            call.check_read(&Method::GET)?;
            json(&*call.request(|reply| Request::Prefs { reply }).await?)
        }
        "check-prefs" => {
            call.check_write(&Method::POST)?;
            let api = call.api;
            let prefs: Box<Prefs> = call.body().await?;
            prefs.check()?;
            api.request(|reply| Request::CheckPrefs { prefs, reply }).await?;
            json(&json!({}))
        }
        "start" => {
            call.check_write(&Method::POST)?;
            let api = call.api;
            let options: mesh::local_json::StartOptions = call.body().await?;
            if let Some(prefs) = &options.update_prefs {
                prefs.check()?;
            }
            api.request(|reply| Request::Start { options, reply }).await?;
            Ok(done())
        }
        "login-interactive" => {
            call.check_write(&Method::POST)?;
            call.request(|reply| Request::LoginInteractive { reply }).await?;
            Ok(done())
        }
        _ => {
            call.check_write(&Method::POST)?;
            call.request(|reply| Request::Logout { reply }).await?;
            Ok(done())
        }
    }
}

async fn read(name: &str, call: Call<'_>) -> Answer {
    match name {
        "status" => {
            call.check_read(&Method::GET)?;
            let peers = call.parameter("peers");
            let without =
                matches!(peers.as_deref(), Some("false" | "False" | "FALSE" | "f" | "F" | "0"));
            json(&*status(&call, !without).await?)
        }
        "whois" => {
            call.check_read(&Method::GET)?;
            let query = whois_query(&call)?;
            let found = call.request(|reply| Request::WhoIs { query, reply }).await?;
            json(&*found.ok_or_else(|| ApiError::absent("no match for IP:port"))?)
        }
        "ping" => {
            call.check_read(&Method::POST)?;
            let ip: IpAddr = call.required("ip")?;
            let kind: PingKind = call.required("type")?;
            let size = if call.parameter("size").is_some() { call.required("size")? } else { 0 };
            if size != 0 && kind != PingKind::Disco {
                return Err(ApiError::bad("'size' parameter is only supported with disco pings"));
            }
            if size > MAX_PING {
                return Err(ApiError::bad(format_args!("maximum value for 'size' is {MAX_PING}")));
            }
            json(&call.request(|reply| Request::Ping { ip, kind, size, reply }).await?)
        }
        _ => {
            call.check_read(&Method::GET)?;
            let mask: WatchMask =
                call.parameter("mask").unwrap_or_default().parse().map_err(ApiError::bad)?;
            let (watcher, response) =
                watch(call.api.watchers()).ok_or_else(|| ApiError::not_now("too many watchers"))?;
            let request = Request::Watch { mask, watcher };
            call.api.send(request).await?;
            Ok(response)
        }
    }
}

fn whois_query(call: &Call<'_>) -> Result<WhoIsQuery, ApiError> {
    let address: String = call.required("addr")?;
    if address.starts_with(NodePublic::PREFIX) {
        let bad = |_| ApiError::bad("invalid nodekey in 'addr' parameter");
        return address.parse().map(WhoIsQuery::Key).map_err(bad);
    }
    let alone = address.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
    let address = alone.or_else(|_| address.parse());
    let address = address.map_err(|_| ApiError::bad("invalid 'addr' parameter"))?;
    let protocol = call.parameter("proto").unwrap_or_default().into_owned();
    Ok(WhoIsQuery::Address { address, protocol })
}

async fn map(name: &str, call: Call<'_>) -> Answer {
    let part = match name {
        // It writes nothing, but shows everything.
        "debug" => match call.parameter("action").as_deref() {
            Some("current-netmap") => {
                call.check_write(&Method::POST)?;
                call.request(|reply| Request::NetMap { reply }).await?
            }
            _ => return Err(ApiError::unsupported("tailscale debug")),
        },
        _ => {
            call.check_read(&Method::GET)?;
            match name {
                "derpmap" => return json(&call.request(|reply| Request::DerpMap { reply }).await?),
                "dns-config" => call.request(|reply| Request::DnsConfig { reply }).await?,
                "peer-by-id" => {
                    let id = call.required("id")?;
                    let node = call.request(|reply| Request::Node { id, reply }).await?;
                    return found(&node, "no peer with that NodeID");
                }
                "user-profile" => {
                    let id: i64 = call.required("id")?;
                    let status = status(&call, true).await?;
                    let user = status.user.get(&id).map(|user| json!(user)).unwrap_or_default();
                    return found(&user, "no user with that UserID");
                }
                _ => {
                    let mut domains = status(&call, false).await?.cert_domains;
                    domains.sort();
                    json!(domains)
                }
            }
        }
    };
    if part.is_null() { Err(ApiError::not_now("no netmap")) } else { json(&part) }
}

fn found(value: &Value, otherwise: &str) -> Answer {
    if value.is_null() { Err(ApiError::absent(otherwise)) } else { json(value) }
}

async fn status(call: &Call<'_>, peers: bool) -> Result<Box<Status>, ApiError> {
    call.request(|reply| Request::Status { peers, reply }).await
}

/// Requests of linerate's own commands.
async fn own(name: &str, call: Call<'_>) -> Answer {
    match name {
        "linerate/why" => {
            call.check_read(&Method::GET)?;
            let target = call.required("target")?;
            json(&call.request(|reply| Request::Why { target, reply }).await?)
        }
        "linerate/netcheck" => {
            call.check_read(&Method::GET)?;
            json(&call.request(|reply| Request::Netcheck { reply }).await?)
        }
        _ => Err(ApiError::absent(format_args!("not found: {name}"))),
    }
}

/// A node has one login, which is the only profile.
async fn profiles(name: &str, call: Call<'_>) -> Answer {
    if call.method != Method::GET {
        return Err(ApiError::unsupported("several profiles; `linerate join` makes another node"));
    }
    call.check_write(&Method::GET)?;
    let prefs = call.request(|reply| Request::Prefs { reply }).await?;
    let tailnet = status(&call, false).await?.current_tailnet.unwrap_or_default();
    let login = prefs.login.unwrap_or_default();
    let profile = json!({
        "ID": "linerate",
        "Name": if prefs.profile_name.is_empty() { &login.user_profile.login_name } else { &prefs.profile_name },
        "NetworkProfile": {
            "MagicDNSName": tailnet.magic_dns_suffix,
            "DomainName": tailnet.name,
        },
        "Key": "profile-linerate",
        "UserProfile": login.user_profile,
        "NodeID": login.node_id,
        "LocalUserID": "",
        "ControlURL": prefs.control_url,
    });
    match name {
        "profiles/" => json(&[profile]),
        "profiles/current" | "profiles/linerate" => json(&profile),
        _ => Err(ApiError::absent("Profile not found")),
    }
}

/// Constant answers, and unsupported requests.
async fn constant(name: &str, call: Call<'_>) -> Answer {
    let is_get = call.method == Method::GET;
    match name {
        "check-ip-forwarding" => {
            call.check_read(&Method::GET)?;
            let warning = call.request(|reply| Request::Forwarding { reply }).await?;
            json(&json!({ "Warning": warning }))
        }
        // `linerate doctor` checks these.
        "check-udp-gro-forwarding" if is_get => json(&json!({ "Warning": "" })),
        "check-so-mark-in-use" if is_get => json(&json!({ "UseSOMark": true })),
        "update/check" if is_get => json(&json!({ "RunningLatest": true })),
        // `tailscale status` requests the first, and `tailscale ip` the second.
        "serve-config" | "services" if is_get => json(&json!({})),
        _ => Err(absent(name)),
    }
}
