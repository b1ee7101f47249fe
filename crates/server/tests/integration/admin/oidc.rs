//! Logins at a provider. The test controls the claims in the provider's tokens and the browser's
//! cookies.

use std::sync::Arc;

use doubles::provider::Provider;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tailnet::keys::NodePublic;

use super::world::{Answer, World, machine_get};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A network with a login provider, and a waiting registration.
struct Rig {
    world: World,
    provider: Arc<Provider>,
    /// Path of the link that the machine shows.
    link: String,
}

/// A login that a browser has started.
struct Login {
    state: String,
    nonce: String,
    cookie: String,
}

impl Rig {
    async fn new() -> Self {
        Self::with("").await
    }

    /// The same with further lines in the provider's table.
    async fn with(lines: &str) -> Self {
        let provider = Provider::start().await;
        let issuer = provider.url();
        let table = format!("[oidc]\nissuer = {issuer:?}\nclient_id = \"net\"\n{lines}\n");
        let world = World::with(&table).await;
        let mut rig = Self { world, provider, link: String::new() };
        rig.wait_for_login(1).await;
        rig
    }

    /// Registers a machine with this number, and reads its link.
    async fn wait_for_login(&mut self, number: u8) {
        let body = json!({
            "Version": 131, "NodeKey": NodePublic([number; 32]),
            "Hostinfo": { "Hostname": "laptop" },
        });
        let answer = self.world.register(number, &body).await;
        let link = answer["AuthURL"].as_str().unwrap().split_once("/register/").unwrap().1;
        self.link = format!("/register/{link}");
    }

    /// Opens the machine's link in a browser.
    async fn begin(&self) -> Login {
        self.open(&self.link).await
    }

