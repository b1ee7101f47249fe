//! The messages of birthday probing between two linerate nodes (crate `mesh`), as bytes:
//!
//! ```text
//!   step (1)  number (4)  address (18)
//! ```

use std::net::SocketAddr;

use super::codec::{ENDPOINT, read_endpoint, write_endpoint};

/// A step of birthday probing. One node is behind a NAT that maps each destination to another port,
/// the other behind a NAT that accepts only packets from contacted ports. Sent only through relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BirthdayMessage {
    /// The step.
    pub step: BirthdayStep,
    /// The number of the attempt, chosen by the requesting node.
    pub number: u32,
    /// The public endpoint of the sender. The port of the requesting node is not used.
    pub at: SocketAddr,
}

/// The step of a [`BirthdayMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BirthdayStep {
    /// My port varies. Requests that the receiver probes ports of my address.
    Request,
    /// Accepts. The receiver opens sockets and sends from each to my endpoint.
    Accept,
    /// The sockets are open.
    Start,
}

impl BirthdayMessage {
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        text.push(match self.step {
            BirthdayStep::Request => 0,
            BirthdayStep::Accept => 1,
            BirthdayStep::Start => 2,
        });
        text.extend_from_slice(&self.number.to_be_bytes());
        text.extend_from_slice(&write_endpoint(self.at));
    }

    /// Bytes after the message are ignored: later versions may append fields.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (step, text) = text.split_first()?;
        let (number, text) = text.split_first_chunk()?;
        let at = read_endpoint(text.first_chunk::<ENDPOINT>()?);
        let step = match step {
            0 => BirthdayStep::Request,
            1 => BirthdayStep::Accept,
            2 => BirthdayStep::Start,
            _ => return None,
        };
        Some(Self { step, number: u32::from_be_bytes(*number), at })
    }
}
