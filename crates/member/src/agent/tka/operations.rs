//! Operations of users on tailnet lock, and the queue of requests. A session stores only the latest
//! request, so one is sent at a time.

use std::collections::VecDeque;

use serde_json::Value;
use tailnet::tka::{
    command::{CommandContext, CommandStep, PendingCommand, TkaCommand},
    follow::{LocalAuthority, SyncRequest},
};

use super::super::{
    core::Agent,
    local_api::{ApiError, Reply},
};

/// This bit is set in the numbers of requests for operations; it is clear in those of the follower.
const OPERATION_BIT: u32 = 1 << 31;
/// The most operations at once.
const MAX_OPERATIONS: usize = 16;

/// Operations and requests that wait for the coordinator.
#[derive(Default)]
pub(super) struct Operations {
    is_connected: bool,
    last: u32,
    /// The number of the sent request.
    in_flight: Option<u32>,
    /// Requests that are sent afterwards.
    waiting: VecDeque<SyncRequest>,
    running: Vec<(u32, PendingCommand, Reply<Value>)>,
}

impl Operations {
    /// Whether the request with this number belongs to an operation.
    pub fn owns(number: u32) -> bool {
        number & OPERATION_BIT != 0
    }

    /// Returns the request if it can be sent now, or queues it.
    pub fn send_or_queue(&mut self, question: SyncRequest) -> Option<SyncRequest> {
        if self.in_flight.is_some() {
            self.waiting.push_back(question);
            return None;
        }
        self.in_flight = Some(question.number);
        Some(question)
    }

    /// A request was answered. Returns the next one to send.
    pub fn handle_answered(&mut self, number: u32) -> Option<SyncRequest> {
        self.in_flight.take_if(|in_flight| *in_flight == number)?;
        let next = self.waiting.pop_front()?;
        self.send_or_queue(next)
    }

    /// The reason why an operation cannot start now.
    fn refusal(&self, order: &TkaCommand) -> Option<&'static str> {
        let needs_coordinator = !matches!(order, TkaCommand::Log(_) | TkaCommand::Wrap { .. });
        if needs_coordinator && !self.is_connected {
            return Some("the coordinator is not connected");
        }
        let is_full = needs_coordinator && self.running.len() >= MAX_OPERATIONS;
        is_full.then_some("too many operations are pending: try again later")
    }

    pub fn handle_connected(&mut self) {
        self.fail_all();
        self.is_connected = true;
    }

    pub fn handle_disconnected(&mut self) {
        self.fail_all();
        self.is_connected = false;
    }

    /// Fails all operations, because their responses cannot arrive.
    fn fail_all(&mut self) {
        self.in_flight = None;
        self.waiting.clear();
        for (_, _, reply) in self.running.drain(..) {
            let _ = reply.send(Err(ApiError::not_now(
                "the connection to the coordinator ended: check whether the operation succeeded",
            )));
        }
    }
}

impl Agent {
    /// Starts an operation of a user.
    pub fn begin_operation(&mut self, order: TkaCommand, reply: Reply<Value>) {
        if let Some(why) = self.tka.operations.refusal(&order) {
            let _ = reply.send(Err(ApiError::not_now(why)));
            return;
        }
        let mut random = zeroize::Zeroizing::new([0; 32]);
        if getrandom::fill(&mut *random).is_err() {
            let _ = reply.send(Err(ApiError::failed("no randomness available")));
            return;
        }
        let next = match self.tka.follower.local_authority() {
            LocalAuthority::Damaged => {
                Err(ApiError::failed("the stored state of tailnet lock is damaged"))
            }
            _ => order.begin(self.signer(), &random).map_err(ApiError::failed),
        };
        self.continue_operation(next, reply);
    }

    /// Handles the response to a request of an operation, or its absence.
    pub(super) fn handle_operation_response(&mut self, number: u32, answer: Result<&[u8], String>) {
        let running = &mut self.tka.operations.running;
        let Some(at) = running.iter().position(|(own, ..)| *own == number) else { return };
        let (_, doing, reply) = running.swap_remove(at);
        let next = answer
            .map_err(ApiError::failed)
            .and_then(|text| doing.handle_answer(self.signer(), text).map_err(ApiError::failed));
        self.continue_operation(next, reply);
    }

