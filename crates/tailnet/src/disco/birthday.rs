//! What two linerates say by their relay to meet by chance ([`crate::paths`]), as bytes:
//!
//! ```text
//!   step (1)  number (4)  address (18)
//! ```

use std::net::SocketAddr;

use super::codec::{ENDPOINT, read_endpoint, write_endpoint};

/// A step of two nodes that meet by chance: one behind a box that gives each destination another
/// port, the other behind one that lets in only ports that were called. Goes through relays alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BirthdayMessage {
    /// Which.
    pub step: BirthdayStep,
    /// What the first one chose for all of them.
    pub number: u32,
    /// Where others see the sender; of the one whose port varies, the IP address alone matters.
    pub at: SocketAddr,
}

/// What a [`BirthdayMessage`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BirthdayStep {
    /// My port varies: will you call ports of my address?
    Request,
    /// I shall, when you have opened as many as you can to mine.
    Accept,
    /// They are open.
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

    /// What is longer is of a later version, and passed over.
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
