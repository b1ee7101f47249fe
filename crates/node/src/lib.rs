//! Floor 3: one running peer.
//!
//! What it is told comes as one of two texts, each parsed once into the same
//! change of the device:
//!
//! ```text
//!  /etc/wireguard/wg0.conf ── conf::Conf::parse ──► Conf::change ──┐
//!                                                                  ├─► uapi::Change
//!  wg(8), over its socket ─── uapi::Request::parse ────────────────┘
//!
//!  uapi::DeviceState ──► uapi::write_state (wg show), conf::write (SaveConfig)
//! ```
//!
//! [`metrics`] tells counters to programs. [`Node`] plugs `sys` and `engine` together; [`daemon`] is the process around
//! it, with the socket of [`server`] and, for `linerate up`, what wg-quick does;
//! [`proxy`] is the one without an interface on this machine. [`doctor`] looks at the
//! host around them.
#![forbid(unsafe_code)]

mod capture;
pub mod conf;
pub mod daemon;
pub mod doctor;
pub mod metrics;
mod node;
pub mod proxy;
mod sandbox;
mod secret_text;
pub mod server;
mod socket_file;
#[cfg(test)]
mod strategies;
mod supervisor;
pub mod uapi;
mod up;
mod value;
mod whole_file;

pub use node::{ApplyError, Node};
pub use up::{Guard, Swept, outside_hooks, resolve, sweep};
#[doc(hidden)]
pub use up::{Heard, rehearse};
pub use value::ValueError;
