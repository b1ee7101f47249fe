//! What people have this node do to tailnet lock, and the one question at a time that the coordinator
//! is asked: a session keeps the latest alone.

use std::collections::VecDeque;

use serde_json::Value;
use tailnet::tka::{
    follow::{Known, Question},
    order::{By, Doing, Next, Order},
};

use super::super::{
    core::Agent,
    local_api::{Refusal, Reply},
};

/// Numbers of questions for orders; the follower's are below.
const OWN: u32 = 1 << 31;
/// The most orders at once.
const MOST: usize = 16;

/// What waits for the coordinator.
#[derive(Default)]
pub(super) struct Orders {
    is_connected: bool,
    last: u32,
    /// The number of the question that is asked.
    asked: Option<u32>,
    /// Those that are asked behind it.
    waiting: VecDeque<Question>,
    running: Vec<(u32, Doing, Reply<Value>)>,
}

impl Orders {
    /// Whether a question of this number is an order's.
    pub fn has(number: u32) -> bool {
        number & OWN != 0
    }

    /// A question that is to be asked: now, or behind another.
    pub fn ask(&mut self, question: Question) -> Option<Question> {
        if self.asked.is_some() {
            self.waiting.push_back(question);
            return None;
        }
        self.asked = Some(question.number);
        Some(question)
    }

    /// A question was answered. Which one is asked next.
    pub fn handle_answered(&mut self, number: u32) -> Option<Question> {
        self.asked.take_if(|asked| *asked == number)?;
        let next = self.waiting.pop_front()?;
        self.ask(next)
    }

    /// Why an order cannot begin now.
    fn refuses(&self, order: &Order) -> Option<&'static str> {
        let asks = !matches!(order, Order::Log(_) | Order::Wrap { .. });
        if asks && !self.is_connected {
            return Some("the coordinator is not connected");
        }
        let is_full = asks && self.running.len() >= MOST;
        is_full.then_some("the coordinator has not answered earlier orders yet: try again")
    }

    pub fn handle_connected(&mut self) {
        self.forget();
        self.is_connected = true;
    }

    pub fn handle_disconnected(&mut self) {
        self.forget();
        self.is_connected = false;
    }

    /// Nothing that was asked is answered any more.
    fn forget(&mut self) {
        self.asked = None;
        self.waiting.clear();
        for (_, _, reply) in self.running.drain(..) {
            let _ = reply.send(Err(Refusal::not_now(
                "the connection to the coordinator ended meanwhile: look whether it was done",
            )));
        }
    }
}

impl Agent {
    /// Begins what somebody wants done.
    pub fn begin_order(&mut self, order: Order, reply: Reply<Value>) {
        if let Some(why) = self.lock.orders.refuses(&order) {
            let _ = reply.send(Err(Refusal::not_now(why)));
            return;
        }
        let mut random = zeroize::Zeroizing::new([0; 32]);
        if getrandom::fill(&mut *random).is_err() {
            let _ = reply.send(Err(Refusal::failed("there is no randomness")));
            return;
        }
        let next = match self.lock.follower.known() {
            Known::Damaged => Err(Refusal::failed("what was kept of tailnet lock is damaged")),
            _ => order.begin(self.by(), &random).map_err(Refusal::failed),
        };
        self.go_on(next, reply);
    }

    /// The coordinator answered the question of an order, or did not.
    pub(super) fn handle_order_answer(&mut self, number: u32, answer: Result<&[u8], String>) {
        let running = &mut self.lock.orders.running;
        let Some(at) = running.iter().position(|(own, ..)| *own == number) else { return };
        let (_, doing, reply) = running.swap_remove(at);
        let next = answer
            .map_err(Refusal::failed)
            .and_then(|text| doing.handle_answer(self.by(), text).map_err(Refusal::failed));
        self.go_on(next, reply);
    }

