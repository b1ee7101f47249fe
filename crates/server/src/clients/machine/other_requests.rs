//! Requests other than registrations and maps, both supported and unsupported ones.

use bytes::Bytes;
use hyper::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::Client;
use crate::{
    clients::pings::{PATH, Pings},
    http::body::{Answer, json, text},
    network::NetworkState,
};

/// Receives a client's answer to a ping.
pub(super) fn receive_ping_answer(
    (network, pings): (&NetworkState, &Pings),
    client: Client,
    path: &str,
    answer: Bytes,
) -> Response<Answer> {
    let number = path.strip_prefix(PATH).unwrap_or_default();
    let target = pings.target(number);
    let is_own = |id| network.read(|state| state.belongs_to_machine(id, &client.machine));
    if !target.is_some_and(is_own) {
        return text(StatusCode::NOT_FOUND, "no ping to this machine has this ID\n");
    }
    pings.answer(number, answer);
    text(StatusCode::OK, "")
}

/// Answers an unsupported request. The client shows the text to its user.
pub(super) fn unsupported(method: &Method, path: &str, body: &[u8]) -> Response<Answer> {
    let words = match (method, path) {
        (&Method::POST, "/machine/feature/query") => return feature(body),
        (&Method::POST, "/machine/set-dns") => {
            "this network does not support certificates: the server lacks a DNS provider\n"
        }
        (&Method::POST, "/machine/id-token") => "this server does not issue identity tokens\n",
        (&Method::PATCH, "/machine/set-device-attr") => {
            "this server does not store device attributes\n"
        }
        (&Method::POST, "/machine/audit-log") => {
            "this server does not store audit logs of clients\n"
        }
        _ if path.starts_with("/machine/webclient/") => {
            "this server does not authenticate the web interface of clients\n"
        }
        _ => "this server does not support this request\n",
    };
    text(StatusCode::NOT_IMPLEMENTED, words)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Query {
    feature: String,
}

/// The answer to a request for a disabled feature (`tailcfg.QueryFeatureResponse`), which tells the
/// client not to wait.
fn feature(body: &[u8]) -> Response<Answer> {
    let Ok(Query { feature }) = serde_json::from_slice(body) else {
        return text(StatusCode::BAD_REQUEST, "not a request for a feature\n");
    };
    let words = match feature.as_str() {
        "serve" => {
            "This network does not support certificates for HTTPS. Serve by --http=80 or --tcp=PORT instead."
        }
        "funnel" => "This network cannot be reached from outside: it does not support Funnel.",
        _ => "This network does not have this feature.",
    };
    json(
        StatusCode::OK,
        json!({ "Complete": false, "Text": words, "ShouldWait": false }).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_requests_get_an_explanation() {
        for (method, path) in [
            (Method::POST, "/machine/set-dns"),
            (Method::POST, "/machine/id-token"),
            (Method::PATCH, "/machine/set-device-attr"),
            (Method::POST, "/machine/audit-log"),
            (Method::POST, "/machine/webclient/init"),
            (Method::GET, "/machine/other"),
        ] {
            assert_eq!(
                unsupported(&method, path, b"").status(),
                StatusCode::NOT_IMPLEMENTED,
                "{path}"
            );
        }
        let query =
            |body: &[u8]| unsupported(&Method::POST, "/machine/feature/query", body).status();
        assert_eq!(query(br#"{"Feature":"serve"}"#), StatusCode::OK);
        assert_eq!(query(b"7"), StatusCode::BAD_REQUEST);
    }
}
