//! A post-quantum secret, which a quantum computer cannot compute from recorded traffic: an
//! addition to WireGuard between peers that run linerate (docs/decisions/0016). Both sides agree on the secret by ML-KEM-768 inside a session, and mix it into later
//! handshakes like a preshared key.
//!
//! ```text
//!   device/post_quantum      handle_exchange_message        take_exchange
//!                                      |                          ^
//!                                 PeerExchange, one in each peer (shared)
//!                                      v                          |
//!   control/agreement        Agreement: Exchange (exchange), Secrets (secrets)
//!                                           |                     |
//!   cryptography             ML-KEM-768 (kem)                  the preshared key of handshakes
//!   the wire   (message)     ExchangeMessage: a request, a key or a ciphertext in parts, ...
//! ```

mod constants;
pub(crate) mod exchange;
pub(crate) mod kem;
pub(crate) mod message;
pub(crate) mod secrets;
mod shared;

pub(crate) use constants::UNREADABLE_RETRY_DELAY;
pub use message::ExchangeMessage;
pub(crate) use shared::PeerExchange;

/// Mode of the exchange of post-quantum secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostQuantum {
    /// No exchange, and requests are not answered.
    #[default]
    Off,
    /// With each peer that supports it, soon after the first data.
    On,
    /// With every peer, before any data. No data is sent to a peer without support.
    Require,
}

impl PostQuantum {
    pub const ALL: [Self; 3] = [Self::Off, Self::On, Self::Require];

    /// Returns the mode with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name))
    }

    /// The name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Require => "require",
        }
    }
}
