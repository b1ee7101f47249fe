//! A secret that a quantum computer does not compute from what was recorded: an addition to
//! WireGuard between linerates (docs/decisions/0016), all of which is in this folder. Both sides
//! agree on it by ML-KEM-768 inside a session, and it is mixed into the handshakes that follow, as
//! a preshared key is.
//!
//! ```text
//!   data path  (data_path)   Device::handle_exchange_message      Device::take_exchange
//!                                      |                          ^
//!                                 PeerExchange, one in each peer (shared)
//!                                      v                          |
//!   control    (timers)      Agreement: Exchange (exchange), Secrets (secrets)
//!                                           |                     |
//!   cryptography             ML-KEM-768 (kem)                  the preshared key of handshakes
//!   the wire   (message)     ExchangeMessage: a question, a key or a ciphertext in parts, ...
//! ```

mod constants;
mod data_path;
mod exchange;
mod kem;
mod message;
mod secrets;
mod shared;
mod timers;

pub(crate) use constants::UNREADABLE_AFTER;
pub use message::ExchangeMessage;
pub(crate) use shared::PeerExchange;
pub(crate) use timers::{Agreement, Step, Tools};

/// Whether a secret is agreed with peers against quantum computers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostQuantum {
    /// Never, and who asks is not answered.
    #[default]
    Off,
    /// With each peer that supports it, soon after data passes.
    On,
    /// With every peer, before any data passes. A peer that does not support it is sent none.
    Require,
}

impl PostQuantum {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::On, Self::Require];

    /// The one with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name))
    }

    /// The word for it in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Require => "require",
        }
    }
}
