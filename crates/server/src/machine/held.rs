//! Requests to register that are held until their registration is decided.
//!
//! One task looks at each change of the network which registrations still wait, and wakes the requests of
//! the others. So a change costs as much as there are registrations, and not as there are requests.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use coordinator::State;
use tokio::sync::oneshot;

use crate::{clock::now, network::Network};

/// The most requests that are held for one registration: a client has one, and its last connection may
/// have another.
const EACH: usize = 2;

/// The held requests by the number of their registration.
#[derive(Default)]
pub struct Held(Mutex<HashMap<String, VecDeque<oneshot::Sender<()>>>>);

/// A held request.
struct Holding<'a> {
    held: &'a Held,
    number: &'a str,
    decided: oneshot::Receiver<()>,
}

impl Held {
    /// Holds a request until the registration with this number is decided, and returns true. It returns
    /// false if newer requests take the place of this one.
    pub async fn hold(&self, network: &Network, number: &str) -> bool {
        let mut holding = self.begin(number);
        // It may have been decided since it was read.
        let waits = network.read(|state| state.is_registration_pending(number, now()));
        !waits || (&mut holding.decided).await.is_ok()
    }

    fn begin<'a>(&'a self, number: &'a str) -> Holding<'a> {
        let (sender, decided) = oneshot::channel();
        let mut all = self.lock();
        let of_number = all.entry(number.to_owned()).or_default();
        if of_number.len() >= EACH {
            of_number.pop_front();
        }
        of_number.push_back(sender);
        Holding { held: self, number, decided }
    }

    /// Wakes the requests of decided registrations until the network ends.
    pub async fn follow(&self, network: &Network) {
        let mut changed = network.changed();
        while changed.changed().await.is_ok() {
            network.read(|state| self.wake_decided(state));
            network.note_read();
        }
    }

    fn wake_decided(&self, state: &State) {
        let is_decided = |number: &String, _: &mut _| !state.is_registration_pending(number, now());
        for (_, held) in self.lock().extract_if(is_decided) {
            // The client may be gone.
            held.into_iter().for_each(|sender| _ = sender.send(()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<oneshot::Sender<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.decided.close();
        let mut all = self.held.lock();
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
    fn the_oldest_request_of_a_registration_makes_room_for_a_third() {
        let held = Held::default();
        let [mut first, mut second] = [held.begin("a"), held.begin("a")];
        let (mut other, mut third) = (held.begin("b"), held.begin("a"));
        let waits = |holding: &mut Holding<'_>| {
            holding.decided.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(!waits(&mut first) && waits(&mut second) && waits(&mut third) && waits(&mut other));
        drop((first, second, other));
        assert_eq!(held.lock().len(), 1);
        drop(third);
        assert!(held.lock().is_empty());
    }
}