    fn go_on(&mut self, next: Result<Next, Refusal>, reply: Reply<Value>) {
        match next {
            Ok(Next::Ask(path, body, doing)) => {
                let orders = &mut self.lock.orders;
                orders.last = orders.last.wrapping_add(1);
                let number = orders.last | OWN;
                orders.running.push((number, doing, reply));
                if let Some(question) = orders.ask(Question { number, path, body }) {
                    self.ask_coordinator(question);
                }
            }
            Ok(Next::Done(answer)) => drop(reply.send(Ok(answer))),
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    fn by(&self) -> By<'_> {
        By {
            own: &self.lock.own,
            known: self.lock.follower.known().authority(),
            asking: self.asking(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tailnet::{
        keys::NodePublic,
        tka::{NewKey, OwnKey, sync::Asking},
    };
    use tokio::sync::oneshot;

    use super::*;

    fn question(number: u32) -> Question {
        Question { number, path: "/", body: Vec::new() }
    }

    #[test]
    fn one_question_is_asked_at_a_time_and_the_others_in_their_order() {
        let mut orders = Orders::default();
        assert_eq!(orders.ask(question(1)), Some(question(1)));
        for number in [OWN | 1, 2] {
            assert_eq!(orders.ask(question(number)), None);
        }
        assert_eq!(orders.handle_answered(7), None, "it was not asked");
        assert_eq!(orders.handle_answered(1), Some(question(OWN | 1)));
        assert!(Orders::has(OWN | 1) && !Orders::has(2));
        assert_eq!(orders.handle_answered(OWN | 1), Some(question(2)));
        assert_eq!(orders.handle_answered(2), None);
        assert_eq!(orders.ask(question(3)), Some(question(3)));
    }

    #[test]
    fn an_order_is_refused_with_its_reason_and_one_that_asks_nothing_is_not() {
        let mut orders = Orders::default();
        let key = || OwnKey::new(&[1; 32]);
        let wrap = Order::Wrap { auth_key: String::from("tskey-auth-x").into(), by: key() };
        let asks = Order::Affected([1; 32]);
        assert_eq!([&Order::Log(1), &wrap].map(|order| orders.refuses(order)), [None; 2]);
        assert_eq!(orders.refuses(&asks), Some("the coordinator is not connected"));
        orders.handle_connected();
        assert_eq!(orders.refuses(&asks), None);
        for number in 0..MOST as u32 {
            let asking = Asking { version: 119, node_key: NodePublic([1; 32]) };
            let keys = vec![NewKey::new(key().id(), 1)];
            let order = Order::Init { keys, disablers: vec![[1; 32]] };
            let begun = order.begin(By { own: &key(), known: None, asking }, &[1; 32]);
            let Ok(Next::Ask(_, _, doing)) = begun else { panic!("a question, not {begun:?}") };
            orders.running.push((OWN | number, doing, oneshot::channel().0));
        }
        assert!(orders.refuses(&asks).is_some_and(|why| !why.contains("connected")));
        assert_eq!(orders.refuses(&wrap), None);
    }

    #[test]
    fn where_the_connection_ends_an_order_is_answered_and_the_next_one_is_asked_at_once() {
        let own = OwnKey::new(&[1; 32]);
        let asking = Asking { version: 119, node_key: NodePublic([1; 32]) };
        let order = Order::Init { keys: vec![NewKey::new(own.id(), 1)], disablers: vec![[1; 32]] };
        let begun = order.begin(By { own: &own, known: None, asking }, &[1; 32]);
        let Ok(Next::Ask(path, body, doing)) = begun else { panic!("a question, not {begun:?}") };
        let mut orders = Orders::default();
        orders.handle_connected();
        let (reply, mut answer) = oneshot::channel();
        orders.running.push((OWN | 1, doing, reply));
        assert!(orders.ask(Question { number: OWN | 1, path, body }).is_some());
        assert_eq!(orders.ask(question(2)), None);
        orders.handle_disconnected();
        assert!(answer.try_recv().unwrap().is_err() && orders.running.is_empty());
        orders.handle_connected();
        assert_eq!(orders.ask(question(3)), Some(question(3)));
        assert_eq!(orders.handle_answered(3), None, "what waited is forgotten");
    }
}
