//! What the data path and the control half hand each other of a peer's exchange.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::message::ExchangeMessage;

/// Messages that wait to be sent, or to be read by the control half. What finds no room is
/// repeated.
const MOST: usize = 8;

/// It is allocated only while messages wait.
#[derive(Debug, Default)]
pub(crate) struct PeerExchange(Mutex<Option<Box<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    to_send: Vec<ExchangeMessage>,
    heard: Vec<ExchangeMessage>,
}

impl PeerExchange {
    pub(super) fn send(&self, message: ExchangeMessage) {
        push(&mut self.lock().get_or_insert_default().to_send, message);
    }

    pub(super) fn hear(&self, message: ExchangeMessage) {
        push(&mut self.lock().get_or_insert_default().heard, message);
    }

    pub(super) fn take_to_send(&self) -> Vec<ExchangeMessage> {
        self.take(|waiting| mem::take(&mut waiting.to_send))
    }

    pub(super) fn take_heard(&self) -> Vec<ExchangeMessage> {
        self.take(|waiting| mem::take(&mut waiting.heard))
    }

    fn take(&self, of: fn(&mut Waiting) -> Vec<ExchangeMessage>) -> Vec<ExchangeMessage> {
        let mut guard = self.lock();
        let taken = guard.as_deref_mut().map(of).unwrap_or_default();
        guard.take_if(|waiting| waiting.to_send.is_empty() && waiting.heard.is_empty());
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(list: &mut Vec<ExchangeMessage>, message: ExchangeMessage) {
    if list.len() < MOST {
        list.push(message);
    }
}
