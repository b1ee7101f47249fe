//! Floor 0: the texts that a peer is told and tells, each parsed once into a type.
//!
//! ```text
//!  /etc/wireguard/wg0.conf ── conf::Conf::parse ──► Conf::change ──┐
//!                                                                  ├─► uapi::Change
//!  wg(8), over its socket ─── uapi::Request::parse ────────────────┘
//!
//!  uapi::DeviceState ──► uapi::write_state (wg show), conf::write (SaveConfig)
//! ```
#![forbid(unsafe_code)]

pub mod conf;
mod secret_text;
#[cfg(feature = "strategies")]
pub mod strategies;
pub mod target;
pub mod uapi;
pub mod value;

pub use target::{Host, Target};
pub use value::ValueError;
