//! Commands of users for tailnet lock, and the queue of requests. A session stores only the latest
//! request, so one is sent at a time.

use std::collections::VecDeque;

use mesh::{
    tka_command::{CommandContext, CommandStep, PendingCommand, TkaCommand},
    tka_follower::SyncRequest,
};
use serde_json::Value;

use crate::agent::local_api::{ApiError, Reply};

/// This bit is set in the numbers of requests for commands; it is clear in those of the follower.
const COMMAND_BIT: u32 = 1 << 31;
/// The most commands at once.
const MAX_COMMANDS: usize = 16;

/// Commands and requests that wait for the coordinator.
#[derive(Default)]
pub(super) struct PendingCommands {
    is_connected: bool,
    last: u32,
    /// The number of the sent request.
    in_flight: Option<u32>,
    /// Requests that are sent afterwards.
    waiting: VecDeque<SyncRequest>,
    running: Vec<(u32, PendingCommand, Reply<Value>)>,
}

impl PendingCommands {
    /// Whether the request with this number belongs to a command.
    pub(super) fn owns(number: u32) -> bool {
        number & COMMAND_BIT != 0
    }

    /// Returns the request if it can be sent now, or queues it.
    pub(super) fn send_or_queue(&mut self, request: SyncRequest) -> Option<SyncRequest> {
        if self.in_flight.is_some() {
            self.waiting.push_back(request);
            return None;
        }
        self.in_flight = Some(request.number);
        Some(request)
    }

    /// A request was answered. Returns the next one to send.
    pub(super) fn handle_answered(&mut self, number: u32) -> Option<SyncRequest> {
        self.in_flight.take_if(|in_flight| *in_flight == number)?;
        let next = self.waiting.pop_front()?;
        self.send_or_queue(next)
    }

    /// The reason why a command cannot start now.
    fn refusal(&self, command: &TkaCommand) -> Option<&'static str> {
        let needs_coordinator = !matches!(command, TkaCommand::Log(_) | TkaCommand::Wrap { .. });
        if needs_coordinator && !self.is_connected {
            return Some("the coordinator is not connected");
        }
        let is_full = needs_coordinator && self.running.len() >= MAX_COMMANDS;
        is_full.then_some("too many commands are pending: try again later")
    }

    pub(super) fn handle_connected(&mut self) {
        self.fail_all();
        self.is_connected = true;
    }

    pub(super) fn handle_disconnected(&mut self) {
        self.fail_all();
        self.is_connected = false;
    }

    /// Fails all commands, because their responses cannot arrive.
    fn fail_all(&mut self) {
        self.in_flight = None;
        self.waiting.clear();
        for (_, _, reply) in self.running.drain(..) {
            let _ = reply.send(Err(ApiError::not_now(
                "the connection to the coordinator ended: check whether the command succeeded",
            )));
        }
    }

    /// Starts a command of a user. Returns the request to send. `context` is `None` if the stored
    /// state is damaged.
    pub(super) fn begin(
        &mut self,
        command: TkaCommand,
        reply: Reply<Value>,
        context: Option<CommandContext<'_>>,
    ) -> Option<SyncRequest> {
        if let Some(why) = self.refusal(&command) {
            let _ = reply.send(Err(ApiError::not_now(why)));
            return None;
        }
        let mut random = zeroize::Zeroizing::new([0; 32]);
        if getrandom::fill(&mut *random).is_err() {
            let _ = reply.send(Err(ApiError::failed("no randomness available")));
            return None;
        }
        let next = match context {
            Some(context) => command.begin(context, &random).map_err(ApiError::failed),
            None => Err(ApiError::failed("the stored state of tailnet lock is damaged")),
        };
        self.proceed(next, reply)
    }

    /// Handles the response to a request of a command, or its absence. Returns the request to send.
    pub(super) fn handle_response(
        &mut self,
        number: u32,
        answer: Result<&[u8], String>,
        context: CommandContext<'_>,
    ) -> Option<SyncRequest> {
        let at = self.running.iter().position(|(own, ..)| *own == number)?;
        let (_, pending, reply) = self.running.swap_remove(at);
        let next = answer
            .map_err(ApiError::failed)
            .and_then(|text| pending.handle_answer(context, text).map_err(ApiError::failed));
        self.proceed(next, reply)
    }

    fn proceed(
        &mut self,
        next: Result<CommandStep, ApiError>,
        reply: Reply<Value>,
    ) -> Option<SyncRequest> {
        let answer = match next {
            Ok(CommandStep::Request(path, body, pending)) => {
                self.last = self.last.wrapping_add(1);
                let number = self.last | COMMAND_BIT;
                self.running.push((number, pending, reply));
                return self.send_or_queue(SyncRequest { number, path, body });
            }
            Ok(CommandStep::Done(answer)) => Ok(answer),
            Err(refusal) => Err(refusal),
        };
        let _ = reply.send(answer);
        None
    }
}

