//! Measures the cost of a policy: joins of nodes, and a saved policy, until every stream has read its frames. `cargo run --release -p linerate-coordinator --example policy_cost -- [NODES]`

#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::{env, error::Error, time::Instant};

use coordinator::{
    MapRequest, NewKey, PollResult, RegisterCommand, RegisterRequest, Session, Settings, State,
    Time,
    object::{NodeId, User},
    secret,
};
use policy::Policy;
use serde_json::json;
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};

const NOW: Time = Time(1_800_000_000_000);

/// A policy like those of many offices, with roles and services.
fn text(port: u16) -> String {
    json!({
        "groups": { "group:dev": ["user1@", "user2@", "user3@"], "group:ops": ["user4@"] },
        "tagOwners": { "tag:web": ["group:ops"], "tag:db": ["group:ops"], "tag:ci": ["group:dev"] },
        "autoApprovers": { "routes": { "10.0.0.0/8": ["group:ops"] } },
        "acls": [
            { "action": "accept", "src": ["autogroup:member"], "dst": ["tag:web:80,443"] },
            { "action": "accept", "src": ["group:dev"], "dst": ["tag:ci:*", "tag:web:22"] },
            { "action": "accept", "src": ["group:ops"], "dst": ["*:*"] },
            { "action": "accept", "src": ["tag:web"], "dst": [format!("tag:db:{port}")] },
            { "action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:*"] },
        ],
        "ssh": [{ "action": "accept", "src": ["group:ops"], "dst": ["tag:web"], "users": ["root"] }],
    })
    .to_string()
}

struct Network {
    state: State,
    keys: Vec<String>,
    sessions: Vec<Session>,
    joined: u32,
}

impl Network {
    fn new() -> Result<Self, Box<dyn Error>> {
        let mut state = State::new(Settings::default());
        let mut keys = Vec::new();
        for number in 0..12_u8 {
            let user = match number {
                0..8 => {
                    let user = User { name: format!("user{number}"), ..User::default() };
                    Some(state.create_user(user, NOW)?.id)
                }
                _ => None,
            };
            let tag = ["tag:web", "tag:db", "tag:ci", "tag:web"][usize::from(number % 4)];
            let tags = if user.is_none() { vec![tag.to_owned()] } else { Vec::new() };
            let text = secret::write(&[number; 38]);
            state.create_key(
                NewKey { user, tags, reusable: true, ..NewKey::default() },
                &text,
                NOW,
            )?;
            keys.push(text);
        }
        state.take_writes();
        state.publish(1, NOW);
        Ok(Self { state, keys, sessions: Vec::new(), joined: 0 })
    }

    fn join(&mut self) -> Result<(), Box<dyn Error>> {
        let number = self.joined;
        self.joined += 1;
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        let (machine, key) = (MachinePublic(bytes), NodePublic(bytes));
        let request = json!({
            "Version": 131, "NodeKey": key, "Hostinfo": { "Hostname": format!("host-{number}") },
            "Auth": { "AuthKey": self.keys[number as usize % self.keys.len()] },
        });
        let request = RegisterRequest::read(request.to_string().as_bytes())?;
        self.state.register(
            RegisterCommand { machine, request: &request, number: "x", url: "", from: None },
            NOW,
        );
        self.commit();
        let id = self.state.find_machine_node(&machine, &key).unwrap_or(NodeId(0));
        let frames = json!({
            "Version": 131, "NodeKey": key, "DiscoKey": DiscoPublic(bytes), "OmitPeers": true,
            "Endpoints": ["192.0.2.1:41641"],
        });
        self.state.apply_map_request(id, &MapRequest::read(frames.to_string().as_bytes())?, NOW);
        self.state.connect(id, NOW);
        self.commit();
        self.sessions.push(Session::new(id, key));
        Ok(())
    }

    fn commit(&mut self) {
        self.state.take_writes();
        self.state.publish(1, NOW);
    }

    /// Polls all streams. Returns the number of frames and of bytes.
    fn read(&mut self) -> (usize, usize) {
        let frames =
            self.sessions.iter_mut().filter_map(|session| match session.poll(&self.state, NOW) {
                PollResult::Frame(frame) => Some(frame.text().len()),
                PollResult::Nothing | PollResult::End(_) => None,
            });
        frames.fold((0, 0), |(frames, bytes), more| (frames + 1, bytes + more))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let nodes: u32 = env::args().nth(1).map_or(Ok(2000), |text| text.parse())?;
    for with_policy in [false, true] {
        let mut network = Network::new()?;
        if with_policy {
            let text = text(5432);
            let policy = Policy::parse(&text).map_err(|refusal| refusal.to_string())?;
            network
                .state
                .save_policy(&text, &policy, NOW)
                .map_err(|refusal| refusal.to_string())?;
            network.commit();
        }
        let begin = Instant::now();
        for _ in 0..nodes {
            network.join()?;
        }
        println!("policy {with_policy}: {nodes} joins, {:?} each", begin.elapsed() / nodes);
        let begin = Instant::now();
        let first = network.read();
        println!("  first maps: {:?}, {} MiB", begin.elapsed(), first.1 >> 20);
        for _ in 0..3 {
            let begin = Instant::now();
            network.join()?;
            let joined = begin.elapsed();
            let (frames, bytes) = network.read();
            println!(
                "  one more: {joined:?}, until told {:?}: {frames} frames, {bytes} bytes",
                begin.elapsed()
            );
        }
        let text = text(5433);
        let policy = Policy::parse(&text).map_err(|refusal| refusal.to_string())?;
        let begin = Instant::now();
        let review = network
            .state
            .save_policy(&text, &policy, NOW)
            .map_err(|refusal| refusal.to_string())?;
        network.commit();
        let saved = begin.elapsed();
        let (frames, bytes) = network.read();
        println!(
            "  saved in {saved:?}, until told {:?}: {frames} frames, {bytes} bytes",
            begin.elapsed()
        );
        let begin = Instant::now();
        let found = review.after.difference(&review.before, 1000);
        println!(
            "  difference in {:?}: {} lines and {} more",
            begin.elapsed(),
            found.lines.len(),
            found.left_off
        );
    }
    Ok(())
}
