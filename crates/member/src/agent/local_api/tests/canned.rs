//! An agent with constant data of one network.

use std::{collections::BTreeMap, net::IpAddr};

use mesh::{
    local_json::{
        Empty, Notify, PeerStatus, PingResult, State, Status, TailnetStatus, Timestamp, WatchMask,
        WhoIs, Why, WhyStep,
    },
    prefs::{Login, Prefs},
};
use serde_json::{Value, json};
use tailnet::{keys::NodePublic, map_messages::UserProfile, raw_json::Json};
use tokio::sync::mpsc;

use super::super::{ApiError, Request, Watcher, WhoIsQuery};

pub(super) const PAGE: &str = "https://control.example/register/abc";
pub(super) const GOOD_KEY: &str = "tskey-good";

/// The agent's state.
pub(super) struct Canned {
    pub(super) prefs: Prefs,
    pub(super) state: State,
    watchers: Vec<Watcher>,
}

impl Canned {
    /// A logged-out agent.
    pub(super) fn new() -> Self {
        Self { prefs: Prefs::new(), state: State::NeedsLogin, watchers: Vec::new() }
    }

    /// A connected agent.
    pub(super) fn running() -> Self {
        let mut canned = Self::new();
        canned.prefs.control_url = "https://control.example".into();
        canned.prefs.want_running = true;
        canned.prefs.login = Some(login());
        canned.state = State::Running;
        canned
    }

    pub(super) fn start(self) -> mpsc::Sender<Request> {
        let (sender, requests) = mpsc::channel(8);
        tokio::spawn(self.run(requests));
        sender
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(request) = requests.recv().await {
            self.handle(request);
        }
    }

    /// Handles a request. Closed replies are ignored.
    fn handle(&mut self, request: Request) {
        match request {
            Request::Status { peers, reply } => drop(reply.send(Ok(Box::new(self.status(peers))))),
            Request::Prefs { reply } => drop(reply.send(Ok(Box::new(self.prefs.clone())))),
            Request::EditPrefs { edits, reply } => {
                let edited = self.prefs.edited(&edits).and_then(|new| new.check().map(|()| new));
                let answer = edited.map(|new| {
                    self.prefs = new;
                    self.follow();
                    Box::new(self.prefs.clone())
                });
                drop(reply.send(answer.map_err(ApiError::from)));
            }
            Request::CheckPrefs { prefs, reply } => {
                let wrong = prefs.hostname == "taken";
                drop(reply.send(if wrong {
                    Err(ApiError::bad("the name is taken"))
                } else {
                    Ok(())
                }));
            }
            Request::Start { options, reply } => {
                if let Some(prefs) = options.update_prefs {
                    self.prefs = Prefs { login: self.prefs.login.take(), ..*prefs };
                }
                drop(reply.send(Ok(())));
                match options.auth_key.text() {
                    "" => self.follow(),
                    GOOD_KEY => self.log_in(),
                    _ => self.notify(&Notify {
                        err_message: Some("the key is not known".into()),
                        ..Notify::default()
                    }),
                }
            }
            Request::LoginInteractive { reply } => {
                drop(reply.send(Ok(())));
                if self.prefs.login.is_none() {
                    let page = Some(PAGE.into());
                    self.notify(&Notify { browse_to_url: page, ..Notify::default() });
                    self.log_in();
                }
            }
            Request::Logout { reply } => {
                self.prefs.login = None;
                self.prefs.want_running = false;
                self.prefs.logged_out = true;
                self.follow();
                drop(reply.send(Ok(())));
            }
            Request::Watch { mask, watcher } => self.watch(mask, watcher),
            other => answer(other),
        }
    }

    fn watch(&mut self, mask: WatchMask, watcher: Watcher) {
        let mut first = Notify::default();
        if mask.has(WatchMask::INITIAL_STATE) {
            first.session_id = "1".into();
            first.state = Some(self.state);
        }
        if mask.has(WatchMask::INITIAL_PREFS) {
            first.prefs = Some(Box::new(self.prefs.clone()));
        }
        if mask.has(WatchMask::INITIAL_STATUS) {
            first.initial_status = Some(Box::new(self.status(true)));
        }
        if first == Notify::default() || watcher.notify(&first) {
            self.watchers.push(watcher);
        }
    }

    fn log_in(&mut self) {
        self.prefs.login = Some(login());
        self.notify(&Notify { login_finished: Some(Empty {}), ..Notify::default() });
        self.follow();
    }

    fn follow(&mut self) {
        self.state = match (&self.prefs.login, self.prefs.want_running) {
            (None, _) => State::NeedsLogin,
            (_, false) => State::Stopped,
            (_, true) => State::Running,
        };
        self.notify(&Notify { state: Some(self.state), ..Notify::default() });
    }

    fn notify(&mut self, notify: &Notify) {
        self.watchers.retain(|watcher| watcher.notify(notify));
    }

