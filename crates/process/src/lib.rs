//! Floor 5: `linerate` processes, from start to end.
//!
//! ```text
//!   interface ──┐                   file access ─► privileges ─► threads ─► system calls
//!   (up)        ├─► lifecycle: Lifecycle::run ─► start │ bring up │ enter the sandbox │ serve │ take down
//!   proxy ──────┘                            `── control, metrics: answer requests
//!
//!   member: a node of a tailnet, with its agent and its steward
//!   guardian: a second process with the privileges to take the interface down
//!   syslog: a process that forwards the log of a peer in the background
//!   endpoints, resolver: names of endpoints, resolved again by a process that may query name servers
//! ```
//!
//! [`interface`] and [`proxy`] are the two kinds of process. [`lifecycle`] is their common part,
//! which defines the order in which privileges are dropped.
#![forbid(unsafe_code)]

mod caller;
mod capture;
mod child;
mod children;
mod closing;
mod conf_file;
mod endpoints;
mod events;
mod framing;
mod guardian;
pub mod interface;
mod interface_extras;
mod leftovers;
mod lifecycle;
mod log_error;
pub mod member;
pub mod metrics;
pub mod proxy;
mod resolver;
mod sandbox;
mod supervisor;
mod syslog;
mod uapi_socket;
mod up;
mod wg_quick;

pub use caller::{connect_to_guardian, read_reports, report, serve_background};
pub use child::Child;
pub use conf_file::read_conf;
#[doc(hidden)]
pub use guardian::{Rehearsal, rehearse};
pub use leftovers::{LeftoversResult, undo_leftovers};
pub use lifecycle::{LogStyle, Resources};
pub use syslog::forward_to;
pub use up::Source;
pub use wg_quick::runs_under_wg_quick;
