//! Requests of `tailscale lock` and `linerate lock` (tailscale `ipn/localapi/tailnetlock.go`).

use base64ct::{Base64, Encoding as _};
use hyper::{Method, StatusCode};
use mesh::tka_command::TkaCommand;
use serde::Deserialize;
use serde_json::Value;
use tailnet::{
    keys::NodePublic,
    tka::{NewKey, TkaKey},
};
use zeroize::Zeroizing;

use super::{
    ApiError, Request,
    body::{done, json, text},
    call::{Answer, Call},
    unsupported::absent,
};

/// The most updates in a log.
const MAX_UPDATES: usize = 2000;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Init {
    keys: Option<Vec<NewKey>>,
    disablement_values: Option<Vec<String>>,
    #[serde(default)]
    support_disablement: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Sign {
    node_key: NodePublic,
    #[serde(default)]
    rotation_public: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Modify {
    add_keys: Option<Vec<NewKey>>,
    remove_keys: Option<Vec<NewKey>>,
}

#[derive(Deserialize)]
struct Wrap {
    #[serde(rename = "TSKey")]
    auth_key: Zeroizing<String>,
    #[serde(rename = "TKAKey")]
    by: Zeroizing<String>,
}

/// Answers a request about tailnet lock.
pub(super) async fn answer(name: &str, call: Call<'_>) -> Answer {
    match name {
        "tka/status" => {
            call.check_read(&Method::GET)?;
            json(&call.request(|reply| Request::TkaStatus { reply }).await?)
        }
        "tka/log" => {
            call.check_read(&Method::GET)?;
            let limit =
                if call.parameter("limit").is_some() { call.required("limit")? } else { 50 };
            json(&run(&call, TkaCommand::Log(MAX_UPDATES.min(limit))).await?)
        }
        "tka/affected-sigs" => {
            call.check_read(&Method::POST)?;
            let api = call.api;
            let body = call.bytes().await?;
            let key = <[u8; 32]>::try_from(&body[..]).map_err(|_| ApiError::bad("not a key"))?;
            let command = TkaCommand::Affected(key);
            json(&api.request(|reply| Request::Tka { command: Box::new(command), reply }).await?)
        }
        _ => change(name, call).await,
    }
}

async fn change(name: &str, call: Call<'_>) -> Answer {
    let operations = ["init", "sign", "modify", "disable", "wrap-preauth-key"];
    if !operations.iter().any(|known| name.strip_prefix("tka/") == Some(*known)) {
        return Err(absent(name));
    }
    call.check_write(&Method::POST)?;
    let api = call.api;
    let command = match name {
        "tka/init" => init_command(call.body().await?)?,
        "tka/sign" => {
            let Sign { node_key: node, rotation_public } = call.body().await?;
            let wrapping = bytes(&rotation_public.unwrap_or_default())?;
            TkaCommand::Sign { node, wrapping }
        }
        "tka/modify" => {
            let Modify { add_keys, remove_keys } = call.body().await?;
            let (add, remove) = (add_keys.unwrap_or_default(), remove_keys.unwrap_or_default());
            TkaCommand::Modify { add, remove }
        }
        "tka/disable" => TkaCommand::Disable(call.bytes().await?.to_vec().into()),
        _ => {
            let Wrap { auth_key, by } = call.body().await?;
            let by: TkaKey = by.parse().map_err(ApiError::bad)?;
            TkaCommand::Wrap { auth_key, by }
        }
    };
    let answer = api.request(|reply| Request::Tka { command: Box::new(command), reply }).await?;
    match name {
        "tka/init" => json(&api.request(|reply| Request::TkaStatus { reply }).await?),
        "tka/modify" => {
            let mut response = done();
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        }
        "tka/wrap-preauth-key" => Ok(text(answer.as_str().unwrap_or_default().to_owned())),
        _ => Ok(text("")),
    }
}

fn init_command(init: Init) -> Result<TkaCommand, ApiError> {
    if init.support_disablement.is_some_and(|secret| !secret.is_empty()) {
        return Err(ApiError::bad(
            "linerate does not send a disablement secret to the coordinator: omit \
             --gen-disablement-for-support",
        ));
    }
    let values = init.disablement_values.unwrap_or_default();
    let hash = |text: &String| -> Result<[u8; 32], ApiError> {
        bytes(text)?.try_into().map_err(|_| ApiError::bad("not a hash"))
    };
    let disablers = values.iter().map(hash).collect::<Result<_, _>>()?;
    Ok(TkaCommand::Init { keys: init.keys.unwrap_or_default(), disablement_hashes: disablers })
}

fn bytes(base64: &str) -> Result<Vec<u8>, ApiError> {
    Base64::decode_vec(base64).map_err(|_| ApiError::bad("not base64"))
}

async fn run(call: &Call<'_>, command: TkaCommand) -> Result<Value, ApiError> {
    call.request(|reply| Request::Tka { command: Box::new(command), reply }).await
}
