//! Ten thousand nodes on this machine, which also runs the generator: first all are visible to all,
//! then with a policy as such networks have, by which each sees a few hundred.

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use netns::{CoordinatorKind, Tailnet};
use serde_json::json;

use super::{IDLE, News, Plan, SETTLE, Swarm};
use crate::measure::{
    Measure, SERVER_10K, SERVER_10K_AGAIN, SERVER_10K_AGAIN_MEMORY, SERVER_10K_AGAIN_REACHED,
    SERVER_10K_BYTES, SERVER_10K_CHANGE_P50, SERVER_10K_CHANGE_P99, SERVER_10K_CHANGE_TOLD,
    SERVER_10K_CPU, SERVER_10K_HELD, SERVER_10K_IDLE, SERVER_10K_MEMORY, SERVER_10K_POLICY,
    SERVER_10K_POLICY_AGAIN, SERVER_10K_POLICY_AGAIN_MEMORY, SERVER_10K_POLICY_AGAIN_REACHED,
    SERVER_10K_POLICY_BYTES, SERVER_10K_POLICY_CHANGE_P50, SERVER_10K_POLICY_CHANGE_P99,
    SERVER_10K_POLICY_CHANGE_TOLD, SERVER_10K_POLICY_CPU, SERVER_10K_POLICY_HELD,
    SERVER_10K_POLICY_IDLE, SERVER_10K_POLICY_MEMORY, SERVER_10K_POLICY_REACHED,
    SERVER_10K_POLICY_RENEW_P99, SERVER_10K_POLICY_RULES_P99, SERVER_10K_REACHED,
    SERVER_10K_RENEW_P99, SERVER_10K_RULES_P99,
};
use crate::readings::Readings;
use crate::swarm::Group;
use netns::{Processes, Watch};

/// Time for all to join or to reconnect; the bars are 120 s and 60 s.
const LIMIT: Duration = Duration::from_secs(300);

/// Nodes, and those of a brief test.
const NODES: usize = 10_000;
const BRIEF_NODES: usize = 60;
/// Every 50th node is a server that all users reach, and every 200th a store that only servers
/// reach.
const SERVERS: usize = 50;
const STORES: usize = 200;
/// Users, who own the other nodes.
const USERS: usize = 100;
const BRIEF_USERS: usize = 3;

/// The measures.
struct Rows {
    time: &'static Measure,
    reached: &'static Measure,
    cpu: &'static Measure,
    memory: &'static Measure,
    bytes: &'static Measure,
    idle: &'static Measure,
    held: &'static Measure,
    change: [&'static Measure; 3],
    renew: &'static Measure,
    rules: &'static Measure,
    again: [&'static Measure; 3],
}

static ALL: Rows = Rows {
    time: &SERVER_10K,
    reached: &SERVER_10K_REACHED,
    cpu: &SERVER_10K_CPU,
    memory: &SERVER_10K_MEMORY,
    bytes: &SERVER_10K_BYTES,
    idle: &SERVER_10K_IDLE,
    held: &SERVER_10K_HELD,
    change: [&SERVER_10K_CHANGE_P50, &SERVER_10K_CHANGE_P99, &SERVER_10K_CHANGE_TOLD],
    renew: &SERVER_10K_RENEW_P99,
    rules: &SERVER_10K_RULES_P99,
    again: [&SERVER_10K_AGAIN, &SERVER_10K_AGAIN_REACHED, &SERVER_10K_AGAIN_MEMORY],
};

static BY_POLICY: Rows = Rows {
    time: &SERVER_10K_POLICY,
    reached: &SERVER_10K_POLICY_REACHED,
    cpu: &SERVER_10K_POLICY_CPU,
    memory: &SERVER_10K_POLICY_MEMORY,
    bytes: &SERVER_10K_POLICY_BYTES,
    idle: &SERVER_10K_POLICY_IDLE,
    held: &SERVER_10K_POLICY_HELD,
    change: [
        &SERVER_10K_POLICY_CHANGE_P50,
        &SERVER_10K_POLICY_CHANGE_P99,
        &SERVER_10K_POLICY_CHANGE_TOLD,
    ],
    renew: &SERVER_10K_POLICY_RENEW_P99,
    rules: &SERVER_10K_POLICY_RULES_P99,
    again: [
        &SERVER_10K_POLICY_AGAIN,
        &SERVER_10K_POLICY_AGAIN_REACHED,
        &SERVER_10K_POLICY_AGAIN_MEMORY,
    ],
};

/// Measures linerate-server.
///
/// # Panics
/// If it does not start or the generator ends. Earlier readings remain.
pub(crate) fn run(plan: &Plan, readings: &RefCell<Readings>, notify: &dyn Fn(News<'_>)) {
    let note = |measure: &'static Measure, figure: f64| {
        if plan.wants(measure) {
            notify(News::Figure(measure, figure));
            readings.borrow_mut().push(measure, figure);
        }
    };
    let nodes = if plan.is_brief { BRIEF_NODES } else { NODES };
    for (rows, by_policy) in [(&ALL, false), (&BY_POLICY, true)] {
        if plan.wants(rows.time) {
            let users = if plan.is_brief { BRIEF_USERS } else { USERS };
            Many { nodes, users, by_policy, is_brief: plan.is_brief, rows, note: &note }.run();
        }
    }
}

struct Many<'a> {
    nodes: usize,
    users: usize,
    by_policy: bool,
    is_brief: bool,
    rows: &'static Rows,
    note: super::Note<'a>,
}

impl Many<'_> {
    fn run(self) {
        let mut tailnet = Tailnet::without_members(CoordinatorKind::Linerate);
        let groups = match self.by_policy {
            true => self.groups(&tailnet),
            false => vec![Group::all(tailnet.coordinator.auth_key(), self.nodes)],
        };
        let server = Processes::of(&tailnet.coordinator.host, tailnet.coordinator.pid());
        let alone = server.memory().unwrap_or_default().private;
        let (watch, before) = (Watch::start(vec![server.clone()]), server.cpu());
        let mut swarm = Swarm::start(&tailnet, &groups, LIMIT);
        let joined = swarm.joined();
        let (rows, note, nodes) = (self.rows, self.note, self.nodes as f64);
        note(rows.time, joined.seconds);
        note(rows.reached, joined.whole as f64);
        note(rows.cpu, (server.cpu() - before) * 1e3 / nodes);
        note(rows.bytes, joined.bytes as f64 / 1e3 / nodes);
        if joined.whole == self.nodes {
            self.idle(&server, alone);
            self.changes(&mut swarm);
            self.rules(&tailnet, &mut swarm);
        }
        note(rows.memory, watch.peak().unwrap_or_default().private / 1e6);
        drop(watch);
        self.restart(&mut tailnet, &mut swarm);
    }

