//! The engine's receiving half: packets that leave the stack.

use std::{io, sync::Arc};

use packet::{Batch, IpRecv, Waker};

use super::shared::{Locked, Shared};
use crate::time::Time;

/// Bytes after which a round ends. One super-packet fills most of a round, and the batch has space
/// for another one. The engine calls again at once only after a full batch. Otherwise it sends the
/// batch first, so waiting data stays in the connections, where nothing is dropped, and not in the
/// engine's queue.
const ROUND: usize = 48 * 1024;
/// The most bytes of answers in a round. A host that provokes many answers must not keep others
/// from sending.
const ANSWERS: usize = ROUND / 4;

/// Packets that leave the stack, for the engine to send.
pub struct StackRecv(Arc<Shared>);

impl StackRecv {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

impl IpRecv for StackRecv {
    fn recv(&mut self, batch: &mut Batch, wait: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        loop {
            let now = self.0.now();
            state.handle_timeouts(now);
            let before = batch.len();
            state.fill(batch, now);
            if batch.len() > before || !wait || std::mem::take(&mut state.schedule.woken) {
                state.schedule.woken = false;
                return Ok(());
            }
            if !state.schedule.wakers.is_empty() {
                // The woken tasks may have something to send. They must not wait for this thread.
                drop(state);
                state = self.0.lock();
                continue;
            }
            state = sleep(state, now);
        }
    }

    fn waker(&self) -> Waker {
        let shared = self.0.clone();
        Arc::new(move || shared.lock().schedule.woken = true)
    }
}

impl Drop for StackRecv {
    fn drop(&mut self) {
        self.0.lock().shut_down(false);
    }
}

fn sleep(mut state: Locked<'_>, now: Time) -> Locked<'_> {
    let due = state.due();
    state.schedule.sleeps = Some(due.unwrap_or(Time::NEVER));
    let mut state = state.wait(due.map(|due| due.since(now)));
    state.schedule.sleeps = None;
    state
}

impl super::state::State {
    /// Polls all sockets with something to send, in turn, until the round is full.
    fn fill(&mut self, batch: &mut Batch, now: Time) {
        let mut left = ROUND;
        while left > ROUND - ANSWERS
            && let Some(spare) = batch.spare()
        {
            let Some(sent) = self.poll_answer(spare) else { break };
            left = left.saturating_sub(sent.0);
            batch.commit(0, sent.0, sent.1);
        }
        loop {
            let schedule = self.schedule.ready.len() + self.datagrams.ready.len();
            if schedule == 0 {
                break;
            }
            if left == 0 {
                return;
            }
            if !self.datagrams.ready.is_empty() {
                let Some(spare) = batch.spare() else { return };
                if let Some((len, offload)) = self.poll_datagram(spare, now) {
                    left = left.saturating_sub(len);
                    batch.commit(0, len, offload);
                }
            }
            let Some(id) = self.schedule.ready.pop_front() else { continue };
            let Some(spare) = batch.spare() else {
                self.schedule.ready.push_front(id);
                return;
            };
            match self.poll_socket(id, now, spare) {
                Some((len, offload)) => {
                    left = left.saturating_sub(len);
                    batch.commit(0, len, offload);
                    self.schedule.ready.push_back(id);
                }
                None => {
                    let Some(socket) = self.sockets.get_mut(id) else { continue };
                    socket.queued = false;
                    self.update_timers(id);
                }
            }
        }
    }

    fn poll_answer(&mut self, to: &mut [u8]) -> Option<(usize, packet::Offload)> {
        let (bytes, offload) = self.next_answer()?;
        to[..bytes.len()].copy_from_slice(&bytes);
        Some((bytes.len(), offload))
    }
}