    fn continue_operation(&mut self, next: Result<CommandStep, ApiError>, reply: Reply<Value>) {
        match next {
            Ok(CommandStep::Request(path, body, doing)) => {
                let operations = &mut self.tka.operations;
                operations.last = operations.last.wrapping_add(1);
                let number = operations.last | OPERATION_BIT;
                operations.running.push((number, doing, reply));
                if let Some(question) = operations.send_or_queue(SyncRequest { number, path, body })
                {
                    self.request_tka(question);
                }
            }
            Ok(CommandStep::Done(answer)) => drop(reply.send(Ok(answer))),
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    fn signer(&self) -> CommandContext<'_> {
        CommandContext {
            own: &self.tka.own,
            known: self.tka.follower.local_authority().authority(),
            requester: self.requester(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tailnet::{
        keys::NodePublic,
        tka::{NewKey, TkaKey, sync::Requester},
    };
    use tokio::sync::oneshot;

    use super::*;

    fn question(number: u32) -> SyncRequest {
        SyncRequest { number, path: "/", body: Vec::new() }
    }

    #[test]
    fn one_request_is_in_flight_and_the_others_follow_in_order() {
        let mut operations = Operations::default();
        assert_eq!(operations.send_or_queue(question(1)), Some(question(1)));
        for number in [OPERATION_BIT | 1, 2] {
            assert_eq!(operations.send_or_queue(question(number)), None);
        }
        assert_eq!(operations.handle_answered(7), None, "it was not asked");
        assert_eq!(operations.handle_answered(1), Some(question(OPERATION_BIT | 1)));
        assert!(Operations::owns(OPERATION_BIT | 1) && !Operations::owns(2));
        assert_eq!(operations.handle_answered(OPERATION_BIT | 1), Some(question(2)));
        assert_eq!(operations.handle_answered(2), None);
        assert_eq!(operations.send_or_queue(question(3)), Some(question(3)));
    }

    #[test]
    fn operation_without_connection_is_refused_unless_it_is_local() {
        let mut operations = Operations::default();
        let key = || TkaKey::new(&[1; 32]);
        let wrap = TkaCommand::Wrap { auth_key: String::from("tskey-auth-x").into(), by: key() };
        let needs_coordinator = TkaCommand::Affected([1; 32]);
        assert_eq!([&TkaCommand::Log(1), &wrap].map(|order| operations.refusal(order)), [None; 2]);
        assert_eq!(
            operations.refusal(&needs_coordinator),
            Some("the coordinator is not connected")
        );
        operations.handle_connected();
        assert_eq!(operations.refusal(&needs_coordinator), None);
        for number in 0..MAX_OPERATIONS as u32 {
            let asking = Requester { version: 119, node_key: NodePublic([1; 32]) };
            let keys = vec![NewKey::new(key().id(), 1)];
            let order = TkaCommand::Init { keys, disablement_hashes: vec![[1; 32]] };
            let begun = order
                .begin(CommandContext { own: &key(), known: None, requester: asking }, &[1; 32]);
            let Ok(CommandStep::Request(_, _, doing)) = begun else {
                panic!("a question, not {begun:?}")
            };
            operations.running.push((OPERATION_BIT | number, doing, oneshot::channel().0));
        }
        assert!(
            operations.refusal(&needs_coordinator).is_some_and(|why| !why.contains("connected"))
        );
        assert_eq!(operations.refusal(&wrap), None);
    }

    #[test]
    fn lost_connection_fails_operations_and_the_next_request_is_sent_at_once() {
        let own = TkaKey::new(&[1; 32]);
        let asking = Requester { version: 119, node_key: NodePublic([1; 32]) };
        let order = TkaCommand::Init {
            keys: vec![NewKey::new(own.id(), 1)],
            disablement_hashes: vec![[1; 32]],
        };
        let begun =
            order.begin(CommandContext { own: &own, known: None, requester: asking }, &[1; 32]);
        let Ok(CommandStep::Request(path, body, doing)) = begun else {
            panic!("a question, not {begun:?}")
        };
        let mut operations = Operations::default();
        operations.handle_connected();
        let (reply, mut answer) = oneshot::channel();
        operations.running.push((OPERATION_BIT | 1, doing, reply));
        assert!(
            operations
                .send_or_queue(SyncRequest { number: OPERATION_BIT | 1, path, body })
                .is_some()
        );
        assert_eq!(operations.send_or_queue(question(2)), None);
        operations.handle_disconnected();
        assert!(answer.try_recv().unwrap().is_err() && operations.running.is_empty());
        operations.handle_connected();
        assert_eq!(operations.send_or_queue(question(3)), Some(question(3)));
        assert_eq!(operations.handle_answered(3), None, "what waited is forgotten");
    }
}
