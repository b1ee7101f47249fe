//! The API over the network.

use hyper::{Method, StatusCode};
use serde_json::json;
use server::api;

use super::world::World;

#[tokio::test]
async fn whoever_shows_no_key_is_let_in_to_no_route() {
    let world = World::new().await;
    let routes = api::listed();
    assert!(routes.len() > 20);
    let mut answers = Vec::new();
    let good_form = format!("Bearer lrkey-api-{}-{}", "0".repeat(12), "0".repeat(64));
    let shown = [None, Some("Bearer x"), Some("Basic eDp5"), Some(&good_form)];
    for (at, (method, path)) in routes.into_iter().enumerate() {
        // Wrong keys are few enough here to be told so.
        let headers: Vec<(&str, &str)> = match at {
            ..4 => shown[at].into_iter().map(|shown| ("authorization", shown)).collect(),
            _ => Vec::new(),
        };
        let said = world.ask(method.clone(), &path, &headers, "{}").await;
        assert_eq!(said.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        let head = said.headers["www-authenticate"].to_str().unwrap().to_owned();
        answers.push((said.body, head, said.headers.len()));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "what is wrong with a key shows: {answers:?}");
    for path in ["/api/linerate/v1/nothing", "/api/v1/nothing", "/api/nothing"] {
        let beside = world.ask(Method::GET, path, &[], "").await;
        assert_eq!((beside.status, &*beside.body), (StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
}

#[tokio::test]
async fn a_key_is_good_until_it_expires_and_what_it_does_is_written_down() {
    let world = World::new().await;
    let (prefix, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let made = world.ask(Method::POST, "/api/linerate/v1/user", &key, r#"{"name":"anna"}"#).await;
    assert_eq!(made.json()["name"], "anna", "{}", made.body);
    let again = world.ask(Method::POST, "/api/linerate/v1/user", &key, r#"{"name":"anna"}"#).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    let audit = world.ask(Method::GET, "/api/linerate/v1/audit", &key, "").await.json();
    let told: Vec<_> = audit.as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(told, ["create user anna", "create user anna", "create API key"]);
    assert_eq!(audit[0]["who"], format!("API key {prefix}"));
    assert_eq!(audit[0]["refused"], "the name anna is taken");
    assert!(audit[2]["who"].as_str().unwrap().starts_with("command line, user "));
    let keys = world.ask(Method::GET, "/api/linerate/v1/apikey", &key, "").await;
    assert!(!keys.body.contains(bearer.rsplit('-').next().unwrap()), "{}", keys.body);
    world.command(Method::POST, &format!("apikey/{prefix}/expire"), json!(null)).await;
    let late = world.ask(Method::GET, "/api/linerate/v1/user", &key, "").await;
    assert_eq!(late.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let long = format!(r#"{{"name":"{}"}}"#, "a".repeat(16 << 20));
    let said = world.ask(Method::POST, "/api/linerate/v1/user", &key, &long).await;
    assert_eq!(said.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", said.body);
    for wrong in ["", "{", r#"{"nme":"anna"}"#, r#"{"name":7}"#] {
        let said = world.ask(Method::POST, "/api/linerate/v1/user", &key, wrong).await;
        assert_eq!(said.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(said.json()["message"].is_string());
    }
}

#[tokio::test]
async fn who_guesses_keys_is_told_to_wait_and_the_right_key_is_not() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let mut last = StatusCode::OK;
    for _ in 0..21 {
        let wrong = [("authorization", "Bearer lrkey-api-x")];
        last = world.ask(Method::GET, "/api/linerate/v1/user", &wrong, "").await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    let right = [("authorization", bearer.as_str())];
    let said = world.ask(Method::GET, "/api/linerate/v1/user", &right, "").await;
    assert_eq!(said.status, StatusCode::OK);
}

#[tokio::test]
async fn the_description_has_every_route_and_why_says_where_it_ends() {
    let world = World::new().await;
    let (_, bearer) = world.api_key().await;
    let key = [("authorization", bearer.as_str())];
    let described = world.ask(Method::GET, "/api/linerate/v1/openapi.json", &key, "").await.json();
    for (method, path) in api::listed() {
        let method = method.as_str().to_lowercase();
        assert!(described["paths"][&path][&method].is_object(), "{method} {path}");
    }
    let why = world.ask(Method::GET, "/api/linerate/v1/why?from=a&to=b", &key, "").await.json();
    assert_eq!((&why["reaches"], &why["steps"][0]["met"]), (&json!(false), &json!(false)));
}
