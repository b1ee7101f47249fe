//! Several networks on one server: no request to one network reveals or changes anything of another.

use hyper::{Method, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};
use server::{
    admin::api,
    store::{DatabaseLocation, Store},
};
use tailnet::keys::NodePublic;

use super::world::{Answer, World, machine_request};

const OTHER: &str =
    "[networks.b]\nserver_url = \"http://b.test\"\nbase_domain = \"hidden-b.internal\"\n";
const PAGES: [&str; 12] = [
    "/",
    "/admin",
    "/admin/login",
    "/admin/events",
    "/admin/machines",
    "/admin/users",
    "/admin/keys",
    "/admin/policy",
    "/admin/routes",
    "/admin/dns",
    "/admin/audit",
    "/admin/why",
];
/// Number of requests with a network's own key about objects of the other one.
const REQUESTS: usize = 400;

/// A xorshift64 generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A network with its credentials. Text with `hidden` in it must never be sent by the other network.
struct Filled {
    world: World,
    /// File of its store.
    file: std::path::PathBuf,
    hidden: String,
    bearer: String,
    cookie: String,
    token: String,
    auth_key: String,
    link: String,
    /// Machines that have joined, and one that waits.
    machines: Vec<u8>,
    /// Names of objects: IDs, names, prefixes of keys, node keys and addresses.
    names: Vec<String>,
}

