//! Floor 5: the lives of a `linerate` process.
//!
//! ```text
//!   interface ──┐                          rights ─► files ─► threads ─► system calls
//!   (up)        ├─► life: Life::run ─► start │ bring up │ enter the sandbox │ serve │ take down
//!   proxy ──────┘                            `── control, metrics: who asks
//!
//!   guardian: a process beside it, for what takes rights at the end
//! ```
//!
//! [`interface`] and [`proxy`] are the two kinds of life; [`life`] is what they have in common, and
//! alone knows in which order rights are given up.
#![forbid(unsafe_code)]

mod capture;
mod conf_file;
mod control;
mod events;
mod guardian;
pub mod interface;
mod life;
mod log_error;
pub mod metrics;
mod offers;
pub mod proxy;
mod sandbox;
mod saved;
mod supervisor;
mod sweep;
mod up;

pub use conf_file::read_conf;
pub use guardian::Guard;
#[doc(hidden)]
pub use guardian::{Heard, rehearse};
pub use life::{LogStyle, Means};
pub use sweep::{Swept, sweep};
