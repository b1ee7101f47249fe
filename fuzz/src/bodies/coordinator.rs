//! Requests of clients to a coordinator, inside Noise, and the answers.

use coordinator::{
    MapRequest, NewKey, PollResult, RegisterCommand, RegisterRequest, RegisterResponse, Session,
    Settings, State, Time, object::User, secret,
};
use serde_json::Value;
use tailnet::keys::MachinePublic;

use super::steps;

/// A fixed clock.
const NOW: Time = Time(1_800_000_000_000);
/// The auth key in requests: `secret::write` of these bytes.
const KEY: [u8; 38] = [1; 38];

/// Machines register, update their state and follow the map; each request is a line. The stored
/// state must be bounded and loadable, and every frame and answer must be JSON.
pub fn coordinator_requests(data: &[u8]) {
    let mut state = State::new(Settings::default());
    let user = User { name: "a".into(), ..User::default() };
    let user = state.create_user(user, NOW).expect("no other user has the name").id;
    let new = NewKey { user: Some(user), reusable: true, ..NewKey::default() };
    state.create_key(new, &secret::write(&KEY), NOW).expect("the user is there");
    let mut lines = data.split(|byte| *byte == b'\n');
    let program = lines.next().unwrap_or_default();
    let mut sessions: Vec<Session> = Vec::new();
    steps(program, 24, |step, _| {
        let machine = MachinePublic([1 + step % 3; 32]);
        let line = lines.next().unwrap_or_default();
        match step / 3 % 3 {
            0 => register(&mut state, machine, line),
            1 => map_request(&mut state, machine, line, &mut sessions),
            _ => sessions.iter_mut().for_each(|session| follow(&state, session)),
        }
        state.publish(1, NOW);
    });
    let stored_rows = state.take_writes();
    for stored in &stored_rows {
        let length = stored.body.as_ref().map_or(0, String::len);
        assert!(length < 2 << 20, "the stored state of a node is too long: {length}");
    }
    State::load(Settings::default(), &stored_rows, (1, 0), NOW)
        .expect("the stored state can be loaded");
}

fn register(state: &mut State, machine: MachinePublic, line: &[u8]) {
    let Ok(request) = RegisterRequest::read(line) else { return };
    let (number, url) = ("0123456789abcdef", "https://a/register/");
    let query = RegisterCommand { machine, request: &request, number, url, from: None };
    let (RegisterResponse::Immediate(text)
    | RegisterResponse::Refused(text)
    | RegisterResponse::Deferred(text)) = state.register(query, NOW);
    let answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
    assert!(answer["Error"].is_string());
}

fn map_request(
    state: &mut State,
    machine: MachinePublic,
    line: &[u8],
    sessions: &mut Vec<Session>,
) {
    let Ok(request) = MapRequest::read(line) else { return };
    let Some(id) = state.find_machine_node(&machine, &request.node_key) else {
        Session::refusal_frame(request.node_key);
        return;
    };
    state.apply_map_request(id, &request, NOW);
    if request.stream {
        state.connect(id, NOW);
        sessions.push(Session::new(id, request.node_key));
    }
}

fn follow(state: &State, session: &mut Session) {
    if let PollResult::Frame(frame) | PollResult::End(Some(frame)) = session.poll(state, NOW) {
        let read: Value = serde_json::from_str(&frame.text()).expect("a frame is JSON");
        assert!(read.is_object());
    }
}
