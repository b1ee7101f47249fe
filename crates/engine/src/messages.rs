//! Packets from peers that are for this program and not for the host, passed to another thread.
//!
//! ```text
//!   inbound -- filter --- accepted -------> IP side
//!                 |------ open protocol --> MessageReceiver, if it takes it
//!                 `------ refused, or not taken: counted, dropped
//! ```
//!
//! The filter finds them on its way for packets that are neither TCP nor UDP. The queue is bounded;
//! the data plane never waits for the reader.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use wg::{DropReason, Drops};

/// How many wait: the sender of one that is dropped has no answer, and asks again.
const MOST: usize = 64;

/// The data plane's end.
#[derive(Clone, Debug)]
pub struct MessageSender {
    takes: fn(&[u8]) -> bool,
    packets: SyncSender<Vec<u8>>,
}

/// The receiving end.
#[derive(Debug)]
pub struct MessageReceiver(Receiver<Vec<u8>>);

/// A channel for packets that `takes` says are worth reading. It bounds their length, too.
pub fn message_channel(takes: fn(&[u8]) -> bool) -> (MessageSender, MessageReceiver) {
    let (packets, receiver) = sync_channel(MOST);
    (MessageSender { takes, packets }, MessageReceiver(receiver))
}

impl MessageSender {
    /// Passes a packet on, or drops it.
    #[cold]
    pub(crate) fn forward(&self, packet: &[u8], drops: &Drops) {
        if !(self.takes)(packet) || self.packets.try_send(packet.to_vec()).is_err() {
            drops.count(DropReason::InMessage, 1);
        }
    }
}

impl MessageReceiver {
    /// Waits for the next packet, whose source is an allowed IP of its sender; `None` when the data
    /// plane has ended.
    pub fn recv(&self) -> Option<Vec<u8>> {
        self.0.recv().ok()
    }

    /// The next one, if there is one.
    pub fn try_recv(&self) -> Option<Vec<u8>> {
        self.0.try_recv().ok()
    }
}
