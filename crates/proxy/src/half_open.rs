//! Limits the connections that are being made at the same time, fairly among clients.
//!
//! A client that dials many dead addresses uses only its own share of the slots. A slot that becomes
//! free goes to the client with the fewest slots.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// All slots. Each is a socket that retransmits a SYN.
const SLOTS: usize = 512;
/// The maximum number of slots of one client, so that free ones remain for others.
const SHARE: usize = SLOTS / 4;

/// The client that dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// A client of a TCP or UDP listener.
    Ip(IpAddr),
    /// A user of a Unix socket.
    User(u32),
}

/// All slots.
#[derive(Clone, Debug, Default)]
pub(super) struct HalfOpen(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    taken: usize,
    clients: HashMap<Client, Share>,
    /// The number of the last wait; the numbers give the order of waits.
    turn: u64,
}

#[derive(Debug, Default)]
struct Share {
    taken: usize,
    /// Dials that wait, in order, each with the number of its wait.
    waiting: std::collections::VecDeque<(u64, oneshot::Sender<Slot>)>,
}

/// A slot. It is released when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: HalfOpen,
    client: Client,
}

impl HalfOpen {
    /// Waits for a slot.
    pub(crate) async fn slot(&self, client: Client) -> Slot {
        let receiver = {
            let mut slots = self.lock();
            let share = slots.clients.entry(client).or_default();
            if share.taken < SHARE && slots.taken < SLOTS {
                slots.take(client);
                return Slot { slots: self.clone(), client };
            }
            let (sender, receiver) = oneshot::channel();
            slots.turn += 1;
            let turn = slots.turn;
            slots.clients.entry(client).or_default().waiting.push_back((turn, sender));
            receiver
        };
        receiver.await.expect("a waiting client is dropped with its receiver only")
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free slots to waiting dials.
    fn grant_free_slots(&self) {
        loop {
            let (sender, client) = {
                let mut slots = self.lock();
                let Some(client) = slots.next() else { return };
                let share = slots.clients.entry(client).or_default();
                let Some((_, sender)) = share.waiting.pop_front() else { return };
                slots.take(client);
                (sender, client)
            };
            // If the dial was cancelled, the slot is dropped here, outside of the lock. That calls
            // `grant_free_slots` again.
            let _ = sender.send(Slot { slots: self.clone(), client });
        }
    }
}

impl Slots {
    fn take(&mut self, client: Client) {
        self.taken += 1;
        self.clients.entry(client).or_default().taken += 1;
    }

    fn release(&mut self, client: Client) {
        self.taken -= 1;
        if let Some(share) = self.clients.get_mut(&client) {
            share.taken -= 1;
            if share.taken == 0 && share.waiting.is_empty() {
                self.clients.remove(&client);
            }
        }
    }

    /// Of the waiting clients that may have another slot: the one with the fewest slots, then the one
    /// that has waited longest.
    fn next(&mut self) -> Option<Client> {
        if self.taken >= SLOTS {
            return None;
        }
        for share in self.clients.values_mut() {
            share.waiting.retain(|(_, sender)| !sender.is_closed());
        }
        let waiting = self.clients.iter().filter(|(_, share)| share.taken < SHARE);
        let turns = waiting.filter_map(|(client, share)| {
            share.waiting.front().map(|(turn, _)| (share.taken, *turn, *client))
        });
        turns.min_by_key(|&(taken, turn, _)| (taken, turn)).map(|(_, _, client)| client)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().release(self.client);
        self.slots.grant_free_slots();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn taken(half_open: &HalfOpen, client: u32, count: usize) -> Vec<Slot> {
        let take = |_| poll(pin!(half_open.slot(Client::User(client)))).expect("it is free");
        (0..count).map(take).collect()
    }

    #[test]
    fn one_client_cannot_use_the_slots_of_another() {
        let half_open = HalfOpen::default();
        let hog = taken(&half_open, 1, SHARE);
        let mut more = pin!(half_open.slot(Client::User(1)));
        assert!(poll(more.as_mut()).is_none());
        let other = taken(&half_open, 2, SHARE);
        drop(other);
        assert!(poll(more.as_mut()).is_none(), "another's slot is not the hog's");
        drop(hog.into_iter().next());
        assert!(poll(more.as_mut()).is_some());
    }

    #[test]
    fn free_slot_goes_to_the_client_with_the_fewest_slots() {
        let half_open = HalfOpen::default();
        let mut hogs: Vec<_> = (1..=3).map(|hog| taken(&half_open, hog, SHARE)).collect();
        let _most = taken(&half_open, 4, SHARE - 1);
        let _one = taken(&half_open, 5, 1);
        let mut greedy = pin!(half_open.slot(Client::User(4)));
        let mut modest = pin!(half_open.slot(Client::User(5)));
        assert!(poll(greedy.as_mut()).is_none() && poll(modest.as_mut()).is_none());
        hogs[0].pop();
        let got = poll(modest.as_mut());
        assert!(got.is_some() && poll(greedy.as_mut()).is_none());
        hogs[0].pop();
        assert!(poll(greedy.as_mut()).is_some());
    }

    #[test]
    fn cancelled_wait_uses_no_slot() {
        let half_open = HalfOpen::default();
        let mut hog = taken(&half_open, 1, SHARE);
        {
            let mut gone = pin!(half_open.slot(Client::User(1)));
            assert!(poll(gone.as_mut()).is_none());
        }
        let mut next = pin!(half_open.slot(Client::User(1)));
        assert!(poll(next.as_mut()).is_none());
        hog.pop();
        assert!(poll(next.as_mut()).is_some());
        drop(hog);
        assert!(half_open.lock().clients.is_empty() && half_open.lock().taken == 0);
    }
}
