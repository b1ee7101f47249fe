//! The API over the network.

use hyper::{Method, StatusCode};
use serde_json::json;
use server::admin::api;

use super::world::World;

#[tokio::test]
async fn every_route_refuses_a_request_without_a_valid_key() {
    let world = World::new().await;
    let routes = api::listed_routes();
    assert!(routes.len() > 20);
    let mut answers = Vec::new();
    let good_form = format!("Bearer lrkey-api-{}-{}", "0".repeat(12), "0".repeat(64));
    let shown = [None, Some("Bearer x"), Some("Basic eDp5"), Some(&good_form)];
    for (at, (method, path)) in routes.into_iter().enumerate() {
        // There are too few wrong keys in this test to be throttled.
        let headers: Vec<(&str, &str)> = match at {
            ..4 => shown[at].into_iter().map(|shown| ("authorization", shown)).collect(),
            _ => Vec::new(),
        };
        let answer = world.request(method.clone(), &path, &headers, "{}").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        let head = answer.headers["www-authenticate"].to_str().unwrap().to_owned();
        answers.push((answer.body, head, answer.headers.len()));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the answers differ: {answers:?}");
    for path in ["/api/linerate/v1/nothing", "/api/v1/nothing", "/api/nothing"] {
        let beside = world.request(Method::GET, path, &[], "").await;
        assert_eq!((beside.status, &*beside.body), (StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
}

#[tokio::test]
async fn a_key_works_until_it_expires_and_its_commands_are_audited() {
    let world = World::new().await;
    let (prefix, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let made =
        world.request(Method::POST, "/api/linerate/v1/user", &key, r#"{"name":"anna"}"#).await;
    assert_eq!(made.json()["name"], "anna", "{}", made.body);
    let again =
        world.request(Method::POST, "/api/linerate/v1/user", &key, r#"{"name":"anna"}"#).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    let audit = world.request(Method::GET, "/api/linerate/v1/audit", &key, "").await.json();
    let recorded: Vec<_> = audit.as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(recorded, ["create user anna", "create user anna", "create API key"]);
    assert_eq!(audit[0]["who"], format!("API key {prefix}"));
    assert_eq!(audit[0]["refused"], "the name anna is taken");
    assert!(audit[2]["who"].as_str().unwrap().starts_with("command line, user "));
    let keys = world.request(Method::GET, "/api/linerate/v1/apikey", &key, "").await;
    assert!(!keys.body.contains(bearer.rsplit('-').next().unwrap()), "{}", keys.body);
    world.command(Method::POST, &format!("apikey/{prefix}/expire"), json!(null)).await;
    let late = world.request(Method::GET, "/api/linerate/v1/user", &key, "").await;
    assert_eq!(late.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let long = format!(r#"{{"name":"{}"}}"#, "a".repeat(16 << 20));
    let answer = world.request(Method::POST, "/api/linerate/v1/user", &key, &long).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.body);
    for wrong in ["", "{", r#"{"nme":"anna"}"#, r#"{"name":7}"#] {
        let answer = world.request(Method::POST, "/api/linerate/v1/user", &key, wrong).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(answer.json()["message"].is_string());
    }
}

#[tokio::test]
async fn guessing_keys_is_throttled_and_the_right_key_still_works() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let mut last = StatusCode::OK;
    for _ in 0..21 {
        let wrong = [("authorization", "Bearer lrkey-api-x")];
        last = world.request(Method::GET, "/api/linerate/v1/user", &wrong, "").await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    let right = [("authorization", bearer.as_str())];
    let answer = world.request(Method::GET, "/api/linerate/v1/user", &right, "").await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn the_openapi_document_has_every_route_and_why_names_the_failed_step() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let described =
        world.request(Method::GET, "/api/linerate/v1/openapi.json", &key, "").await.json();
    for (method, path) in api::listed_routes() {
        let method = method.as_str().to_lowercase();
        assert!(described["paths"][&path][&method].is_object(), "{method} {path}");
    }
    let why = world.request(Method::GET, "/api/linerate/v1/why?from=a&to=b", &key, "").await.json();
    assert_eq!((&why["reaches"], &why["steps"][0]["met"]), (&json!(false), &json!(false)));
}
