//! Several networks on one server: whatever one is asked with, nothing of another comes out of it or
//! changes.

use hyper::{Method, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};
use server::{
    api,
    store::{Database, Store},
};
use tailnet::keys::NodePublic;

use super::world::{Said, World, said_by_machine};

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
/// How many requests with a network's own key of what is the other's.
const REQUESTS: usize = 400;

/// Numbers of xorshift64.
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

/// A network with what opens it. What has `hidden` in it nobody says to the other network.
struct Filled {
    world: World,
    /// Where its store is.
    file: std::path::PathBuf,
    hidden: String,
    bearer: String,
    cookie: String,
    token: String,
    auth_key: String,
    link: String,
    /// Machines that have joined, and one that waits.
    machines: Vec<u8>,
    /// What names objects: numbers, names, keys' prefixes, node keys, addresses.
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
        let cookie = world.enter().await;
        let page = world.ask(Method::GET, "/admin/users", &[("cookie", &cookie)], "").await;
        let token = page.body.split(r#"X-CSRF-Token":""#).nth(1).unwrap();
        let token = token.split('"').next().unwrap().to_owned();
        let link = world.link().await;
        names.extend([prefix, auth_key.clone(), "100.64.0.1".into()]);
        // Numbers are the same in both, and some are in one alone.
        names.extend((1..12).map(|number: i64| number.to_string()));
        Self { world, file, hidden, bearer, cookie, token, auth_key, link, machines, names }
    }

    /// All that it keeps.
    async fn everything(&self) -> Vec<String> {
        let store = Store::open(&Database::File(self.file.clone())).await.unwrap();
        let objects = store.everything().await.unwrap();
        objects.iter().map(|object| format!("{object:?}")).collect()
    }

    /// A route's path with names of this network in it.
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