    fn idle(&self, server: &Processes, alone: f64) {
        let idle = if self.is_brief { Duration::from_millis(300) } else { IDLE };
        thread::sleep(if self.is_brief { Duration::ZERO } else { SETTLE });
        let before = server.cpu();
        thread::sleep(idle);
        (self.note)(self.rows.idle, (server.cpu() - before) * 100.0 / idle.as_secs_f64());
        let held = server.memory().unwrap_or_default().private - alone;
        (self.note)(self.rows.held, held / 1e3 / self.nodes as f64);
    }

    /// Delay until the nodes that see a node have its change.
    fn changes(&self, swarm: &mut Swarm) {
        let [p50, p99, received] = self.rows.change;
        swarm.send(if self.is_brief { "change 10 10" } else { "change 100 100" });
        let latency = swarm.latency();
        (self.note)(p50, latency.p50);
        (self.note)(p99, latency.p99);
        (self.note)(received, latency.count as f64 * 100.0 / latency.expected as f64);
        swarm.send(if self.is_brief { "renew 3 10" } else { "renew 20 500" });
        let latency = swarm.latency();
        assert_eq!(latency.count, latency.expected, "all nodes have the new keys");
        (self.note)(self.rows.renew, latency.p99);
    }

    /// Saves a policy with the same visibility and other ports: all nodes get new rules.
    fn rules(&self, tailnet: &Tailnet, swarm: &mut Swarm) {
        let text = if self.by_policy { policy(self.users, 8443) } else { open(8443) };
        let file = tailnet.coordinator.host.write("policy.json", &text);
        swarm.watch_rules();
        let begun = sys::clock::wall();
        tailnet.coordinator.command(&format!("policy set -f {file}"));
        let report = swarm.rules_report();
        assert_eq!(report.count, self.nodes, "all nodes have the rules");
        (self.note)(self.rows.rules, (report.p99 - begun.as_secs_f64()) * 1e3);
    }

    fn restart(&self, tailnet: &mut Tailnet, swarm: &mut Swarm) {
        let [time, reached, memory] = self.rows.again;
        swarm.send("again");
        assert_eq!(swarm.line(), "listening");
        tailnet.coordinator.kill();
        tailnet.coordinator.restart();
        let server = Processes::of(&tailnet.coordinator.host, tailnet.coordinator.pid());
        let watch = Watch::start(vec![server]);
        let joined = swarm.joined();
        (self.note)(time, joined.seconds);
        (self.note)(reached, joined.whole as f64);
        (self.note)(memory, watch.peak().unwrap_or_default().private / 1e6);
    }

    /// Users and tags with a key each, and the number of peers that the policy makes visible.
    fn groups(&self, tailnet: &Tailnet) -> Vec<Group> {
        let coordinator = &tailnet.coordinator;
        let file = coordinator.host.write("policy.json", &policy(self.users, 443));
        coordinator.command(&format!("policy set -f {file}"));
        let (servers, stores) = (self.nodes / SERVERS, self.nodes / STORES);
        let members = self.nodes - servers - stores;
        let key = |owner: &str| coordinator.auth_key_of(owner, "--reusable");
        let mut groups = vec![
            Group { auth_key: key("--tags tag:web"), count: servers, sees: members + stores },
            Group { auth_key: key("--tags tag:db"), count: stores, sees: servers },
        ];
        for number in 0..self.users {
            coordinator.command(&format!("users create user{number}"));
            let count = members / self.users + usize::from(number < members % self.users);
            // The rig has created the first user.
            let auth_key = key(&format!("--user {}", number + 2));
            groups.push(Group { auth_key, count, sees: servers + count - 1 });
        }
        groups
    }
}

fn open(port: u16) -> String {
    let rule = json!({ "action": "accept", "src": ["*"], "dst": [format!("*:22,{port}")] });
    json!({ "acls": [rule] }).to_string()
}

/// Users reach their own nodes and servers; servers reach stores. Each node has the port in a rule.
fn policy(users: usize, port: u16) -> String {
    let staff: Vec<String> = (0..users.min(10)).map(|number| format!("user{number}@")).collect();
    let accept =
        |from: &str, to: &[String]| json!({ "action": "accept", "src": [from], "dst": to });
    json!({
        "groups": { "group:staff": staff },
        "tagOwners": { "tag:web": ["group:staff"], "tag:db": ["group:staff"] },
        "acls": [
            accept("autogroup:member", &[format!("tag:web:80,{port}")]),
            accept("autogroup:member", &[format!("autogroup:self:22,{port}")]),
            accept("group:staff", &["tag:web:22".to_owned()]),
            accept("tag:web", &[format!("tag:db:5432,{port}")]),
        ],
    })
    .to_string()
}
