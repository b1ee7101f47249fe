//! The receiving half: `recvmmsg` into the slots of a batch.

use std::{
    fmt, io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, UNIX_EPOCH},
};

use nix::errno::Errno;
use packet::{Endpoint, Flood, RecvBatch, RecvMeta, UdpRecv, Waker};

use super::{
    Shared,
    flood_filter::Program,
    mmsg::{Calls, Messages, Received},
    refusal::is_transient,
    socket::Socket,
};
use crate::wake::Waited;

/// The receiving half of a [`super::UdpSocket`].
///
/// Without a socket it waits, and continues with the next one.
pub struct UdpReceiver<C = Messages> {
    shared: Arc<Shared>,
    pub(super) messages: C,
    /// Whether the last batch contained coalesced datagrams.
    coalesced: bool,
    /// The time at which the kernel received the last datagram, since the Unix epoch; zero if
    /// unknown.
    received_at: Duration,
    /// The filter that sheds a flood; `None` without a flood.
    filter: Option<Program>,
}

/// The longest wait during a flood.
const FLOOD_WAIT: Duration = Duration::from_secs(1);
/// Slots of one call while datagrams are coalesced. That is 512 KiB, which fits the cache and
/// delays the last ones only a little.
const COALESCED_SLOTS: usize = 8;
/// The number of transient errors that are ignored before the wake is checked again.
const MAX_TRANSIENT: usize = 16;

impl<C: Calls> UdpRecv for UdpReceiver<C> {
    fn recv(&mut self, batch: &mut RecvBatch, drain: bool, wait: bool) -> io::Result<()> {
        self.coalesced &= !drain;
        batch.clear();
        loop {
            let socket = self.shared.socket();
            if let Some(socket) = &socket {
                self.shared.apply_gro(socket, &self.messages);
                self.apply_filter(socket);
                self.receive(socket, batch, RecvBatch::SLOT)?;
                if !batch.is_empty() {
                    return Ok(());
                }
            }
            if !wait {
                return Ok(());
            }
            let fd = socket.as_ref().map(|socket| socket.as_fd());
            // The wake is also set after the socket was replaced. Then the batch is empty.
            if matches!(
                self.shared.wake.wait(fd, self.max_wait())?,
                Waited::Woken | Waited::TimedOut
            ) {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> Waker {
        self.shared.wake.waker()
    }

    fn max_wait(&self) -> Option<Duration> {
        self.filter.is_some().then_some(FLOOD_WAIT)
    }

    fn shed(&mut self, flood: Option<&Flood>) -> bool {
        self.filter = flood.map(Program::new);
        // Without a socket, the next one will get the filter.
        let set = self.shared.socket().is_none_or(|socket| self.set_filter(&socket));
        if !set {
            self.filter = None;
        }
        set
    }
}

impl UdpReceiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self::over(shared, Messages::new())
    }
}

impl<C: Calls> UdpReceiver<C> {
    pub(super) fn over(shared: Arc<Shared>, messages: C) -> Self {
        Self { shared, messages, coalesced: false, received_at: Duration::ZERO, filter: None }
    }

    /// Sets the filter again if the socket was replaced during a flood.
    fn apply_filter(&mut self, socket: &Socket) {
        if self.filter.is_some() && !socket.sheds() && !self.set_filter(socket) {
            self.filter = None;
        }
    }

    /// Returns whether the kernel accepted the filter.
    fn set_filter(&self, socket: &Socket) -> bool {
        socket.set_filter(self.filter.as_ref()).is_ok()
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
                    if count == asked && batch.shed() > 0 && socket.is_crowded() {
                        batch.note_lost(1);
                    }
                    // If fewer were received, the socket is empty, and the delay is in this
                    // process.
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

    /// Adds a filled slot to the batch, or counts it as dropped.
    fn accept(&mut self, socket: &Socket, batch: &mut RecvBatch, slot: usize) {
        let Received { len, is_whole, remote, ancillary } = self.messages.received(slot);
        if let Some(drops) = ancillary.drops {
            let new = socket.note_drops(drops);
            self.shared.overflow.fetch_add(new.lost.into(), Ordering::Relaxed);
            batch.note_lost(new.lost);
            batch.note_shed(new.shed);
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

/// Copies a datagram to an earlier slot, replacing a dropped one.
fn move_slot(batch: &mut RecvBatch, from: usize, to: usize, len: usize) {
    let mut slots = batch.slots_mut().skip(to);
    if let (Some(to_slot), Some(from_slot)) = (slots.next(), slots.nth(from - to - 1)) {
        to_slot[..len].copy_from_slice(&from_slot[..len]);
    }
}
