//! Sessions of the page.

use hyper::{Method, StatusCode};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::world::World;
use crate::loopback::free;

#[tokio::test]
async fn a_link_works_once_and_its_session_only_from_the_page() {
    let world = World::new().await;
    let link = world.link().await;
    let entered = world.submit_login(&link).await;
    assert_eq!(entered.status, StatusCode::SEE_OTHER);
    let cookie = entered.headers["set-cookie"].to_str().unwrap();
    for wanted in ["__Host-", "; Secure", "; HttpOnly", "; SameSite=Strict", "; Path=/;"] {
        assert!(cookie.contains(wanted), "{cookie}");
    }
    assert_eq!(world.submit_login(&link).await.status, StatusCode::UNAUTHORIZED);
    let cookie = [("cookie", cookie.split(';').next().unwrap())];
    let page = world.request(Method::GET, "/admin/users", &cookie, "").await;
    assert_eq!(page.status, StatusCode::OK);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("script-src 'self';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["cache-control"], "no-store");
    let token = page.body.split(r#"X-CSRF-Token":""#).nth(1).unwrap().split('"').next().unwrap();
    let create = |headers: Vec<(&'static str, String)>| {
        let world = &world;
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
            world
                .request(Method::POST, "/api/linerate/v1/user", &headers, r#"{"name":"anna"}"#)
                .await
                .status
        }
    };
    let own = ("cookie", cookie[0].1.to_owned());
    let shown = ("x-csrf-token", token.to_owned());
    let from = |site: &str| ("sec-fetch-site", site.to_owned());
    assert_eq!(create(vec![own.clone()]).await, StatusCode::FORBIDDEN);
    let wrong = ("x-csrf-token", "0".repeat(64));
    assert_eq!(create(vec![own.clone(), wrong]).await, StatusCode::FORBIDDEN);
    for site in ["cross-site", "same-site", "none"] {
        let elsewhere = vec![own.clone(), shown.clone(), from(site)];
        assert_eq!(create(elsewhere).await, StatusCode::FORBIDDEN, "{site}");
    }
    let at = |origin: &str| ("origin", origin.to_owned());
    let port = world.address.port();
    for foreign in [
        "https://elsewhere.example".to_owned(),
        "null".to_owned(),
        format!("http://localhost:{}", port ^ 1),
        format!("https://localhost:{port}"),
    ] {
        let status = create(vec![own.clone(), shown.clone(), at(&foreign)]).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{foreign}");
    }
    let here = at(&format!("http://localhost:{port}"));
    assert_eq!(create(vec![own, shown, from("same-origin"), here]).await, StatusCode::OK);
    let left = [cookie[0], ("content-type", "application/x-www-form-urlencoded")];
    world.request(Method::POST, "/admin/logout", &left, &format!("token={token}")).await;
    let late = world.request(Method::GET, "/admin/users", &cookie, "").await;
    assert_eq!(
        (late.status, &late.headers["location"]),
        (StatusCode::SEE_OTHER, &"/admin/login".parse().unwrap())
    );
}

#[tokio::test]
async fn only_a_page_of_the_same_origin_opens_a_session() {
    let world = World::new().await;
    let link = world.link().await;
    let body = format!("key={link}");
    let log_in = async |origin: &str| {
        let form = [("content-type", "application/x-www-form-urlencoded"), ("origin", origin)];
        world.request(Method::POST, "/admin/login", &form, &body).await.status
    };
    assert_eq!(log_in("https://elsewhere.example").await, StatusCode::FORBIDDEN);
    assert_eq!(log_in("http://localhost:1").await, StatusCode::FORBIDDEN, "the port counts");
    // The request names the host `localhost` without a port.
    assert_eq!(log_in("https://localhost").await, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_link_to_a_self_signed_certificate_comes_with_its_fingerprint() {
    let relay = free();
    let world = World::with(&format!("[derp]\nlisten = [\"{relay}\"]\n")).await;
    let link = world.command(Method::POST, "admin/link", json!(null)).await;
    let origin = format!("https://localhost:{}/", relay.port());
    assert!(link["link"].as_str().unwrap().starts_with(&origin), "{link}");
    let file = world.folder().join("derp-localhost.pem");
    let hash = Sha256::digest(CertificateDer::from_pem_file(file).unwrap());
    let pairs: Vec<String> = hash.iter().map(|byte| format!("{byte:02X}")).collect();
    assert_eq!(link["certificate_fingerprint"], pairs.join(":"));
    let plain = World::new().await.command(Method::POST, "admin/link", json!(null)).await;
    assert_eq!(plain["certificate_fingerprint"], json!(null));
}

#[tokio::test]
async fn a_session_of_an_api_key_ends_with_the_key() {
    let world = World::new().await;
    for is_deleted in [true, false] {
        let (prefix, bearer) = world.api_key().await;
        let entered = world.submit_login(bearer.strip_prefix("Bearer ").unwrap()).await;
        let cookie = entered.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
        let cookie = [("cookie", cookie)];
        assert_eq!(
            world.request(Method::GET, "/admin/keys", &cookie, "").await.status,
            StatusCode::OK
        );
        let (method, path) = match is_deleted {
            true => (Method::DELETE, format!("apikey/{prefix}")),
            false => (Method::POST, format!("apikey/{prefix}/expire")),
        };
        world.command(method, &path, json!(null)).await;
        let late = world.request(Method::GET, "/admin/keys", &cookie, "").await;
        assert_eq!(late.status, StatusCode::SEE_OTHER);
    }
}

#[tokio::test]
async fn without_a_session_only_the_login_page_is_shown() {
    let world = World::new().await;
    let pages = [
        "", "machines", "users", "keys", "routes", "dns", "derp", "audit", "why", "events",
        "policy",
    ];
    for page in pages {
        let answer = world.request(Method::GET, &format!("/admin/{page}"), &[], "").await;
        let is_in = matches!(answer.status, StatusCode::SEE_OTHER | StatusCode::NOT_FOUND);
        assert!(is_in && !answer.body.contains("html"), "{page}: {}", answer.status);
    }
    let login = world.request(Method::GET, "/admin/login", &[], "").await;
    assert!(login.status == StatusCode::OK && login.body.contains("net.example.com"));
    let long = format!("key={}", "a".repeat(8 << 10));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = world.request(Method::POST, "/admin/login", &form, &long).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn names_of_machines_and_users_are_escaped() {
    let world = World::new().await;
    let cookie = world.log_in().await;
    let evil = "<script>alert(1)</script>";
    let user = json!({ "name": "<b>x</b>", "display_name": evil, "email": "\"><img src=x>" });
    world.command(Method::POST, "user", user).await;
    let key = world.command(Method::POST, "preauthkey", json!({ "user": "1" })).await;
    let hostinfo = json!({ "Hostname": evil, "OS": evil, "IPNVersion": "'\"><b>" });
    world.join(1, key["key"].as_str().unwrap(), hostinfo).await;
    for page in
        ["machines", "machines/1", "users", "users/1", "keys", "audit", "machines?q=%3Cscript%3E"]
    {
        let path = format!("/admin/{page}");
        let answer = world.request(Method::GET, &path, &[("cookie", &cookie)], "").await;
        assert_eq!(answer.status, StatusCode::OK, "{page}");
        for raw in ["<script>", "<b>", "<img"] {
            assert!(!answer.body.contains(raw), "{page} has {raw}: {}", answer.body);
        }
        assert!(
            answer.body.contains("&#60;script&#62;") || answer.body.contains("&#60;b&#62;"),
            "{page}"
        );
    }
}
