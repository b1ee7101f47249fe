mod canned;
mod cli;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use canned::Canned;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use mesh::local_json::{Notify, State};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::mpsc::{Sender, channel},
};

use super::{api::Api, serve::connect, *};

const ROOT: u32 = 0;
const READER: u32 = 4242;
const OPERATOR: u32 = 4243;
const OWN: u32 = 4244;

fn api(requests: Sender<Request>) -> Arc<Api> {
    Arc::new(Api::new(writers(), requests))
}

fn writers() -> Arc<Writers> {
    let writers = Writers::new(Some(OWN));
    writers.set_operator(Some(OPERATOR));
    Arc::new(writers)
}

/// A connected program of a user.
struct Program(SendRequest<Full<Bytes>>);

impl Program {
    async fn new(api: &Arc<Api>, user: u32) -> Self {
        let io = TokioIo::new(stream(api, user));
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    async fn send(
        &mut self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&'static str, &'static str)],
    ) -> hyper::Response<Incoming> {
        let mut request = hyper::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.0.ready().await.unwrap();
        self.0.send_request(request).await.unwrap()
    }

    /// The status and the body, as a string if it is not JSON.
    async fn request(&mut self, method: Method, name: &str, body: Option<&Value>) -> (u16, Value) {
        let path = format!("/localapi/v0/{name}");
        let host = [("Host", "local-tailscaled.sock")];
        whole(self.send(&method, &path, body, &host).await).await
    }

    async fn get(&mut self, name: &str) -> (u16, Value) {
        self.request(Method::GET, name, None).await
    }

    async fn post(&mut self, name: &str, body: Option<&Value>) -> (u16, Value) {
        self.request(Method::POST, name, body).await
    }
}

fn stream(api: &Arc<Api>, user: u32) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    tokio::spawn(connect(api, user, theirs).expect("there is room"));
    ours
}

async fn whole(response: hyper::Response<Incoming>) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::from(String::from_utf8_lossy(&body).into_owned());
    (status, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
}

