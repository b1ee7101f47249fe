//! What clients ask beside their registration and their map, of what this server does and does not.

use bytes::Bytes;
use hyper::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::Client;
use crate::{
    body::{Answer, json, text},
    pings,
    serve::Server,
};

/// Takes the answer to a question that the server put to a client.
pub fn answered(server: &Server, client: Client, path: &str, said: Bytes) -> Response<Answer> {
    let number = path.strip_prefix(pings::PATH).unwrap_or_default();
    let asked = server.pings.asked(number);
    let is_own = |id| server.network.read(|state| state.belongs_to_machine(id, &client.machine));
    if !asked.is_some_and(is_own) {
        return text(StatusCode::NOT_FOUND, "this machine was not asked\n");
    }
    server.pings.answer(number, said);
    text(StatusCode::OK, "")
}

/// Answers what this server does not do: what it says is what the client's user reads.
pub fn not_done(method: &Method, path: &str, body: &[u8]) -> Response<Answer> {
    let words = match (method, path) {
        (&Method::POST, "/machine/feature/query") => return feature(body),
        (&Method::POST, "/machine/set-dns") => {
            "this network has no certificates: the server has no DNS provider\n"
        }
        (&Method::POST, "/machine/id-token") => "this server does not issue identity tokens\n",
        (&Method::PATCH, "/machine/set-device-attr") => {
            "this server keeps no attributes of devices\n"
        }
        (&Method::POST, "/machine/audit-log") => "this server keeps no audit log of clients\n",
        _ if path.starts_with("/machine/webclient/") => {
            "this server does not authenticate the web interface of clients\n"
        }
        _ => "this server does not do that\n",
    };
    text(StatusCode::NOT_IMPLEMENTED, words)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Query {
    feature: String,
}

/// `tailcfg.QueryFeatureResponse`: what is said where a user asks for a feature that is off, and that
/// it is no use to wait for it.
fn feature(body: &[u8]) -> Response<Answer> {
    let Ok(Query { feature }) = serde_json::from_slice(body) else {
        return text(StatusCode::BAD_REQUEST, "not a question about a feature\n");
    };
    let words = match feature.as_str() {
        "serve" => {
            "This network has no certificates for HTTPS. Serve by --http=80 or --tcp=PORT instead."
        }
        "funnel" => "This network cannot be reached from outside: it has no Funnel.",
        _ => "This network does not have that.",
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
    fn nothing_that_is_not_done_is_answered_without_words() {
        for (method, path) in [
            (Method::POST, "/machine/set-dns"),
            (Method::POST, "/machine/id-token"),
            (Method::PATCH, "/machine/set-device-attr"),
            (Method::POST, "/machine/audit-log"),
            (Method::POST, "/machine/webclient/init"),
            (Method::GET, "/machine/other"),
        ] {
            assert_eq!(
                not_done(&method, path, b"").status(),
                StatusCode::NOT_IMPLEMENTED,
                "{path}"
            );
        }
        let query = |body: &[u8]| not_done(&Method::POST, "/machine/feature/query", body).status();
        assert_eq!(query(br#"{"Feature":"serve"}"#), StatusCode::OK);
        assert_eq!(query(b"7"), StatusCode::BAD_REQUEST);
    }
}
