//! Registration requests that wait for a decision.
//!
//! One task checks at each change of the network which registrations still wait, and wakes the
//! requests of the others. The cost of a change therefore depends on the number of registrations,
//! not on the number of requests.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use coordinator::State;
use tokio::sync::oneshot;

use crate::{clock::now, network::NetworkState};

/// Maximum number of waiting requests for one registration: a client has one, and its previous
/// connection may have another.
const EACH: usize = 2;

/// Waiting requests, by the ID of their registration.
#[derive(Default)]
pub(super) struct WaitingRequests(Mutex<HashMap<String, VecDeque<oneshot::Sender<()>>>>);

/// A waiting request.
struct WaitingRequest<'a> {
    requests: &'a WaitingRequests,
    number: &'a str,
    decided: oneshot::Receiver<()>,
}

impl WaitingRequests {
    /// Waits until the registration with this ID is decided, and returns true. Returns false if
    /// newer requests replace this one.
    pub(super) async fn wait(&self, network: &NetworkState, number: &str) -> bool {
        let mut request = self.begin(number);
        // It may have been decided since it was read.
        let waits = network.read(|state| state.is_registration_pending(number, now()));
        !waits || (&mut request.decided).await.is_ok()
    }

    fn begin<'a>(&'a self, number: &'a str) -> WaitingRequest<'a> {
        let (sender, decided) = oneshot::channel();
        let mut all = self.lock();
        let of_number = all.entry(number.to_owned()).or_default();
        if of_number.len() >= EACH {
            of_number.pop_front();
        }
        of_number.push_back(sender);
        WaitingRequest { requests: self, number, decided }
    }

    /// Wakes the requests of decided registrations until the network ends.
    pub(super) async fn follow(&self, network: &NetworkState) {
        let mut changed = network.changed();
        while changed.changed().await.is_ok() {
            network.read(|state| self.wake_decided(state));
            network.note_read();
        }
    }

    fn wake_decided(&self, state: &State) {
        let is_decided = |number: &String, _: &mut _| !state.is_registration_pending(number, now());
        for (_, requests) in self.lock().extract_if(is_decided) {
            // The client may be gone.
            requests.into_iter().for_each(|sender| _ = sender.send(()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<oneshot::Sender<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.decided.close();
        let mut all = self.requests.lock();
        if let Some(of_number) = all.get_mut(self.number) {
            of_number.retain(|sender| !sender.is_closed());
            if of_number.is_empty() {
                all.remove(self.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_request_of_a_registration_ends_the_oldest() {
        let requests = WaitingRequests::default();
        let [mut first, mut second] = [requests.begin("a"), requests.begin("a")];
        let (mut other, mut third) = (requests.begin("b"), requests.begin("a"));
        let waits = |request: &mut WaitingRequest<'_>| {
            request.decided.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(!waits(&mut first) && waits(&mut second) && waits(&mut third) && waits(&mut other));
        drop((first, second, other));
        assert_eq!(requests.lock().len(), 1);
        drop(third);
        assert!(requests.lock().is_empty());
    }
}