    async fn open(&self, link: &str) -> Login {
        let answer = self.world.request(Method::GET, link, &[], "").await;
        assert_eq!(answer.status, StatusCode::FOUND, "{}", answer.body);
        let location = answer.headers["location"].to_str().unwrap();
        let query = location.split_once('?').unwrap().1;
        let value = |name: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            pairs.find(|(own, _)| own == name).unwrap().1.into_owned()
        };
        let cookie = answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
        Login { state: value("state"), nonce: value("nonce"), cookie: cookie.to_owned() }
    }

    /// Claims of a valid token for anna.
    fn honest(&self, login: &Login) -> Value {
        json!({
            "iss": self.provider.url(), "aud": "net", "sub": "1", "nonce": login.nonce,
            "iat": 0, "exp": 1_u64 << 32, "preferred_username": "anna",
        })
    }

    /// Returns from the provider to the server, with this cookie and further parameters.
    async fn back(&self, login: &Login, cookie: &str, more: &str) -> Answer {
        let path = format!("/oidc/callback?code=a&state={}{more}", login.state);
        self.world.request(Method::GET, &path, &[("cookie", cookie)], "").await
    }

    /// Confirms the login.
    async fn confirm(&self, question: &Answer, cookie: &str) -> Answer {
        let token = question.body.split("name=\"token\" value=\"").nth(1).unwrap();
        let form = format!("token={}", token.split('"').next().unwrap());
        self.world.request(Method::POST, "/oidc/confirm", &[FORM, ("cookie", cookie)], &form).await
    }

    async fn nodes(&self) -> usize {
        self.list("node").await.len()
    }

    /// All nodes or users.
    async fn list(&self, of: &str) -> Vec<Value> {
        self.world.command(Method::GET, of, json!(null)).await.as_array().unwrap().clone()
    }

    /// Completes a login with a valid token.
    async fn log_in(&self) {
        let login = self.begin().await;
        self.provider.set_claims(self.honest(&login));
        let question = self.back(&login, &login.cookie, "").await;
        assert_eq!(question.status, StatusCode::OK, "{}", question.body);
        assert_eq!(self.confirm(&question, &login.cookie).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn an_honest_login_in_the_same_browser_admits_the_machine() {
    let rig = Rig::new().await;
    let login = rig.begin().await;
    rig.provider.set_claims(rig.honest(&login));
    let own = format!("&iss={}", rig.provider.url());
    let question = rig.back(&login, &login.cookie, &own).await;
    assert_eq!(question.status, StatusCode::OK, "{}", question.body);
    assert!(question.body.contains("laptop") && rig.nodes().await == 0);
    let done = rig.confirm(&question, &login.cookie).await;
    assert_eq!((done.status, rig.nodes().await), (StatusCode::OK, 1), "{}", done.body);
}

#[tokio::test]
async fn a_token_for_another_login_client_or_time_or_of_another_provider_is_refused() {
    let rig = Rig::new().await;
    let other = rig.begin().await;
    for (claim, value) in [
        ("nonce", json!(other.nonce)),
        ("nonce", json!(null)),
        ("iss", json!("http://127.0.0.1:1")),
        ("aud", json!("other")),
        ("aud", json!(["net", "other"])),
        ("azp", json!("other")),
        ("exp", json!(1)),
        ("sub", json!(null)),
    ] {
        let login = rig.begin().await;
        let mut claims = rig.honest(&login);
        claims[claim] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(claim);
        }
        rig.provider.set_claims(claims);
        let answer = rig.back(&login, &login.cookie, "").await;
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{claim} {value}: {}", answer.body);
        assert!(!answer.body.contains("name=\"token\""), "{claim} {value}");
    }
}

#[tokio::test]
async fn unused_claims_of_any_type_stop_no_login() {
    let rig = Rig::new().await;
    for (name, value) in [
        ("updated_at", json!("2026-11-20T10:00:00.000Z")),
        ("address", json!("1 Street")),
        ("address", json!({ "street_address": 7 })),
        ("amr", json!("pwd")),
        ("acr", json!(1)),
        ("auth_time", json!("1700000000")),
        ("iat", json!("yesterday")),
        ("iat", json!(null)),
        ("nbf", json!("x")),
        ("exp", json!(f64::from(u32::MAX) + 0.5)),
        ("exp", json!("4294967295")),
        ("at_hash", json!(["x"])),
        ("email_verified", json!("true")),
        ("email_verified", json!({})),
        ("phone_number_verified", json!("false")),
        ("gender", json!(1)),
        ("birthdate", json!(1990)),
        ("locale", json!({})),
        ("zoneinfo", json!("")),
        ("website", json!("none")),
        ("picture", json!("")),
        ("picture", json!({ "url": "x" })),
        ("name", json!(["Anna", "B"])),
        ("groups", json!({ "staff": {} })),
        ("groups", json!([{ "id": 1 }])),
    ] {
        let login = rig.begin().await;
        let mut claims = rig.honest(&login);
        claims[name] = value.clone();
        rig.provider.set_claims(claims);
        rig.provider.set_user_info(json!({ "sub": "1", name: value.clone() }));
        let answer = rig.back(&login, &login.cookie, "").await;
        assert_eq!(answer.status, StatusCode::OK, "{name} {value}: {}", answer.body);
        assert!(answer.body.contains("anna"), "{name} {value}: {}", answer.body);
    }
}

#[tokio::test]
async fn unused_members_of_a_providers_answers_stop_no_login() {
    for (path, members) in [
        ("/token", json!({ "expires_in": "600" })),
        ("/token", json!({ "scope": ["openid"], "token_type": null, "refresh_token": 7 })),
        ("/token", json!({ "access_token": null })),
        ("", json!({ "op_policy_uri": "", "op_tos_uri": "", "userinfo_endpoint": "" })),
        ("", json!({ "subject_types_supported": null, "response_types_supported": "code" })),
        ("", json!({ "id_token_signing_alg_values_supported": ["ES256", "ML-DSA-44"] })),
        ("", json!({ "display_values_supported": "page", "scopes_supported": {} })),
    ] {
        let rig = Rig::new().await;
        rig.provider.override_answer(path, members.clone());
        rig.log_in().await;
        assert_eq!(rig.nodes().await, 1, "{path} {members}");
    }
}

#[tokio::test]
async fn an_issuer_with_a_final_slash_is_the_same_provider() {
    let mut rig = Rig::new().await;
    let url = rig.provider.url();
    for (number, issuer) in [(2, url.clone()), (3, format!("{url}/"))] {
        rig.wait_for_login(number).await;
        rig.provider.override_answer("", json!({ "issuer": issuer }));
        let login = rig.begin().await;
        let mut claims = rig.honest(&login);
        claims["iss"] = json!(issuer);
        rig.provider.set_claims(claims);
        let question = rig.back(&login, &login.cookie, &format!("&iss={issuer}")).await;
        assert_eq!(question.status, StatusCode::OK, "{issuer}: {}", question.body);
        let done = rig.confirm(&question, &login.cookie).await;
        assert_eq!(done.status, StatusCode::OK, "{issuer}: {}", done.body);
    }
    assert_eq!((rig.nodes().await, rig.list("user").await.len()), (2, 1));
}

#[tokio::test]
async fn an_answer_that_names_another_provider_is_refused() {
    let rig = Rig::new().await;
    let login = rig.begin().await;
    rig.provider.set_claims(rig.honest(&login));
    let answer = rig.back(&login, &login.cookie, "&iss=http://127.0.0.1:1").await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{}", answer.body);
    assert!(answer.body.contains("another provider"), "{}", answer.body);
}

#[tokio::test]
async fn an_answer_in_another_browser_or_tab_is_refused() {
    let rig = Rig::new().await;
    let (login, other) = (rig.begin().await, rig.begin().await);
    rig.provider.set_claims(rig.honest(&login));
    let (name, sealed) = login.cookie.split_once('=').unwrap();
    let others = other.cookie.split_once('=').unwrap().1;
    let cookies = ["", &other.cookie, &format!("{name}={others}"), &format!("x={sealed}")];
    for cookie in cookies {
        let answer = rig.back(&login, cookie, "").await;
        assert_eq!(answer.status, StatusCode::GONE, "{cookie}: {}", answer.body);
    }
    for cookie in cookies {
        let question = rig.back(&login, &login.cookie, "").await;
        assert_eq!(question.status, StatusCode::OK, "{}", question.body);
        let answer = rig.confirm(&question, cookie).await;
        assert_eq!(answer.status, StatusCode::GONE, "{cookie}: {}", answer.body);
        let again = rig.confirm(&question, &login.cookie).await;
        assert_eq!(again.status, StatusCode::GONE, "a confirmation can be used once");
    }
    assert_eq!(rig.nodes().await, 0);
}

#[tokio::test]
async fn a_node_admitted_by_a_login_expires_as_configured() {
    for (lines, expires) in [("expiry = \"30d\"", true), ("", false)] {
        let rig = Rig::with(lines).await;
        rig.log_in().await;
        assert_eq!(rig.list("node").await[0]["expiry"].is_string(), expires, "{lines}");
    }
}

#[tokio::test]
async fn user_info_of_another_subject_is_ignored() {
    for (subject, name) in [("1", "boss"), ("2", "anna")] {
        let rig = Rig::new().await;
        rig.provider.set_user_info(json!({ "sub": subject, "preferred_username": "boss" }));
        rig.log_in().await;
        let users = rig.list("user").await;
        assert_eq!(users[0]["name"], name, "{users:?}");
    }
}

#[tokio::test]
async fn a_user_without_machines_cannot_confirm_a_tagged_machines_login() {
    let rig = Rig::new().await;
    let policy = json!({
        "tagOwners": { "tag:a": [], "tag:b": [] },
        "ssh": [{ "action": "check", "src": ["tag:a"], "dst": ["tag:b"], "users": ["www"] }],
    });
    rig.world.command(Method::PUT, "policy", json!({ "policy": policy.to_string() })).await;
    for (number, tag) in [(2, "tag:a"), (3, "tag:b")] {
        let key = rig.world.command(Method::POST, "preauthkey", json!({ "acl_tags": [tag] })).await;
        rig.world.join(number, key["key"].as_str().unwrap(), json!({ "Hostname": tag })).await;
    }
    let mut machine = rig.world.machine(3).await;
    let path = "ssh/action/1/to/2?local_user=www";
    let answer = machine_get(&mut machine, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    let number = message.split_once("/ssh/").unwrap().1.split_whitespace().next().unwrap();
    let login = rig.open(&format!("/ssh/{number}")).await;
    rig.provider.set_claims(rig.honest(&login));
    let refused = rig.back(&login, &login.cookie, "").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
}
