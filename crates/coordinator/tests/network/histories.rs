//! Two servers of a network. Its database loses versions and reuses their numbers. Either server may notice it late. A
//! client moves between the servers.

use std::{collections::BTreeMap, mem, time::Duration};

use coordinator::{
    PollResult, Session, State, Time,
    object::{NodeId, Stored},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::simulation::{Machine, World};

type Which = (&'static str, i64);
/// The objects, and the version that wrote each.
type Store = (BTreeMap<Which, Stored>, BTreeMap<Which, i64>);

/// A server, and the version up to which it has read.
struct Server {
    state: State,
    version: i64,
    epoch: i64,
}

struct Rig {
    /// Has the state of the server that writes at present.
    world: World,
    servers: Vec<Server>,
    /// The content of the database at each version of this epoch.
    history: Vec<Store>,
    epoch: i64,
    key: String,
    machines: Vec<Machine>,
    client: Machine,
    session: Option<(usize, Session)>,
}

impl Rig {
    fn new() -> Self {
        let mut world = World::new();
        let key = world.reusable();
        let mut client = Machine::new(200);
        assert_eq!(world.register(&mut client, &key), "");
        let objects: Vec<Stored> = world.store.values().cloned().collect();
        // Each epoch increments the mark.
        let servers = [1, 1000].map(|mark| {
            let settings = world.state.settings().clone();
            let state = State::load(settings, &objects, (world.version, mark), world.now).unwrap();
            Server { state, version: world.version, epoch: 0 }
        });
        let servers = servers.into();
        let history = vec![stored(&world); usize::try_from(world.version).unwrap() + 1];
        let (epoch, machines, session) = (0, Vec::new(), None);
        Self { world, servers, history, epoch, key, machines, client, session }
    }

    /// A server reads the database.
    fn catch_up(&mut self, at: usize) {
        let server = &mut self.servers[at];
        if server.epoch == self.epoch {
            server.state.apply(&self.world.since(server.version), self.world.now).unwrap();
        } else {
            let objects = self.world.store.values().cloned().collect();
            server.state.reconcile(objects, self.epoch, self.world.now).unwrap();
        }
        (server.version, server.epoch) = (self.world.version, self.epoch);
        server.state.publish(server.version, self.world.now);
    }

    /// A server writes.
    fn write(&mut self, at: usize, act: impl FnOnce(&mut Self)) {
        self.catch_up(at);
        mem::swap(&mut self.world.state, &mut self.servers[at].state);
        act(self);
        mem::swap(&mut self.world.state, &mut self.servers[at].state);
        self.servers[at].version = self.world.version;
        let versions = usize::try_from(self.world.version).unwrap() + 1;
        self.history.resize(versions, stored(&self.world));
    }

    /// A standby database without the last versions takes over.
    fn fail_over(&mut self, lost: usize) {
        let stored_rows = self.history.len().saturating_sub(lost).max(4);
        self.history.truncate(stored_rows);
        self.world.version = i64::try_from(self.history.len()).unwrap() - 1;
        (self.world.store, self.world.written) = self.history.last().unwrap().clone();
        self.epoch += 1;
    }

    /// The client's stream breaks, and resumes at this server.
    fn move_to(&mut self, at: usize) {
        let session = self.client.next_session("net");
        let server = &self.servers[at];
        if session.resumed_version(&server.state).is_some_and(|version| version > server.version) {
            self.catch_up(at);
        }
        self.session = Some((at, session));
        self.read();
    }

    /// The client reads all frames.
    fn read(&mut self) {
        let Some((at, session)) = &mut self.session else { return };
        let server = &self.servers[*at];
        loop {
            match session.poll(&server.state, self.world.now) {
                PollResult::Nothing => break,
                PollResult::Frame(frame) => {
                    self.client.take(&serde_json::from_str(&frame.text()).unwrap());
                }
                PollResult::End(_) => {
                    self.session = None;
                    return;
                }
            }
        }
        let fresh = fresh_peers(&server.state, &self.client, self.world.now);
        let own = &self.client.peers;
        assert!(*own == fresh, "the moved client has {own:#?}\nand a new one gets {fresh:#?}");
    }
}

fn stored(world: &World) -> Store {
    (world.store.clone(), world.written.clone())
}

/// The peers of a client that starts with a full map.
fn fresh_peers(state: &State, client: &Machine, now: Time) -> BTreeMap<i64, Value> {
    let mut new = Machine::new(200);
    match Session::new(client.id, client.key).poll(state, now) {
        PollResult::Frame(frame) => new.take(&serde_json::from_str(&frame.text()).unwrap()),
        other => panic!("{other:?}"),
    }
    new.peers
}

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Move(usize, usize),
    Delete(usize, usize),
    CatchUp(usize),
    FailOver(usize),
    MoveTo(usize),
    Read,
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let server = || 0..2_usize;
    let step = prop_oneof![
        2 => server().prop_map(Step::Join),
        2 => (server(), 0..9_usize).prop_map(|(at, which)| Step::Move(at, which)),
        2 => (server(), 0..9_usize).prop_map(|(at, which)| Step::Delete(at, which)),
        1 => server().prop_map(Step::CatchUp),
        2 => (0..6_usize).prop_map(Step::FailOver),
        3 => server().prop_map(Step::MoveTo),
        2 => Just(Step::Read),
        1 => Just(Step::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_moved_client_has_the_peers_of_its_server_after_the_database_lost_versions(steps in steps()) {
        let mut rig = Rig::new();
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Join(at) => rig.write(at, |rig| {
                    let mut machine = Machine::new(number);
                    assert_eq!(rig.world.register(&mut machine, &rig.key), "");
                    rig.world.send_update(&machine, json!({ "Endpoints": [format!("192.0.2.{number}:1")] }));
                    rig.machines.push(machine);
                }),
                Step::Move(at, which) => rig.write(at, |rig| {
                    if let Some(id) = there(rig, which) {
                        let endpoint = format!("192.0.2.7:{number}").parse().unwrap();
                        let request = coordinator::MapRequest {
                            endpoints: vec![endpoint],
                            ..Default::default()
                        };
                        rig.world.state.apply_map_request(id, &request, rig.world.now);
                        rig.world.commit();
                    }
                }),
                Step::Delete(at, which) => rig.write(at, |rig| {
                    if let Some(id) = there(rig, which) {
                        rig.world.state.delete_node(id).unwrap();
                        rig.world.commit();
                    }
                }),
                Step::CatchUp(at) => rig.catch_up(at),
                Step::FailOver(lost) => rig.fail_over(lost),
                Step::MoveTo(at) => rig.move_to(at),
                Step::Read => rig.read(),
                Step::Wait => rig.world.now = rig.world.now.after(Duration::from_secs(60)),
            }
        }
        for at in 0..2 {
            rig.catch_up(at);
        }
        rig.read();
        for at in 0..2 {
            rig.move_to(at);
        }
    }
}

/// A node of the writing server other than the client.
fn there(rig: &Rig, which: usize) -> Option<NodeId> {
    let nodes = rig.world.state.nodes().map(|view| view.node.id);
    let others: Vec<NodeId> = nodes.filter(|id| *id != rig.client.id).collect();
    others.get(which % others.len().max(1)).copied()
}
