//! Messages of a peer's exchange between the data path and the control half.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::message::ExchangeMessage;

/// Maximum number of messages that wait to be sent, or to be read by the control half. Others are
/// dropped, and retransmitted later.
const MAX_WAITING: usize = 8;

/// The queues, allocated only while messages wait.
#[derive(Debug, Default)]
pub(crate) struct PeerExchange(Mutex<Option<Box<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    outgoing: Vec<ExchangeMessage>,
    received: Vec<ExchangeMessage>,
}

impl PeerExchange {
    pub(crate) fn send(&self, message: ExchangeMessage) {
        push(&mut self.lock().get_or_insert_default().outgoing, message);
    }

    pub(crate) fn push_received(&self, message: ExchangeMessage) {
        push(&mut self.lock().get_or_insert_default().received, message);
    }

    pub(crate) fn take_outgoing(&self) -> Vec<ExchangeMessage> {
        self.take(|waiting| mem::take(&mut waiting.outgoing))
    }

    pub(crate) fn take_received(&self) -> Vec<ExchangeMessage> {
        self.take(|waiting| mem::take(&mut waiting.received))
    }

    fn take(&self, of: fn(&mut Waiting) -> Vec<ExchangeMessage>) -> Vec<ExchangeMessage> {
        let mut guard = self.lock();
        let taken = guard.as_deref_mut().map(of).unwrap_or_default();
        guard.take_if(|waiting| waiting.outgoing.is_empty() && waiting.received.is_empty());
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(list: &mut Vec<ExchangeMessage>, message: ExchangeMessage) {
    if list.len() < MAX_WAITING {
        list.push(message);
    }
}