#[cfg(test)]
mod tests {
    use tailnet::{
        keys::NodePublic,
        tka::{NewKey, TkaKey, sync_requests::Requester},
    };
    use tokio::sync::oneshot;

    use super::*;

    fn request(number: u32) -> SyncRequest {
        SyncRequest { number, path: "/", body: Vec::new() }
    }

    #[test]
    fn one_request_is_in_flight_and_the_others_follow_in_order() {
        let mut commands = PendingCommands::default();
        assert_eq!(commands.send_or_queue(request(1)), Some(request(1)));
        for number in [COMMAND_BIT | 1, 2] {
            assert_eq!(commands.send_or_queue(request(number)), None);
        }
        assert_eq!(commands.handle_answered(7), None, "it was not sent");
        assert_eq!(commands.handle_answered(1), Some(request(COMMAND_BIT | 1)));
        assert!(PendingCommands::owns(COMMAND_BIT | 1) && !PendingCommands::owns(2));
        assert_eq!(commands.handle_answered(COMMAND_BIT | 1), Some(request(2)));
        assert_eq!(commands.handle_answered(2), None);
        assert_eq!(commands.send_or_queue(request(3)), Some(request(3)));
    }

    #[test]
    fn command_without_connection_is_refused_unless_it_is_local() {
        let mut commands = PendingCommands::default();
        let key = || TkaKey::new(&[1; 32]);
        let wrap = TkaCommand::Wrap { auth_key: String::from("tskey-auth-x").into(), by: key() };
        let needs_coordinator = TkaCommand::Affected([1; 32]);
        assert_eq!(
            [&TkaCommand::Log(1), &wrap].map(|command| commands.refusal(command)),
            [None; 2]
        );
        assert_eq!(commands.refusal(&needs_coordinator), Some("the coordinator is not connected"));
        commands.handle_connected();
        assert_eq!(commands.refusal(&needs_coordinator), None);
        for number in 0..MAX_COMMANDS as u32 {
            let asking = Requester { version: 119, node_key: NodePublic([1; 32]) };
            let keys = vec![NewKey::new(key().id(), 1)];
            let command = TkaCommand::Init { keys, disablement_hashes: vec![[1; 32]] };
            let begun = command
                .begin(CommandContext { own: &key(), known: None, requester: asking }, &[1; 32]);
            let Ok(CommandStep::Request(_, _, pending)) = begun else {
                panic!("a request, not {begun:?}")
            };
            commands.running.push((COMMAND_BIT | number, pending, oneshot::channel().0));
        }
        assert!(commands.refusal(&needs_coordinator).is_some_and(|why| !why.contains("connected")));
        assert_eq!(commands.refusal(&wrap), None);
    }

    #[test]
    fn lost_connection_fails_commands_and_the_next_request_is_sent_at_once() {
        let own = TkaKey::new(&[1; 32]);
        let asking = Requester { version: 119, node_key: NodePublic([1; 32]) };
        let command = TkaCommand::Init {
            keys: vec![NewKey::new(own.id(), 1)],
            disablement_hashes: vec![[1; 32]],
        };
        let begun =
            command.begin(CommandContext { own: &own, known: None, requester: asking }, &[1; 32]);
        let Ok(CommandStep::Request(path, body, pending)) = begun else {
            panic!("a request, not {begun:?}")
        };
        let mut commands = PendingCommands::default();
        commands.handle_connected();
        let (reply, mut answer) = oneshot::channel();
        commands.running.push((COMMAND_BIT | 1, pending, reply));
        assert!(
            commands.send_or_queue(SyncRequest { number: COMMAND_BIT | 1, path, body }).is_some()
        );
        assert_eq!(commands.send_or_queue(request(2)), None);
        commands.handle_disconnected();
        assert!(answer.try_recv().unwrap().is_err() && commands.running.is_empty());
        commands.handle_connected();
        assert_eq!(commands.send_or_queue(request(3)), Some(request(3)));
        assert_eq!(commands.handle_answered(3), None, "what waited is forgotten");
    }
}