fn error_of(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn status_has_peers_unless_disabled() {
    let api = api(Canned::running().start());
    let mut program = Program::new(&api, READER).await;
    let (code, status) = program.get("status").await;
    assert_eq!((code, &status["BackendState"]), (200, &json!("Running")));
    assert_eq!(status["Peer"].as_object().unwrap().len(), 2);
    assert_eq!(program.get("status?peers=false").await.1["Peer"], Value::Null);
    assert_eq!(status["User"]["7"]["LoginName"], "ann@example.com");
}

#[tokio::test]
async fn all_users_read_preferences_and_only_writers_change_them() {
    let writers = writers();
    let api = Arc::new(Api::new(writers.clone(), Canned::running().start()));
    let edits = json!({"Hostname": "new", "HostnameSet": true});
    let mut reader = Program::new(&api, READER).await;
    let (code, prefs) = reader.get("prefs").await;
    assert_eq!((code, &prefs["Hostname"]), (200, &json!("")));
    assert_eq!(prefs["Config"]["UserProfile"]["LoginName"], "ann@example.com");
    let refused = reader.request(Method::PATCH, "prefs", Some(&edits)).await;
    assert_eq!(error_of(&refused), (403, "only root and the operator may do this"));
    for user in [ROOT, OWN, OPERATOR] {
        let mut writer = Program::new(&api, user).await;
        let (code, prefs) = writer.request(Method::PATCH, "prefs", Some(&edits)).await;
        assert_eq!((code, &prefs["Hostname"]), (200, &json!("new")));
    }
    // Only root writes to a node that root started.
    assert!(!Writers::new(None).has(OWN) && Writers::new(None).has(ROOT));
    writers.set_operator(None);
    let mut previous = Program::new(&api, OPERATOR).await;
    assert_eq!(previous.request(Method::PATCH, "prefs", Some(&edits)).await.0, 403);
}

#[tokio::test]
async fn unsupported_preferences_are_refused() {
    let api = api(Canned::running().start());
    let mut root = Program::new(&api, ROOT).await;
    let ssh = "not supported by linerate: the SSH server (--ssh)";
    let edits = json!({"RunSSH": true, "RunSSHSet": true});
    assert_eq!(error_of(&root.request(Method::PATCH, "prefs", Some(&edits)).await), (400, ssh));
    let prefs = json!({"RunSSH": true});
    assert_eq!(error_of(&root.post("check-prefs", Some(&prefs)).await), (400, ssh));
    let start = json!({"UpdatePrefs": prefs});
    assert_eq!(error_of(&root.post("start", Some(&start)).await), (400, ssh));
    let taken = json!({"Hostname": "taken", "NetfilterMode": 2});
    assert_eq!(error_of(&root.post("check-prefs", Some(&taken)).await), (400, "the name is taken"));
    assert_eq!(root.post("check-prefs", Some(&json!({}))).await, (200, json!({})));
}

#[tokio::test]
async fn readers_cannot_log_in_or_out() {
    let api = api(Canned::running().start());
    let mut reader = Program::new(&api, READER).await;
    for name in
        ["check-prefs", "start", "login-interactive", "logout", "debug?action=current-netmap"]
    {
        assert_eq!(reader.post(name, Some(&json!({}))).await.0, 403, "{name}");
    }
    for name in ["init", "sign", "modify", "disable"] {
        let output = reader.post(&format!("tka/{name}"), Some(&json!({}))).await;
        assert_eq!(output.0, 403, "{name}");
    }
    assert_eq!(reader.get("profiles/").await.0, 403);
    assert_eq!(reader.get("prefs").await.1["WantRunning"], true);
    let mut root = Program::new(&api, ROOT).await;
    assert_eq!(root.post("logout", None).await, (204, json!("")));
    assert_eq!(root.get("status").await.1["BackendState"], "NeedsLogin");
}

#[tokio::test]
async fn notifications_are_lines_and_the_mask_selects_the_first() {
    let api = api(Canned::new().start());
    let mut watching = Program::new(&api, READER).await;
    let host = [("Host", "local-tailscaled.sock")];
    let path = "/localapi/v0/watch-ipn-bus?mask=2";
    let mut notifications = watching.send(&Method::GET, path, None, &host).await.into_body();
    let mut root = Program::new(&api, ROOT).await;
    let start = json!({"AuthKey": canned::GOOD_KEY, "UpdatePrefs": {"WantRunning": true}});
    assert_eq!(root.post("start", Some(&start)).await.0, 204);
    let mut lines = Vec::new();
    while lines.len() < 3 {
        let frame = notifications.frame().await.unwrap().unwrap().into_data().unwrap();
        lines.extend(
            serde_json::Deserializer::from_slice(&frame).into_iter::<Notify>().map(Result::unwrap),
        );
    }
    assert_eq!((lines[0].state, &*lines[0].session_id), (Some(State::NeedsLogin), "1"));
    assert!(lines[1].login_finished.is_some());
    assert_eq!(lines[2].state, Some(State::Running));
    for mask in ["x", "65536"] {
        let (code, _) = root.get(&format!("watch-ipn-bus?mask={mask}")).await;
        assert_eq!(code, 400, "{mask}");
    }
}

#[tokio::test]
async fn watcher_that_does_not_read_is_removed() {
    let (requests, mut agent_requests) = channel(1);
    let api = api(requests);
    let mut program = Program::new(&api, READER).await;
    let host = [("Host", "local-tailscaled.sock")];
    let path = "/localapi/v0/watch-ipn-bus";
    let (response, request) =
        tokio::join!(program.send(&Method::GET, path, None, &host), agent_requests.recv());
    let Some(Request::Watch { watcher, .. }) = request else { panic!("no watch") };
    let long = Notify { err_message: Some("x".repeat(1 << 20)), ..Notify::default() };
    let queued = (0..1000).take_while(|_| watcher.notify(&long)).count();
    assert!(queued < 100, "{queued} lines wait");
    drop(response);
    drop(program);
    while !watcher.is_gone() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn pings_are_validated_and_forwarded() {
    let api = api(Canned::running().start());
    let mut program = Program::new(&api, READER).await;
    let (code, pong) = program.post("ping?ip=100.64.0.3&type=disco&size=0", None).await;
    assert_eq!(
        (code, &pong["DERPRegionCode"], &pong["NodeName"]),
        (200, &json!("lab"), &json!("far"))
    );
    assert_eq!(program.post("ping?ip=100.64.0.3&type=disco&size=8952", None).await.0, 200);
    for (query, error) in [
        ("type=disco", "missing 'ip' parameter"),
        ("ip=x&type=disco", "invalid 'ip' parameter"),
        ("ip=100.64.0.3", "missing 'type' parameter"),
        ("ip=100.64.0.3&type=x", "invalid 'type' parameter"),
        ("ip=100.64.0.3&type=disco&size=-1", "invalid 'size' parameter"),
        ("ip=100.64.0.3&type=disco&size=8953", "maximum value for 'size' is 8952"),
        ("ip=100.64.0.3&type=ICMP&size=9", "'size' parameter is only supported with disco pings"),
    ] {
        assert_eq!(error_of(&program.post(&format!("ping?{query}"), None).await), (400, error));
    }
    assert_eq!(program.get("ping?ip=100.64.0.3&type=disco").await.0, 405);
}

#[tokio::test]
async fn whois_accepts_addresses_ports_and_keys() {
    let api = api(Canned::running().start());
    let mut program = Program::new(&api, READER).await;
    let key = NodePublic([2; 32]).to_string();
    for addr in ["100.64.0.2", "100.64.0.2:80", &key, "100.64.0.2%3A80"] {
        let (code, found) = program.get(&format!("whois?proto=tcp&addr={addr}")).await;
        assert_eq!((code, &found["Node"]["StableID"]), (200, &json!("n2")), "{addr}");
        assert_eq!(found["UserProfile"]["LoginName"], "ann@example.com");
    }
    for (addr, code) in [("100.64.0.8", 404), ("", 400), ("x", 400), ("nodekey:x", 400)] {
        assert_eq!(program.get(&format!("whois?addr={addr}")).await.0, code, "{addr}");
    }
}

#[tokio::test]
async fn parts_of_the_map_are_returned_or_have_clear_errors() {
    let api = api(Canned::running().start());
    let mut root = Program::new(&api, ROOT).await;
    assert_eq!(root.get("derpmap").await.1["Regions"]["999"]["RegionCode"], "lab");
    assert_eq!(error_of(&root.get("dns-config").await), (503, "no netmap"));
    assert_eq!(error_of(&root.post("debug?action=current-netmap", None).await), (503, "no netmap"));
    assert_eq!(root.get("cert-domains").await, (200, json!([])));
    assert_eq!(root.get("peer-by-id?id=2").await.1["StableID"], "n2");
    assert_eq!(error_of(&root.get("peer-by-id?id=9").await), (404, "no peer with that NodeID"));
    assert_eq!(root.get("peer-by-id?id=x").await.0, 400);
    assert_eq!(root.get("user-profile?id=7").await.1["DisplayName"], "Ann");
    assert_eq!(root.get("user-profile?id=8").await.0, 404);
    assert_eq!(root.get("profiles/current").await.1["Name"], "ann@example.com");
    assert_eq!(root.get("profiles/").await.1.as_array().unwrap().len(), 1);
    assert_eq!(root.get("profiles/x").await.0, 404);
    assert_eq!(root.get("tka/status").await, (200, json!({"Enabled": false})));
}

#[tokio::test]
async fn linerate_requests_are_answered() {
    let api = api(Canned::running().start());
    let mut program = Program::new(&api, READER).await;
    let (_, why) = program.get("linerate/why?target=x:22").await;
    assert_eq!(
        why,
        json!({"steps": [{"ok": false, "text": "x:22 is not in the map"}], "reaches": false})
    );
    assert_eq!(program.get("linerate/why").await.0, 400);
    assert_eq!(program.get("linerate/netcheck").await, (200, json!({"udp": true})));
    assert_eq!(program.get("linerate/x").await.0, 404);
}

#[tokio::test]
async fn host_checks_are_answered() {
    let api = api(Canned::running().start());
    let mut program = Program::new(&api, READER).await;
    let warning = json!({"Warning": "IPv6 forwarding is off"});
    assert_eq!(program.get("check-ip-forwarding").await, (200, warning));
    for (name, answer) in [
        ("check-udp-gro-forwarding", json!({"Warning": ""})),
        ("check-so-mark-in-use", json!({"UseSOMark": true})),
        ("update/check", json!({"RunningLatest": true})),
        ("serve-config", json!({})),
        ("services", json!({})),
    ] {
        assert_eq!(program.get(name).await, (200, answer), "{name}");
    }
}

#[tokio::test]
async fn unsupported_requests_have_clear_errors() {
    let api = api(Canned::running().start());
    let mut root = Program::new(&api, ROOT).await;
    for name in [
        "tka/submit-recovery-aum",
        "serve-config",
        "files/x",
        "drive/shares",
        "cert/x",
        "bugreport",
        "debug-derp-region",
        "debug?action=restun",
        "dial",
        "reset-auth",
        "profiles/x",
    ] {
        let answer = root.post(name, None).await;
        assert!(
            error_of(&answer).1.starts_with("not implemented by linerate: "),
            "{name}: {answer:?}"
        );
        assert_eq!(answer.0, 501, "{name}");
    }
    let nothing = root.get("nothing").await;
    assert_eq!(error_of(&nothing), (404, "linerate does not support /localapi/v0/nothing"));
}

#[tokio::test]
async fn requests_of_web_pages_are_denied() {
    let api = api(Canned::running().start());
    let mut root = Program::new(&api, ROOT).await;
    let local = ("Host", "local-tailscaled.sock");
    let path = "/localapi/v0/status";
    for headers in [
        vec![("Host", "localhost")],
        vec![("Host", "local-tailscaled.sock:80")],
        vec![local, ("Origin", "http://local-tailscaled.sock")],
        vec![local, ("Referer", "http://x")],
        vec![local, ("Host", "x")],
    ] {
        let response = root.send(&Method::GET, path, None, &headers).await;
        assert_eq!(whole(response).await.0, 403, "{headers:?}");
    }
    assert_eq!(whole(root.send(&Method::GET, path, None, &[]).await).await.0, 200);
    let greeting = root.send(&Method::GET, "/", None, &[local]).await;
    assert_eq!(whole(greeting).await, (200, json!("linerate\n")));
    assert_eq!(whole(root.send(&Method::GET, "/status", None, &[local]).await).await.0, 404);
}

#[tokio::test]
async fn body_must_be_json_of_limited_length() {
    let api = api(Canned::running().start());
    let mut root = Program::new(&api, ROOT).await;
    let long = json!({"Hostname": "x".repeat(300 << 10), "HostnameSet": true});
    let (code, _) = root.request(Method::PATCH, "prefs", Some(&long)).await;
    assert_eq!(code, 400);
    let mut root = Program::new(&api, ROOT).await;
    for body in [json!([]), json!("x"), json!({"Hostname": 1, "HostnameSet": true})] {
        assert_eq!(root.request(Method::PATCH, "prefs", Some(&body)).await.0, 400, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_programs_and_a_silent_agent_time_out() {
    let (requests, _asked) = channel(1);
    let api = api(requests);
    let start = tokio::time::Instant::now();
    let mut slow = stream(&api, ROOT);
    slow.write_all(b"GET /localapi/v0/status HTTP/1.1\r\nHost:").await.unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(31), "{:?}", start.elapsed());

    let mut half = stream(&api, ROOT);
    half.write_all(b"PATCH /localapi/v0/prefs HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        .await
        .unwrap();
    let mut head = [0; 12];
    half.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 400");

    let mut program = Program::new(&api, ROOT).await;
    assert_eq!(error_of(&program.get("status").await), (504, "the node did not answer"));
}

#[tokio::test(start_paused = true)]
async fn watch_continues_without_notifications() {
    let (requests, mut agent_requests) = channel(1);
    let api = api(requests);
    let mut program = Program::new(&api, READER).await;
    let host = [("Host", "local-tailscaled.sock")];
    let path = "/localapi/v0/watch-ipn-bus";
    let watch = program.send(&Method::GET, path, None, &host);
    let (response, request) = tokio::join!(watch, agent_requests.recv());
    let Some(Request::Watch { watcher, .. }) = request else { panic!("no watch") };
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert!(watcher.notify(&Notify { state: Some(State::Running), ..Notify::default() }));
    let frame = response.into_body().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "{\"Version\":\"\",\"State\":6}\n");
}

#[tokio::test]
async fn connections_are_limited_per_user_and_in_total() {
    let api = api(Canned::running().start());
    let mut held = Vec::new();
    let take = |user: u32, held: &mut Vec<UnixStream>| {
        let mut count = 0;
        while count < 200 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let Some(serving) = connect(&api, user, theirs) else { break };
            tokio::spawn(serving);
            held.push(ours);
            count += 1;
        }
        count
    };
    let counts: Vec<i32> = (0..4).map(|user| take(READER + 10 + user, &mut held)).collect();
    assert_eq!(counts, [16, 16, 16, 0]);
    assert_eq!(take(ROOT, &mut held), 64);
    held.truncate(40);
    while connect(&api, READER + 12, UnixStream::pair().unwrap().1).is_none() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn ended_agent_is_reported() {
    let (requests, agent_requests) = channel(1);
    drop(agent_requests);
    let mut program = Program::new(&api(requests), ROOT).await;
    for name in ["status", "watch-ipn-bus"] {
        assert_eq!(error_of(&program.get(name).await), (503, "the node is ending"), "{name}");
    }
}
