//! Messages inside the tunnel (TSMP). Pings are answered here, through the same data plane as all
//! packets, so that an answer proves that data arrives.
//!
//! ```text
//!   tunnel ──► ping ──────────────────────────► pong ──► tunnel
//!   tunnel ──► pong, if it was requested ─────► agent
//!   agent ───► ping ──────────────────────────► tunnel
//! ```

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{MessageReceiver, OwnPackets};
use ipc::{ToAgent, TunnelPing};
use tailnet::tsmp::{self, Message, Token, Tsmp};

use super::LineSender;

/// The most pending pings of the agent.
const MAX_PINGS: usize = 64;

/// The pings of this node. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pings {
    packets: OwnPackets,
    pending: Arc<Mutex<VecDeque<Token>>>,
}

impl Pings {
    pub(super) fn new(packets: OwnPackets) -> Self {
        Self { packets, pending: Arc::default() }
    }

    /// Sends a ping of the agent.
    pub(super) fn send(&self, TunnelPing { from, to, token }: TunnelPing) {
        let Some(packet) = tsmp::ping(from, to, token) else { return };
        let mut pending = self.pending();
        if pending.len() >= MAX_PINGS {
            pending.pop_front();
        }
        pending.push_back(token);
        drop(pending);
        // A lost ping times out.
        self.packets.push(packet);
    }

    /// Whether a pong answers a pending ping, which is then removed.
    fn answers(&self, token: Token) -> bool {
        let mut pending = self.pending();
        let at = pending.iter().position(|one| *one == token);
        at.and_then(|at| pending.remove(at)).is_some()
    }

    fn pending(&self) -> MutexGuard<'_, VecDeque<Token>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers pings, and forwards pongs to the agent, until the data plane has ended.
pub(super) fn answer(messages: &MessageReceiver, pings: &Pings, line: &LineSender) {
    while let Some(packet) = messages.recv() {
        let Some(Tsmp { from, to, message }) = tsmp::read(&packet) else { continue };
        match message {
            Message::Ping(token) => {
                tsmp::pong(to, from, token).map(|pong| pings.packets.push(pong));
            }
            Message::Pong(token) if pings.answers(token) => {
                // The next agent sends its own pings.
                let _ = line.send(&ToAgent::TunnelPong(TunnelPing { from, to, token }));
            }
            Message::Refusal(refusal) => {
                tracing::debug!(%from, ?refusal, "a connection is refused");
            }
            Message::Pong(_) | Message::Key => {}
        }
    }
}

/// Whether a packet is a message.
pub(super) fn is_message(packet: &[u8]) -> bool {
    tsmp::read(packet).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pong_counts_once_and_only_for_a_recent_ping() {
        let pings = Pings::default();
        let address = |byte| [100, 64, 0, byte].into();
        let ask = |number: u64| {
            let (from, to) = (address(1), address(2));
            pings.send(TunnelPing { from, to, token: number.to_be_bytes() });
        };
        (0..=MAX_PINGS as u64).for_each(ask);
        let answers = |number: u64| pings.answers(number.to_be_bytes());
        assert!(!answers(0), "it was evicted");
        assert!(answers(1) && !answers(1) && answers(MAX_PINGS as u64));
        assert!(!answers(u64::MAX), "it was not sent");
    }
}
