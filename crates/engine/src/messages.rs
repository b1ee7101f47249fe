//! Passes packets of open protocols from peers to a thread of this program, instead of the host.
//!
//! ```text
//!   inbound -- filter --- accepted --------> IP side
//!                 |------ open protocol ---> MessageReceiver, if `accepts` returns true
//!                 `------ refused or full: counted, dropped
//! ```
//!
//! The filter recognizes them among the packets that are neither TCP nor UDP. The queue is bounded.
//! The data plane never waits for the reader.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use wg::{DropReason, Drops};

/// Capacity. A sender without an answer repeats its request.
const CAPACITY: usize = 64;

/// The data plane's end of the channel.
#[derive(Clone, Debug)]
pub struct MessageSender {
    accepts: fn(&[u8]) -> bool,
    packets: SyncSender<Vec<u8>>,
}

/// The receiving end of the channel.
#[derive(Debug)]
pub struct MessageReceiver(Receiver<Vec<u8>>);

/// Creates a channel for the packets that `accepts` selects. It must also limit their length.
pub fn message_channel(accepts: fn(&[u8]) -> bool) -> (MessageSender, MessageReceiver) {
    let (packets, receiver) = sync_channel(CAPACITY);
    (MessageSender { accepts, packets }, MessageReceiver(receiver))
}

impl MessageSender {
    /// Sends a packet to the receiver, or drops it.
    #[cold]
    pub(crate) fn forward(&self, packet: &[u8], drops: &Drops) {
        if !(self.accepts)(packet) || self.packets.try_send(packet.to_vec()).is_err() {
            drops.count(DropReason::InMessage, 1);
        }
    }
}

impl MessageReceiver {
    /// Waits for the next packet. Its source is an allowed IP of its sender. Returns `None` after
    /// the data plane has ended.
    pub fn recv(&self) -> Option<Vec<u8>> {
        self.0.recv().ok()
    }

    /// Returns the next packet without waiting.
    pub fn try_recv(&self) -> Option<Vec<u8>> {
        self.0.try_recv().ok()
    }
}
