//! The receiving half: `recvmmsg` into the slots of a batch.

use std::{
    fmt, io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, UNIX_EPOCH},
};

use nix::errno::Errno;
use packet::{Endpoint, RecvBatch, RecvMeta, UdpRecv, Waker};

use super::{
    Shared,
    mmsg::{Calls, Messages, Received},
    refusal::is_transient,
    socket::Socket,
};
use crate::wake::Waited;

/// The receiving half of a [`super::UdpSocket`].
///
/// It waits while there is no socket, and continues with the next one.
pub struct UdpReceiver<C = Messages> {
    shared: Arc<Shared>,
    pub(super) messages: C,
    /// Whether the last batch had coalesced datagrams.
    coalesced: bool,
    /// When the kernel received the last datagram, since the Unix epoch; zero if unknown.
    received_at: Duration,
}

/// Slots of one call while datagrams are coalesced. That is 512 KiB, which fits the cache and does
/// not delay the last ones for long.
const COALESCED_SLOTS: usize = 8;
/// How many transient errors are ignored before the wake is checked again.
const MAX_TRANSIENT: usize = 16;

impl<C: Calls> UdpRecv for UdpReceiver<C> {
    fn recv(&mut self, batch: &mut RecvBatch, drain: bool) -> io::Result<()> {
        self.coalesced &= !drain;
        batch.clear();
        loop {
            let socket = self.shared.socket();
            if let Some(socket) = &socket {
                self.shared.apply_gro(socket, &self.messages);
                self.receive(socket, batch, RecvBatch::SLOT)?;
                if !batch.is_empty() {
                    return Ok(());
                }
            }
            let fd = socket.as_ref().map(|socket| socket.as_fd());
            // It is also set when the socket was replaced; then the batch is empty.
            if self.shared.wake.wait(fd)? == Waited::Woken {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> Waker {
        self.shared.wake.waker()
    }
}

impl UdpReceiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self::over(shared, Messages::new())
    }
}

impl<C: Calls> UdpReceiver<C> {
    pub(super) fn over(shared: Arc<Shared>, messages: C) -> Self {
        Self { shared, messages, coalesced: false, received_at: Duration::ZERO }
    }

    /// Receives without waiting, into the first `room` bytes of each slot.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        batch: &mut RecvBatch,
        room: usize,
    ) -> io::Result<()> {
        for _ in 0..MAX_TRANSIENT {
            let most = if self.coalesced { COALESCED_SLOTS } else { usize::MAX };
            let slots = batch.slots_mut().map(|slot| &mut slot[..room]).take(most);
            let asked = slots.len();
            match self.messages.receive(socket.as_fd(), slots) {
                Ok(count) => {
                    self.coalesced = false;
                    self.received_at = Duration::ZERO;
                    (0..count).for_each(|slot| self.accept(socket, batch, slot));
                    // If fewer were received, the socket is empty now, and the delay was ours.
                    if count == asked && !self.received_at.is_zero() {
                        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
                        batch.note_waited(now.saturating_sub(self.received_at));
                    }
                    return Ok(());
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) if is_transient(errno) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Adds one filled slot to the batch, or counts why not.
    fn accept(&mut self, socket: &Socket, batch: &mut RecvBatch, slot: usize) {
        let Received { len, is_whole, remote, ancillary } = self.messages.received(slot);
        if let Some(drops) = ancillary.drops {
            let new = socket.note_drops(drops);
            self.shared.overflow.fetch_add(new.into(), Ordering::Relaxed);
            batch.note_lost(new);
        }
        let Some(remote) = remote.filter(|_| is_whole) else {
            self.shared.truncated.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let to = batch.len();
        if to != slot {
            move_slot(batch, slot, to, len);
        }
        if let Some(time) = ancillary.received_at {
            self.received_at = time;
        }
        let endpoint = Endpoint { local: ancillary.local, ..Endpoint::new(remote) };
        self.coalesced |= ancillary.stride.is_some();
        let stride = ancillary.stride.unwrap_or(len);
        batch.commit(RecvMeta { len, stride, endpoint, ecn: ancillary.ecn });
    }
}

impl<C> fmt::Debug for UdpReceiver<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpReceiver").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// Copies a datagram to an earlier slot, over a dropped one.
fn move_slot(batch: &mut RecvBatch, from: usize, to: usize, len: usize) {
    let mut slots = batch.slots_mut().skip(to);
    if let (Some(to_slot), Some(from_slot)) = (slots.next(), slots.nth(from - to - 1)) {
        to_slot[..len].copy_from_slice(&from_slot[..len]);
    }
}
