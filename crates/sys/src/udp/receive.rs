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
    refusal::is_passing,
    socket::Socket,
};
use crate::wake::Waited;

/// The receiving half of a [`super::UdpSocket`].
///
/// It waits on while there is no socket, and goes on with another one as soon
/// as there is.
pub struct UdpReceiver<C = Messages> {
    shared: Arc<Shared>,
    pub(super) messages: C,
    /// Whether the last batch had coalesced datagrams.
    coalesced: bool,
    /// When the last datagram came to the kernel, since the Unix epoch, if that is known.
    came: Duration,
}

/// Slots of one call while datagrams come coalesced, 512 KiB: what stays in the
/// cache, and what the last of it does not wait long behind.
const COALESCED_SLOTS: usize = 8;
/// How many passing errors are taken before the wake is looked at again.
const MAX_PASSING: usize = 16;

impl<C: Calls> UdpRecv for UdpReceiver<C> {
    fn recv(&mut self, batch: &mut RecvBatch, drain: bool) -> io::Result<()> {
        self.coalesced &= !drain;
        batch.clear();
        loop {
            let socket = self.shared.socket();
            if let Some(socket) = &socket {
                self.shared.tell_gro(socket, &self.messages);
                self.receive(socket, batch, RecvBatch::SLOT)?;
                if !batch.is_empty() {
                    return Ok(());
                }
            }
            let fd = socket.as_ref().map(|socket| socket.as_fd());
            // Also set when the socket was replaced; the batch stays empty then.
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
        Self { shared, messages, coalesced: false, came: Duration::ZERO }
    }

    /// Takes what is there, without waiting. Of each slot, `room` bytes are used.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        batch: &mut RecvBatch,
        room: usize,
    ) -> io::Result<()> {
        for _ in 0..MAX_PASSING {
            let most = if self.coalesced { COALESCED_SLOTS } else { usize::MAX };
            let slots = batch.slots_mut().map(|slot| &mut slot[..room]).take(most);
            let asked = slots.len();
            match self.messages.receive(socket.as_fd(), slots) {
                Ok(count) => {
                    self.coalesced = false;
                    self.came = Duration::ZERO;
                    (0..count).for_each(|slot| self.accept(socket, batch, slot));
                    // Where fewer came the socket is empty, and it was us who were late.
                    if count == asked && !self.came.is_zero() {
                        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
                        batch.note_waited(now.saturating_sub(self.came));
                    }
                    return Ok(());
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) if is_passing(errno) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Makes one filled slot valid, or counts why not.
    fn accept(&mut self, socket: &Socket, batch: &mut RecvBatch, slot: usize) {
        let Received { len, is_whole, remote, beside } = self.messages.received(slot);
        if let Some(drops) = beside.drops {
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
        if let Some(came) = beside.came {
            self.came = came;
        }
        let endpoint = Endpoint { local: beside.local, ..Endpoint::new(remote) };
        self.coalesced |= beside.stride.is_some();
        let stride = beside.stride.unwrap_or(len);
        batch.commit(RecvMeta { len, stride, endpoint, ecn: beside.ecn });
    }
}

impl<C> fmt::Debug for UdpReceiver<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpReceiver").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// Copies a datagram into a slot before it, over one that was dropped.
fn move_slot(batch: &mut RecvBatch, from: usize, to: usize, len: usize) {
    let mut slots = batch.slots_mut().skip(to);
    if let (Some(to_slot), Some(from_slot)) = (slots.next(), slots.nth(from - to - 1)) {
        to_slot[..len].copy_from_slice(&from_slot[..len]);
    }
}