    /// Something that a route may take, about this network.
    fn body(&self, route: &str, dice: &mut Dice) -> Value {
        let name = dice.one(&self.names).clone();
        let route = route.strip_prefix(api::ROOT).or(route.strip_prefix(api::HEADSCALES));
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

/// What a network says has nothing of another in it.
fn check(said: &Said, other: &Filled, what: &str) {
    let told = format!("{:?} {}", said.headers, said.body);
    assert!(!told.contains(&other.hidden), "{what}: {told}");
}

/// Asks a network for everything with what opens the other.
async fn ask_with_the_others_keys(at: &Filled, other: &Filled, dice: &mut Dice) {
    let bearer = [("authorization", &*other.bearer)];
    let session = [("cookie", &*other.cookie), ("x-csrf-token", &*other.token)];
    for (number, (method, route)) in api::listed().into_iter().enumerate() {
        for (with, headers) in [("key", &bearer[..]), ("session", &session[..])] {
            let (path, body) = (other.path(&route, dice), other.body(&route, dice).to_string());
            let said = at.world.ask(method.clone(), &path, headers, &body).await;
            let what = format!("{method} {path} with the other's {with}");
            check(&said, other, &what);
            let is_refused = match with {
                // Behind 20 wrong keys all are told to wait.
                "key" if number >= 20 => said.status.is_client_error(),
                _ => said.status == StatusCode::UNAUTHORIZED,
            };
            assert!(is_refused, "{what}: {} {}", said.status, said.body);
        }
    }
    for page in PAGES {
        let said = at.world.ask(Method::GET, page, &session, "").await;
        check(&said, other, page);
        assert!(page == "/admin/login" || said.status == StatusCode::SEE_OTHER, "{page}");
    }
    for key in [&*other.link, other.bearer.strip_prefix("Bearer ").unwrap(), &*other.auth_key] {
        let said = at.world.ask_to_enter(key).await;
        check(&said, other, "a login");
        assert!(said.status.is_client_error() && !said.headers.contains_key("set-cookie"));
    }
    let form = [session[0], (CONTENT_TYPE.as_str(), "application/x-www-form-urlencoded")];
    let leave = format!("token={}", other.token);
    at.world.ask(Method::POST, "/admin/logout", &form, &leave).await;
}

/// Asks a network, by its own key, about everything of the other's.
async fn ask_about_the_other(at: &Filled, other: &Filled, dice: &mut Dice) {
    let routes = api::listed();
    let own = [("authorization", &*at.bearer)];
    for _ in 0..REQUESTS {
        let (method, route) = dice.one(&routes);
        // What would end the own key is for another test.
        if route.contains("apikey/") {
            continue;
        }
        let (path, body) = (other.path(route, dice), other.body(route, dice).to_string());
        let said = at.world.ask(method.clone(), &path, &own, &body).await;
        check(&said, other, &format!("{method} {path} {body}"));
        assert_ne!(said.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    for page in PAGES {
        if page == "/admin/events" {
            continue;
        }
        let path = format!("{page}?q={}&from=1&to=2", dice.one(&other.names));
        let said = at.world.ask(Method::GET, &path, &[("cookie", &at.cookie)], "").await;
        check(&said, other, &path);
    }
    for number in 0..9 {
        for what in ["machines", "users"] {
            let path = format!("/admin/{what}/{number}");
            let said = at.world.ask(Method::GET, &path, &[("cookie", &at.cookie)], "").await;
            check(&said, other, &path);
        }
    }
}

/// The other's machines ask a network, by their own keys.
async fn ask_as_the_others_machines(at: &Filled, other: &Filled) {
    for number in &other.machines {
        let key = NodePublic([*number; 32]);
        let verify = json!({ "NodePublic": key }).to_string();
        for (world, is_known) in [(&at.world, false), (&other.world, true)] {
            let said = world.ask(Method::POST, "/verify", &[], &verify).await;
            assert_eq!(said.json()["Allow"], is_known);
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
            let said = machine.send_request(said_by_machine(path, body)).await.unwrap();
            let status = said.status();
            let body = http_body_util::BodyExt::collect(said.into_body()).await.unwrap();
            let told = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            assert!(!told.contains(&other.hidden), "{path}: {told}");
            match path {
                "register" => {
                    assert!(told.contains("\"MachineAuthorized\":false"), "{told}");
                    let told: Value = serde_json::from_str(&told).unwrap();
                    assert_ne!(told["Error"], "", "{told}");
                }
                _ => assert!(!status.is_success(), "{path}: {status} {told}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_network_is_told_or_changed_by_what_another_is_asked_with() {
    for (seed, is_first_asked) in [(0x9e37_79b9_7f4a_7c15, true), (0x2545_f491_4f6c_dd1d, false)] {
        let mut dice = Dice(seed);
        let first = World::with(OTHER).await;
        let second = first.other("b", "b.test");
        let a = Filled::new(first, "a", 10, &mut dice).await;
        let b = Filled::new(second, "b", 60, &mut dice).await;
        let (at, other) = if is_first_asked { (&a, &b) } else { (&b, &a) };
        // What is looked for can be found.
        let own = [("authorization", &*other.bearer)];
        for path in ["user", "node", "policy", "audit"] {
            let path = format!("{}{path}", api::ROOT);
            let said = other.world.ask(Method::GET, &path, &own, "").await;
            assert!(said.body.contains(&other.hidden), "{path}: {}", said.body);
        }
        let before = other.everything().await;
        assert!(before.len() > 10, "{before:?}");
        ask_with_the_others_keys(at, other, &mut dice).await;
        ask_as_the_others_machines(at, other).await;
        ask_about_the_other(at, other, &mut dice).await;
        assert_eq!(other.everything().await, before, "seed {seed}");
        // What is kept in memory alone is as it was, too.
        let session = [("cookie", &*other.cookie)];
        let page = other.world.ask(Method::GET, "/admin/users", &session, "").await;
        assert!(page.status == StatusCode::OK && page.body.contains(&other.hidden));
        let entered = other.world.ask_to_enter(&other.link).await;
        assert_eq!(entered.status, StatusCode::SEE_OTHER, "its link was not used");
    }
}

#[tokio::test]
async fn a_request_that_names_no_network_is_no_networks() {
    let world = World::with(OTHER).await;
    for (host, status) in [("localhost", 200), ("b.test", 200), ("b.test:80", 200), ("c.test", 404)]
    {
        for path in ["/key?v=131", "/health", "/derp/probe"] {
            let said = world.other("b", host).ask(Method::GET, path, &[], "").await;
            assert_eq!(said.status.as_u16(), status, "{host} {path}: {}", said.body);
        }
    }
    let said = world.other("b", "").ask(Method::GET, "/key?v=131", &[], "").await;
    assert_eq!(said.status, StatusCode::BAD_REQUEST, "{}", said.body);
    let second = world.other("b", "b.test");
    let [one, other] = [world.server_key().await, second.server_key().await];
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_network_whose_database_is_away_holds_up_no_other() {
    let away = format!("{OTHER}database = \"postgres://u@127.0.0.1:1/net\"\n");
    let world = World::with(&away).await;
    world.command(Method::POST, "user", json!({ "name": "anna" })).await;
    let said = world.ask(Method::GET, "/health", &[], "").await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let said = world.other("b", "b.test").ask(Method::GET, "/key?v=131", &[], "").await;
    assert_eq!(said.status, StatusCode::SERVICE_UNAVAILABLE, "{}", said.body);
    let said = world.other("b", "b.test").try_command(Method::GET, "user").await;
    assert_eq!(said.status, StatusCode::SERVICE_UNAVAILABLE, "{}", said.body);
}
