//! Floor 0: configuration files, requests and replies. Each format has one type, one parser and one
//! writer.
//!
//! ```text
//!  /etc/wireguard/wg0.conf ── conf::Conf::parse ──► Conf::change ──┐
//!                                                                  ├─► uapi::Change
//!  wg(8), over its socket ─── uapi::Request::parse ────────────────┘
//!
//!  uapi::DeviceState ──► uapi::write_state (wg show), conf::write (SaveConfig)
//!  uapi::Stats ────────► Stats::write ──► linerate show ──► Stats::parse
//! ```
#![forbid(unsafe_code)]

pub mod conf;
mod endpoint;
mod secret_text;
#[cfg(feature = "strategies")]
pub mod strategies;
pub mod target;
pub mod uapi;
pub mod value;

pub use endpoint::EndpointName;
pub use target::{Host, Target};
pub use value::ValueError;
