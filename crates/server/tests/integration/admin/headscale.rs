//! Headscale's API. The requests are those of its clients, taken from their sources: Headplane,
//! headscale-admin and the Terraform provider.

use coordinator::{Time, ZERO_TIME};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tailnet::keys::{DiscoPublic, MachineKey, NodePublic};

use super::world::{Answer, World};

/// A network with two users and an API key.
struct Network {
    world: World,
    bearer: String,
}

impl Network {
    async fn new() -> Self {
        let world = World::new().await;
        let (_, bearer) = world.api_key().await;
        let network = Self { world, bearer };
        for name in ["anna", "bob"] {
            network
                .send_ok(Method::POST, "/api/v1/user", &json!({ "name": name }).to_string())
                .await;
        }
        network
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> Answer {
        let headers = [("authorization", &*self.bearer), ("accept", "application/json")];
        self.world.request(method, path, &headers, body).await
    }

    /// Sends a request that succeeds. In the answer, times that differ in each run are replaced
    /// by `TIME`.
    async fn send_ok(&self, method: Method, path: &str, body: &str) -> Value {
        let answer = self.send(method.clone(), path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{method} {path}: {}", answer.body);
        assert_eq!(answer.headers["content-type"], "application/json");
        settled(answer.json())
    }

    async fn get_ok(&self, path: &str) -> Value {
        self.send_ok(Method::GET, path, "").await
    }

    /// Joins a machine with a key of this user.
    async fn join(&self, number: u8, user: i64, name: &str) {
        let body = json!({ "user": user, "reusable": true, "expiration": "2099-01-01T00:00:00Z" });
        let key = self.send_ok(Method::POST, "/api/v1/preauthkey", &body.to_string()).await;
        let text = key["preAuthKey"]["key"].as_str().unwrap().to_owned();
        let hostinfo = json!({ "Hostname": name, "OS": "linux", "RoutableIPs": ["10.0.0.0/24"] });
        self.world.join(number, &text, hostinfo).await;
    }
}

fn settled(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = match (name.as_str(), &*value) {
                    ("createdAt" | "updatedAt", Value::String(text)) if text != ZERO_TIME => {
                        assert!(Time::read(text).is_some(), "{text}");
                        json!("TIME")
                    }
                    _ => settled(value.take()),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = settled(value.take())),
        _ => {}
    }
    value
}

fn user(id: &str, name: &str) -> Value {
    json!({
        "id": id, "name": name, "createdAt": "TIME", "displayName": "", "email": "",
        "providerId": "", "provider": "", "profilePicUrl": "",
    })
}

fn key(id: &str, owner: Value, text: &Value, is_used: bool) -> Value {
    json!({
        "user": owner, "id": id, "key": text, "reusable": true, "ephemeral": false, "used": is_used,
        "expiration": "2099-01-01T00:00:00Z", "createdAt": "TIME", "aclTags": [],
    })
}

/// The first machine, which joined with a key of the first user.
fn node(number: u8, name: &str, key: Value) -> Value {
    json!({
        "id": "1", "machineKey": MachineKey::new(Box::new([number; 32].into())).public(),
        "nodeKey": NodePublic([number; 32]), "discoKey": DiscoPublic::default(),
        "ipAddresses": ["100.64.0.1", "fd7a:115c:a1e0::1"], "name": name,
        "user": user("1", "anna"), "lastSeen": null, "expiry": null, "preAuthKey": key,
        "createdAt": "TIME", "registerMethod": "REGISTER_METHOD_AUTH_KEY", "givenName": name,
        "online": false, "approvedRoutes": [], "availableRoutes": ["10.0.0.0/24"],
        "subnetRoutes": [], "tags": [],
    })
}

#[tokio::test]
async fn headplane_finds_the_version_signs_in_and_manages_users_and_keys() {
    let network = Network::new().await;
    let version = network.world.request(Method::GET, "/version", &[], "").await.json();
    assert!(version["version"].as_str().unwrap().starts_with("v0.29."), "{version}");
    let health = network.world.request(Method::GET, "/health", &[], "").await;
    assert_eq!((health.status, health.json()), (StatusCode::OK, json!({ "status": "pass" })));

    let keys = network.get_ok("/api/v1/apikey").await;
    let prefix = keys["apiKeys"][0]["prefix"].as_str().unwrap();
    let text = network.bearer.strip_prefix("Bearer ").unwrap();
    assert!(text.starts_with(&prefix.replace('*', "")) && prefix.ends_with("-***"), "{prefix}");
    let own = json!({
        "id": "1", "prefix": prefix, "expiration": null, "createdAt": "TIME", "lastSeen": null,
    });
    assert_eq!(keys, json!({ "apiKeys": [own] }));

    let body = r#"{"name":"carol","email":"carol@example.com","displayName":"Carol"}"#;
    let mut carol = user("3", "carol");
    carol["email"] = json!("carol@example.com");
    carol["displayName"] = json!("Carol");
    let made = network.send_ok(Method::POST, "/api/v1/user", body).await;
    assert_eq!(made, json!({ "user": carol }));
    let all = [user("1", "anna"), user("2", "bob"), carol.clone()];
    assert_eq!(network.get_ok("/api/v1/user").await, json!({ "users": all }));
    for filter in ["id=3", "name=carol", "email=carol%40example.com"] {
        let found = network.get_ok(&format!("/api/v1/user?{filter}")).await;
        assert_eq!(found, json!({ "users": [carol] }), "{filter}");
    }
    let renamed = network.send_ok(Method::POST, "/api/v1/user/3/rename/caro", "").await;
    assert_eq!(renamed["user"]["name"], "caro");
    assert_eq!(network.send_ok(Method::DELETE, "/api/v1/user/3", "").await, json!({}));

    let body =
        r#"{"ephemeral":false,"reusable":true,"expiration":"2099-01-01T00:00:00.000Z","user":"1"}"#;
    let made = network.send_ok(Method::POST, "/api/v1/preauthkey", body).await;
    let text = made["preAuthKey"]["key"].as_str().unwrap();
    assert_eq!(text.len(), "lrkey-auth-".len() + 12 + 1 + 64);
    let one = |text: &Value| key("1", user("1", "anna"), text, false);
    assert_eq!(made, json!({ "preAuthKey": one(&json!(text)) }));
    let shown = json!(format!("{}-***", &text[..text.len() - 65]));
    let listed_routes = network.get_ok("/api/v1/preauthkey").await;
    assert_eq!(listed_routes, json!({ "preAuthKeys": [one(&shown)] }));
    let body = r#"{"ephemeral":true,"reusable":false,"expiration":null,"aclTags":["tag:server"]}"#;
    let tagged = network.send_ok(Method::POST, "/api/v1/preauthkey", body).await;
    let tagged = &tagged["preAuthKey"];
    assert_eq!(
        (&tagged["user"], &tagged["expiration"], &tagged["aclTags"], &tagged["ephemeral"]),
        (&json!(null), &json!(null), &json!(["tag:server"]), &json!(true))
    );
    assert_eq!(network.get_ok("/api/v1/preauthkey?user=2").await, json!({ "preAuthKeys": [] }));
    let expired = network.send_ok(Method::POST, "/api/v1/preauthkey/expire", r#"{"id":"1"}"#).await;
    assert_eq!(expired, json!({}));
    let listed_routes = network.get_ok("/api/v1/preauthkey").await;
    assert_ne!(listed_routes["preAuthKeys"][0]["expiration"], "2099-01-01T00:00:00Z");
}

#[tokio::test]
async fn headplane_manages_machines() {
    let network = Network::new().await;
    network.join(5, 1, "alpha").await;
    let keys = network.get_ok("/api/v1/preauthkey").await;
    let own = key("1", user("1", "anna"), &keys["preAuthKeys"][0]["key"], true);
    let alpha = node(5, "alpha", own);
    assert_eq!(network.get_ok("/api/v1/node").await, json!({ "nodes": [alpha] }));
    assert_eq!(network.get_ok("/api/v1/node/1").await, json!({ "node": alpha }));

    let with = |changes: Value| {
        let mut changed = alpha.clone();
        for (name, value) in changes.as_object().unwrap() {
            changed[name] = value.clone();
        }
        json!({ "node": changed })
    };
    let renamed = network.send_ok(Method::POST, "/api/v1/node/1/rename/beta", "").await;
    assert_eq!(renamed, with(json!({ "givenName": "beta" })));
    network.send_ok(Method::POST, "/api/v1/node/1/rename/alpha", "").await;
    let body = r#"{"routes":["10.0.0.0/24"]}"#;
    let approved = network.send_ok(Method::POST, "/api/v1/node/1/approve_routes", body).await;
    assert_eq!(approved["node"]["approvedRoutes"], json!(["10.0.0.0/24"]));
    let body = r#"{"routes":[]}"#;
    let approved = network.send_ok(Method::POST, "/api/v1/node/1/approve_routes", body).await;
    assert_eq!(approved, json!({ "node": alpha }));
    let expired = network.send_ok(Method::POST, "/api/v1/node/1/expire", "").await;
    let at = expired["node"]["expiry"].as_str().unwrap().to_owned();
    assert_eq!(expired, with(json!({ "expiry": at })));
    let later = "/api/v1/node/1/expire?expiry=2099-01-01T00:00:00Z";
    let later = network.send_ok(Method::POST, later, "").await;
    assert_eq!(later["node"]["expiry"], "2099-01-01T00:00:00Z");
    let never = network.send_ok(Method::POST, "/api/v1/node/1/expire?disableExpiry=true", "").await;
    assert_eq!(never, json!({ "node": alpha }));
    let body = r#"{"tags":["tag:server"]}"#;
    let tagged = network.send_ok(Method::POST, "/api/v1/node/1/tags", body).await;
    let mut owner = user("2147455555", "tagged-devices");
    owner["displayName"] = json!("Tagged Devices");
    owner["createdAt"] = json!(ZERO_TIME);
    assert_eq!(tagged, with(json!({ "tags": ["tag:server"], "user": owner })));
    assert_eq!(network.send_ok(Method::DELETE, "/api/v1/node/1", "").await, json!({}));
    assert_eq!(network.get_ok("/api/v1/node").await, json!({ "nodes": [] }));
}

#[tokio::test]
async fn headplane_registers_a_machine_and_saves_the_policy() {
    let network = Network::new().await;
    let body = json!({
        "Version": 131, "NodeKey": NodePublic([6; 32]), "Hostinfo": { "Hostname": "beta" },
    });
    let answer = network.world.register(6, &body).await;
    let number = answer["AuthURL"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let path = format!("/api/v1/node/register?user=bob&key={number}");
    let body = json!({ "user": "bob", "key": number }).to_string();
    let made = network.send_ok(Method::POST, &path, &body).await;
    assert_eq!(
        (&made["node"]["user"], &made["node"]["registerMethod"], &made["node"]["preAuthKey"]),
        (&user("2", "bob"), &json!("REGISTER_METHOD_CLI"), &json!(null))
    );

    let none = json!({ "policy": "", "updatedAt": null });
    assert_eq!(network.get_ok("/api/v1/policy").await, none);
    let text = r#"{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"]}]}"#;
    let body = json!({ "policy": text }).to_string();
    let saved = json!({ "policy": text, "updatedAt": "TIME" });
    assert_eq!(network.send_ok(Method::PUT, "/api/v1/policy", &body).await, saved);
    assert_eq!(network.get_ok("/api/v1/policy").await, saved);
    assert_eq!(network.send_ok(Method::POST, "/api/v1/policy/check", &body).await, json!({}));
    let wrong = network.send(Method::PUT, "/api/v1/policy", r#"{"policy":"{"}"#).await;
    let refusal = wrong.json();
    assert_eq!((wrong.status, &refusal["code"]), (StatusCode::BAD_REQUEST, &json!(3)));
    // Headplane recognizes a syntax error by these words.
    let words = refusal["message"].as_str().unwrap();
    assert!(words.contains("parsing policy from bytes:"), "{words}");
    let health = network.get_ok("/api/v1/health").await;
    assert_eq!(health, json!({ "databaseConnectivity": true }));
}

#[tokio::test]
async fn headscale_admin_creates_and_expires_keys_by_name_and_text() {
    let network = Network::new().await;
    let wrong = [("authorization", "Bearer wrong")];
    let answer = network.world.request(Method::GET, "/api/v1/user", &wrong, "").await;
    assert_eq!((answer.status, &*answer.body), (StatusCode::UNAUTHORIZED, "Unauthorized"));

    let body = r#"{"expiration":"2099-01-01T00:00:00.000Z"}"#;
    let made = network.send_ok(Method::POST, "/api/v1/apikey", body).await;
    let text = made["apiKey"].as_str().unwrap();
    assert_eq!(made, json!({ "apiKey": text }));
    let other = [("authorization", &*format!("Bearer {text}"))];
    let body = json!({ "prefix": text }).to_string();
    let expired = network.send_ok(Method::POST, "/api/v1/apikey/expire", &body).await;
    assert_eq!(expired, json!({}));
    let late = network.world.request(Method::GET, "/api/v1/user", &other, "").await;
    assert_eq!(late.status, StatusCode::UNAUTHORIZED);
    let keys = network.get_ok("/api/v1/apikey").await;
    let prefix = keys["apiKeys"][1]["prefix"].as_str().unwrap();
    let path = format!("/api/v1/apikey/{}", prefix.replace('*', "%2A"));
    assert_eq!(network.send_ok(Method::DELETE, &path, "").await, json!({}));
    let left = network.get_ok("/api/v1/apikey").await;
    assert_eq!(left["apiKeys"].as_array().unwrap().len(), 1);

    let body = r#"{"user":"bob","reusable":true,"ephemeral":false,"expiration":"2099-01-01T00:00:00.000Z"}"#;
    let made = network.send_ok(Method::POST, "/api/v1/preauthkey", body).await;
    assert_eq!(made["preAuthKey"]["user"], user("2", "bob"));
    let of = async |name: &str| network.get_ok(&format!("/api/v1/preauthkey?user={name}")).await;
    assert_eq!(of("anna").await, json!({ "preAuthKeys": [] }));
    let key = of("bob").await["preAuthKeys"][0].clone();
    let body = json!({ "user": key["user"], "key": key["key"] }).to_string();
    let expired = network.send_ok(Method::POST, "/api/v1/preauthkey/expire", &body).await;
    assert_eq!(expired, json!({}));
    assert_ne!(of("bob").await["preAuthKeys"][0]["expiration"], key["expiration"]);

    network.join(7, 2, "gamma").await;
    let expired = network.send_ok(Method::POST, "/api/v1/node/1/expire", "{}").await;
    assert!(expired["node"]["expiry"].is_string());
    let renamed = network.send_ok(Method::POST, "/api/v1/node/1/rename/delta", "{}").await;
    assert_eq!(renamed["node"]["givenName"], "delta");
}

#[tokio::test]
async fn the_terraform_provider_finds_exactly_its_own_resources() {
    let network = Network::new().await;
    let body = r#"{"name":"dora","pictureUrl":"https://example.com/d.png"}"#;
    let made = network.send_ok(Method::POST, "/api/v1/user", body).await;
    assert_eq!(made["user"]["profilePicUrl"], "https://example.com/d.png");
    // A resource is read by name and ID.
    let found = network.get_ok("/api/v1/user?id=3&name=dora").await;
    assert_eq!(found["users"].as_array().unwrap().len(), 1);
    assert_eq!(found["users"][0]["id"], "3");
    for none in ["name=nobody", "id=99", "email=nobody%40example.com"] {
        let found = network.get_ok(&format!("/api/v1/user?{none}")).await;
        assert_eq!(found, json!({ "users": [] }), "{none}");
    }

    network.join(8, 1, "alpha").await;
    network.join(9, 2, "beta").await;
    for (name, expected) in [("anna", "1"), ("bob", "2")] {
        let found = network.get_ok(&format!("/api/v1/node?user={name}")).await;
        let ids: Vec<&Value> =
            found["nodes"].as_array().unwrap().iter().map(|node| &node["id"]).collect();
        assert_eq!(ids, [expected], "{name}");
    }
    let none = network.get_ok("/api/v1/node?user=dora").await;
    assert_eq!(none, json!({ "nodes": [] }));
    assert_eq!(network.send_ok(Method::DELETE, "/api/v1/user/3", "").await, json!({}));

    let body =
        r#"{"aclTags":[],"expiration":"2099-01-01T00:00:00.000Z","reusable":true,"user":"1"}"#;
    let made = network.send_ok(Method::POST, "/api/v1/preauthkey", body).await;
    let id = made["preAuthKey"]["id"].as_str().unwrap();
    let path = format!("/api/v1/preauthkey?id={id}");
    assert_eq!(network.send_ok(Method::DELETE, &path, "").await, json!({}));
    let listed_routes = network.get_ok("/api/v1/preauthkey").await.to_string();
    assert!(!listed_routes.contains(&format!(r#""id":"{id}""#)), "{listed_routes}");
    network.send_ok(Method::POST, "/api/v1/apikey", "").await;
    let expired = network.send_ok(Method::POST, "/api/v1/apikey/expire", r#"{"id":"2"}"#).await;
    assert_eq!(expired, json!({}));
    let keys = network.get_ok("/api/v1/apikey").await;
    assert!(keys["apiKeys"][1]["expiration"].is_string(), "{keys}");
}

#[tokio::test]
async fn a_failed_request_gets_a_code_and_changes_nothing() {
    let network = Network::new().await;
    network.join(5, 1, "alpha").await;
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    for (method, path, body, status, code) in [
        (&get, "node/99", "", 404, 5),
        (&get, "node/alpha", "", 400, 3),
        (&get, "node?user=nobody", "", 404, 5),
        (&get, "node?tag=server", "", 400, 3),
        (&get, "user?nmae=anna", "", 400, 3),
        (&get, "user?id=anna", "", 400, 3),
        (&get, "preauthkey?user=nobody", "", 404, 5),
        (&get, "nothing", "", 404, 5),
        (&delete, "node", "", 501, 12),
        (&delete, "user/anna", "", 400, 3),
        (&delete, "user/99", "", 404, 5),
        (&delete, "user/1", "", 400, 9),
        (&delete, "preauthkey", "", 400, 3),
        (&delete, "preauthkey?id=99", "", 404, 5),
        (&delete, "apikey/1", "", 404, 5),
        (&delete, "apikey/nothing?id=1", "", 400, 3),
        (&post, "user", r#"{"name":"anna"}"#, 409, 6),
        (&post, "user", "[]", 400, 3),
        (&post, "preauthkey", r#"{"reusable":true}"#, 400, 3),
        (&post, "preauthkey", r#"{"user":"1","aclTags":["server"]}"#, 400, 3),
        (&post, "preauthkey/expire", "{}", 400, 3),
        (&post, "preauthkey/expire", r#"{"key":"nothing"}"#, 404, 5),
        (&post, "apikey/expire", "{}", 400, 3),
        (&post, "apikey/expire", r#"{"prefix":"1"}"#, 404, 5),
        (&post, "node/1/tags", r#"{"tags":[]}"#, 400, 3),
        (&post, "node/1/expire?expiry=2099-01-01T00:00:00Z&disable_expiry=1", "", 400, 3),
        (&post, "node/1/approve_routes", r#"{"routes":["nowhere"]}"#, 400, 3),
        (&post, "node/backfillips", "", 400, 3),
        (&post, "node/register?user=anna&key=x", "", 404, 5),
        (&post, "auth/approve", r#"{"authId":"x"}"#, 404, 5),
    ] {
        let answer = network.send(method.clone(), &format!("/api/v1/{path}"), body).await;
        let refusal = answer.json();
        assert_eq!(answer.status, status, "{method} {path} {body}: {refusal}");
        let message = refusal["message"].as_str().unwrap();
        assert!(!message.is_empty());
        let expected = json!({ "code": code, "message": message, "details": [] });
        assert_eq!(refusal, expected, "{method} {path} {body}");
    }
    assert_eq!(network.get_ok("/api/v1/user").await["users"].as_array().unwrap().len(), 2);
    assert_eq!(network.get_ok("/api/v1/node").await["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(network.get_ok("/api/v1/apikey").await["apiKeys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_debug_registration_becomes_a_node_when_it_is_registered() {
    let network = Network::new().await;
    let number = format!("hskey-authreq-{}", "aB-_".repeat(6));
    let body = json!({ "user": "anna", "key": number, "name": "test", "routes": ["10.9.0.0/24"] });
    let body = body.to_string();
    let made = network.send_ok(Method::POST, "/api/v1/debug/node", &body).await;
    let keys = [&made["node"]["machineKey"], &made["node"]["nodeKey"]];
    assert_eq!(
        made,
        json!({ "node": {
            "id": "0", "machineKey": keys[0], "nodeKey": keys[1], "discoKey": DiscoPublic::default(),
            "ipAddresses": [], "name": "test", "user": user("1", "anna"), "lastSeen": ZERO_TIME,
            "expiry": ZERO_TIME, "preAuthKey": null, "createdAt": ZERO_TIME,
            "registerMethod": "REGISTER_METHOD_UNSPECIFIED", "givenName": "", "online": false,
            "approvedRoutes": [], "availableRoutes": ["10.9.0.0/24"], "subnetRoutes": [], "tags": [],
        }})
    );
    let again = network.send(Method::POST, "/api/v1/debug/node", &body).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert_eq!(network.get_ok("/api/v1/node").await, json!({ "nodes": [] }));
    let body = json!({ "user": "bob", "authId": number }).to_string();
    let node = network.send_ok(Method::POST, "/api/v1/auth/register", &body).await;
    assert_eq!((&node["node"]["nodeKey"], &node["node"]["user"]["name"]), (keys[1], &json!("bob")));
    let changes =
        network.send_ok(Method::POST, "/api/v1/node/backfillips?confirmed=true", "").await;
    assert_eq!(changes, json!({ "changes": [] }));
}