    fn status(&self, peers: bool) -> Status {
        let login = self.prefs.login.is_some();
        let own = PeerStatus {
            host_name: "own".into(),
            os: "linux".into(),
            online: self.state == State::Running,
            ..PeerStatus::default()
        };
        let mut status = Status {
            version: "1.102.5-linerate".into(),
            tun: true,
            backend_state: self.state,
            have_node_key: login,
            own,
            ..Status::default()
        };
        if !login {
            return status;
        }
        status.own.dns_name = "own.tail.example.".into();
        status.own.user_id = 7;
        status.own.public_key = NodePublic([1; 32]);
        status.own.tailscale_ips = addresses(1);
        status.tailscale_ips = addresses(1);
        status.magic_dns_suffix = "tail.example".into();
        status.current_tailnet = Some(TailnetStatus {
            name: "ann@example.com".into(),
            magic_dns_suffix: "tail.example".into(),
            magic_dns_enabled: true,
        });
        status.health = vec!["a relay does not answer".into()];
        status.user = BTreeMap::from([(7, user())]);
        if peers {
            status.peer = [peer(2, "near"), peer(3, "far")].into();
        }
        status
    }
}

fn login() -> Login {
    Login { user_profile: user(), node_id: "n1".into() }
}

fn user() -> UserProfile {
    UserProfile {
        id: 7,
        login_name: "ann@example.com".into(),
        display_name: "Ann".into(),
        ..UserProfile::default()
    }
}

fn addresses(last: u8) -> Vec<IpAddr> {
    let six = format!("fd7a:115c:a1e0::{last}");
    vec![[100, 64, 0, last].into(), six.parse().unwrap()]
}

fn peer(last: u8, name: &str) -> (NodePublic, PeerStatus) {
    let key = NodePublic([last; 32]);
    let near = name == "near";
    let status = PeerStatus {
        id: format!("n{last}"),
        node_id: last.into(),
        public_key: key,
        host_name: name.into(),
        dns_name: format!("{name}.tail.example."),
        os: "linux".into(),
        user_id: 7,
        tailscale_ips: addresses(last),
        allowed_ips: addresses(last).into_iter().map(Into::into).collect(),
        cur_addr: if near { "192.0.2.2:41641".into() } else { String::new() },
        relay: "lab".into(),
        rx_bytes: if near { 2000 } else { 0 },
        tx_bytes: if near { 1000 } else { 0 },
        created: Timestamp::from_unix(1_700_000_000),
        online: near,
        exit_node_option: near,
        active: near,
        in_network_map: true,
        in_magic_sock: true,
        in_engine: near,
        key_expiry: Some(Timestamp::from_unix(1_900_000_000)),
        ..PeerStatus::default()
    };
    (key, status)
}

fn node(last: u8) -> Value {
    json!({
        "ID": last, "StableID": format!("n{last}"), "Name": "near.tail.example.", "User": 7,
        "Key": NodePublic([last; 32]),
        "Addresses": [format!("100.64.0.{last}/32"), format!("fd7a:115c:a1e0::{last}/128")],
    })
}

/// Answers requests that do not depend on the state.
fn answer(request: Request) {
    match request {
        Request::Ping { ip, kind: _, size: _, reply } => {
            let far = ip == addresses(3)[0];
            drop(reply.send(Ok(PingResult {
                ip: ip.to_string(),
                node_ip: ip.to_string(),
                node_name: if far { "far".into() } else { "near".into() },
                latency_seconds: 0.005,
                endpoint: if far { String::new() } else { "192.0.2.2:41641".into() },
                derp_region_id: if far { 999 } else { 0 },
                derp_region_code: if far { "lab".into() } else { String::new() },
                ..PingResult::default()
            })));
        }
        Request::WhoIs { query, reply } => {
            let known = match query {
                WhoIsQuery::Address { address, .. } => address.ip() == addresses(2)[0],
                WhoIsQuery::Key(key) => key == NodePublic([2; 32]),
            };
            let found = WhoIs {
                node: Json::from(&node(2)),
                user_profile: user(),
                cap_map: Json::default(),
            };
            drop(reply.send(Ok(known.then(|| Box::new(found)))));
        }
        Request::DerpMap { reply } => drop(reply.send(Ok(json!({"Regions": {"999": {
            "RegionID": 999, "RegionCode": "lab", "RegionName": "Lab", "Nodes": [{
                "Name": "999a", "RegionID": 999, "HostName": "127.0.0.1", "IPv4": "127.0.0.1",
                "IPv6": "none", "STUNPort": 3478, "DERPPort": 1, "InsecureForTests": true,
            }],
        }}})))),
        Request::DnsConfig { reply } | Request::NetMap { reply } => {
            drop(reply.send(Ok(Value::Null)));
        }
        Request::Node { id, reply } => {
            drop(reply.send(Ok(if id == 2 { node(2) } else { Value::Null })));
        }
        Request::Tka { reply, .. } => drop(reply.send(Err(ApiError::failed("off")))),
        Request::TkaStatus { reply } => drop(reply.send(Ok(json!({"Enabled": false})))),
        Request::Forwarding { reply } => drop(reply.send(Ok("IPv6 forwarding is off".into()))),
        Request::Why { target, reply } => {
            let steps = vec![WhyStep { ok: false, text: format!("{target} is not in the map") }];
            drop(reply.send(Ok(Why { steps, reaches: false })));
        }
        Request::Netcheck { reply } => drop(reply.send(Ok(json!({"udp": true})))),
        _ => {}
    }
}