impl Filled {
    async fn new(world: World, letter: &str, first: u8, dice: &mut Dice) -> Self {
        let folder = world.folder();
        let file = match letter {
            "a" => folder.join("store.sqlite"),
            other => folder.join("networks").join(other).join("store.sqlite"),
        };
        let hidden = format!("hidden-{letter}");
        let name = |what: &str, number: usize| format!("{what}-of-{letter}-{number}");
        let mut names = Vec::new();
        for number in 0..2 + dice.below(4) {
            let user = json!({
                "name": name("user", number), "email": format!("{hidden}@x.test"),
                "display_name": format!("{hidden} user"),
            });
            world.command(Method::POST, "user", user).await;
            names.push(name("user", number));
        }
        world.command(Method::POST, "user", json!({ "name": format!("{hidden}-user") })).await;
        let key = json!({ "user": name("user", 0), "reusable": true });
        let key = world.command(Method::POST, "preauthkey", key).await;
        let auth_key = key["key"].as_str().unwrap().to_owned();
        let last = first + 2 + u8::try_from(dice.below(4)).unwrap();
        let machines: Vec<u8> = (first..last).collect();
        for number in &machines {
            let hostname = name("host", usize::from(*number));
            let hostinfo = json!({ "Hostname": hostname, "OS": format!("{hidden}-os") });
            world.join(*number, &auth_key, hostinfo).await;
            names.push(hostname);
            names.push(NodePublic([*number; 32]).to_string());
        }
        let policy = format!("// {hidden}\n{{\"acls\": [], \"hosts\": {{}}}}");
        world.command(Method::PUT, "policy", json!({ "policy": policy })).await;
        let (prefix, bearer) = world.api_key().await;
        let cookie = world.log_in().await;
        let page = world.request(Method::GET, "/admin/users", &[("cookie", &cookie)], "").await;
        let token = page.body.split(r#"X-CSRF-Token":""#).nth(1).unwrap();
        let token = token.split('"').next().unwrap().to_owned();
        let link = world.link().await;
        names.extend([prefix, auth_key.clone(), "100.64.0.1".into()]);
        // Some IDs exist in both networks, and some in only one.
        names.extend((1..12).map(|number: i64| number.to_string()));
        Self { world, file, hidden, bearer, cookie, token, auth_key, link, machines, names }
    }

    /// All objects in its store.
    async fn everything(&self) -> Vec<String> {
        let store = Store::open(&DatabaseLocation::File(self.file.clone())).await.unwrap();
        let objects = store.everything().await.unwrap();
        objects.iter().map(|object| format!("{object:?}")).collect()
    }

    /// The path of a route, with names of this network.
    fn path(&self, route: &str, dice: &mut Dice) -> String {
        let parts = route.split('/').map(|part| match part.starts_with('{') {
            true => dice.one(&self.names).clone(),
            false => part.to_owned(),
        });
        let path = parts.collect::<Vec<_>>().join("/");
        let (one, other) = (dice.one(&self.names).clone(), dice.one(&self.names).clone());
        match dice.below(5) {
            0 => path,
            1 => format!("{path}?user={one}"),
            2 => format!("{path}?{}={one}", dice.one(&["id", "name"])),

            3 => format!("{path}?user={one}&key={other}"),
            _ => format!("{path}?from={one}&to={other}&limit=9999"),
        }
    }

    /// A body for a route, with names of this network.
    fn body(&self, route: &str, dice: &mut Dice) -> Value {
        let name = dice.one(&self.names).clone();
        let route = route.strip_prefix(api::ROOT).or(route.strip_prefix(api::HEADSCALE_ROOT));
        match route.unwrap() {
            "user" => json!({ "name": name }),
            "preauthkey" => json!({ "user": name, "reusable": true }),
            "apikey" => json!({}),
            "auth/approve" | "auth/reject" => json!({ "auth_id": name }),
            "policy" | "policy/check" => {
                let rule = json!({ "action": "accept", "src": [name], "dst": ["*:*"] });
                json!({ "policy": json!({ "acls": [rule] }).to_string() })
            }
            "preauthkey/expire" => json!({ (dice.one(&["id", "key"]).to_string()): name }),
            "apikey/expire" => json!({ (dice.one(&["id", "prefix"]).to_string()): name }),
            "auth/register" => json!({ "user": name, "authId": dice.one(&self.names) }),
            "debug/node" => json!({ "user": name, "key": "0".repeat(24) }),
            "node/{id}/tags" => json!({ "tags": [name] }),
            "node/{id}/approve_routes" => json!({ "routes": ["0.0.0.0/0"] }),
            _ => json!({}),
        }
    }
}

/// Checks that an answer contains nothing of the other network.
fn check(answer: &Answer, other: &Filled, what: &str) {
    let text = format!("{:?} {}", answer.headers, answer.body);
    assert!(!text.contains(&other.hidden), "{what}: {text}");
}

/// Sends requests to a network with the credentials of the other one.
async fn request_with_foreign_credentials(at: &Filled, other: &Filled, dice: &mut Dice) {
    let bearer = [("authorization", &*other.bearer)];
    let session = [("cookie", &*other.cookie), ("x-csrf-token", &*other.token)];
    for (number, (method, route)) in api::listed_routes().into_iter().enumerate() {
        for (with, headers) in [("key", &bearer[..]), ("session", &session[..])] {
            let (path, body) = (other.path(&route, dice), other.body(&route, dice).to_string());
            let answer = at.world.request(method.clone(), &path, headers, &body).await;
            let what = format!("{method} {path} with the other's {with}");
            check(&answer, other, &what);
            let is_refused = match with {
                // After 20 wrong keys, requests are throttled.
                "key" if number >= 20 => answer.status.is_client_error(),
                _ => answer.status == StatusCode::UNAUTHORIZED,
            };
            assert!(is_refused, "{what}: {} {}", answer.status, answer.body);
        }
    }
    for page in PAGES {
        let answer = at.world.request(Method::GET, page, &session, "").await;
        check(&answer, other, page);
        assert!(page == "/admin/login" || answer.status == StatusCode::SEE_OTHER, "{page}");
    }
    for key in [&*other.link, other.bearer.strip_prefix("Bearer ").unwrap(), &*other.auth_key] {
        let answer = at.world.submit_login(key).await;
        check(&answer, other, "a login");
        assert!(answer.status.is_client_error() && !answer.headers.contains_key("set-cookie"));
    }
    let form = [session[0], (CONTENT_TYPE.as_str(), "application/x-www-form-urlencoded")];
    let leave = format!("token={}", other.token);
    at.world.request(Method::POST, "/admin/logout", &form, &leave).await;
}

/// Sends requests with a network's own key about objects of the other one.
async fn request_foreign_objects(at: &Filled, other: &Filled, dice: &mut Dice) {
    let routes = api::listed_routes();
    let own = [("authorization", &*at.bearer)];
    for _ in 0..REQUESTS {
        let (method, route) = dice.one(&routes);
        // Requests that would expire the own key are not sent.
        if route.contains("apikey/") {
            continue;
        }
        let (path, body) = (other.path(route, dice), other.body(route, dice).to_string());
        let answer = at.world.request(method.clone(), &path, &own, &body).await;
        check(&answer, other, &format!("{method} {path} {body}"));
        assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    for page in PAGES {
        if page == "/admin/events" {
            continue;
        }
        let path = format!("{page}?q={}&from=1&to=2", dice.one(&other.names));
        let answer = at.world.request(Method::GET, &path, &[("cookie", &at.cookie)], "").await;
        check(&answer, other, &path);
    }
    for number in 0..9 {
        for what in ["machines", "users"] {
            let path = format!("/admin/{what}/{number}");
            let answer = at.world.request(Method::GET, &path, &[("cookie", &at.cookie)], "").await;
            check(&answer, other, &path);
        }
    }
}

/// Sends requests of the other network's machines, with their own keys.
async fn request_as_foreign_machines(at: &Filled, other: &Filled) {
    for number in &other.machines {
        let key = NodePublic([*number; 32]);
        let verify = json!({ "NodePublic": key }).to_string();
        for (world, is_known) in [(&at.world, false), (&other.world, true)] {
            let answer = world.request(Method::POST, "/verify", &[], &verify).await;
            assert_eq!(answer.json()["Allow"], is_known);
        }
        let hostinfo = json!({ "Hostname": "x" });
        let register = json!({
            "Version": 131, "NodeKey": key, "OldNodeKey": key, "Hostinfo": hostinfo,
            "Auth": { "AuthKey": other.auth_key },
        });
        let map = json!({
            "Version": 131, "NodeKey": key, "Compress": "", "OmitPeers": true, "Stream": false,
        });
        let paths = [
            ("register", &register),
            ("map", &map),
            ("tka/init/begin", &json!({ "Version": 131, "NodeKey": key })),
            ("set-dns", &map),
        ];
        for (path, body) in paths {
            let mut machine = at.world.machine(*number).await;
            let answer = machine.send_request(machine_request(path, body)).await.unwrap();
            let status = answer.status();
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            assert!(!text.contains(&other.hidden), "{path}: {text}");
            match path {
                "register" => {
                    assert!(text.contains("\"MachineAuthorized\":false"), "{text}");
                    let text: Value = serde_json::from_str(&text).unwrap();
                    assert_ne!(text["Error"], "", "{text}");
                }
                _ => assert!(!status.is_success(), "{path}: {status} {text}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_one_network_neither_reveal_nor_change_another() {
    for (seed, is_at_first) in [(0x9e37_79b9_7f4a_7c15, true), (0x2545_f491_4f6c_dd1d, false)] {
        let mut dice = Dice(seed);
        let first = World::with(OTHER).await;
        let second = first.other("b", "b.test");
        let a = Filled::new(first, "a", 10, &mut dice).await;
        let b = Filled::new(second, "b", 60, &mut dice).await;
        let (at, other) = if is_at_first { (&a, &b) } else { (&b, &a) };
        // The hidden text can be found with the right key.
        let own = [("authorization", &*other.bearer)];
        for path in ["user", "node", "policy", "audit"] {
            let path = format!("{}{path}", api::ROOT);
            let answer = other.world.request(Method::GET, &path, &own, "").await;
            assert!(answer.body.contains(&other.hidden), "{path}: {}", answer.body);
        }
        let before = other.everything().await;
        assert!(before.len() > 10, "{before:?}");
        request_with_foreign_credentials(at, other, &mut dice).await;
        request_as_foreign_machines(at, other).await;
        request_foreign_objects(at, other, &mut dice).await;
        assert_eq!(other.everything().await, before, "seed {seed}");
        // State that is only in memory is unchanged as well.
        let session = [("cookie", &*other.cookie)];
        let page = other.world.request(Method::GET, "/admin/users", &session, "").await;
        assert!(page.status == StatusCode::OK && page.body.contains(&other.hidden));
        let entered = other.world.submit_login(&other.link).await;
        assert_eq!(entered.status, StatusCode::SEE_OTHER, "its link was not used");
    }
}

#[tokio::test]
async fn a_request_for_an_unknown_host_is_refused() {
    let world = World::with(OTHER).await;
    for (host, status) in [("localhost", 200), ("b.test", 200), ("b.test:80", 200), ("c.test", 404)]
    {
        for path in ["/key?v=131", "/health", "/derp/probe"] {
            let answer = world.other("b", host).request(Method::GET, path, &[], "").await;
            assert_eq!(answer.status.as_u16(), status, "{host} {path}: {}", answer.body);
        }
    }
    let answer = world.other("b", "").request(Method::GET, "/key?v=131", &[], "").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.body);
    let second = world.other("b", "b.test");
    let [one, other] = [world.server_key().await, second.server_key().await];
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_network_without_its_database_does_not_block_another() {
    let away = format!("{OTHER}database = \"postgres://u@127.0.0.1:1/net\"\n");
    let world = World::with(&away).await;
    world.command(Method::POST, "user", json!({ "name": "anna" })).await;
    let answer = world.request(Method::GET, "/health", &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let answer = world.other("b", "b.test").request(Method::GET, "/key?v=131", &[], "").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.body);
    let answer = world.other("b", "b.test").try_command(Method::GET, "user").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.body);
}
