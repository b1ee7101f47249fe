//! Floor 2: changes to this machine for a peer. The functions take the name or index of an
//! interface and values, never a configuration file or a running peer.
//!
//! ```text
//!   routes ── rules ──┐
//!   dns               ├── recorded first ──► undo_log ──► undone, also by the next process
//!   packet_filter     │
//!   router: settings ─┘
//!
//!   settings          kernel settings that a tunnel uses if it may write them
//!   ipv6              whether an interface can have IPv6 addresses
//!   hooks             the user's commands
//!   interface_lock    one process at a time brings an interface up or down
//!   sockets           the paths of the control sockets
//! ```
#![forbid(unsafe_code)]

pub mod dns;
pub mod hooks;
mod interface_lock;
mod ipv6;
mod lost_changes;
mod names;
mod nft;
mod packet_filter;
mod records;
mod resolve;
pub mod router;
pub mod routes;
pub mod rules;
mod scopes;
mod settings;
pub mod sockets;
mod undo_log;

pub use interface_lock::{HookRunner, InterfaceLock, ensure_outside_hooks};
pub use ipv6::{IPV6_MTU, NoIpv6};
pub use lost_changes::{LostChange, lost_changes};
pub use names::read_names;
pub use nft::dropping_chains;
pub use packet_filter::PacketFilter;
pub use records::{guardian_socket, rescue_file};
pub use resolve::resolve;
pub use scopes::resolve_scopes;
pub use undo_log::UndoLog;
