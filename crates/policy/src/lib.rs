//! Access control of a network: compiles Tailscale's policy from its text to each node's filter.
//!
//! ```text
//!   text ── hujson ──► values with lines ── read ──► Policy, with all names defined
//!   Policy + Nodes ── resolve, compile ──► Compiled: edges, each from a set of nodes to a set
//!   Compiled ──► filter(node), peers(node), routes(node, router), ssh(node), attributes(node)
//! ```

#![forbid(unsafe_code)]

mod alias;
mod approve;
mod attributes;
mod changes;
mod checks;
mod compile;
mod difference;
mod filter;
mod hujson;
mod mentions;
mod model;
mod nodes;
mod read;
mod refusal;
mod resolve;
mod set;
mod ssh;

pub use changes::ChangedNodes;
pub use compile::Compiled;
pub use difference::{Difference, Line};
pub use filter::to_json;
pub use hujson::read_json;
pub use model::Policy;
pub use nodes::{Node, Nodes, Role, User};
pub use refusal::{Fault, PortsFault, Reason, Refusal, TestFault};
pub use set::NodeSet;
pub use ssh::{SshAction, SshCheck, SshPrincipal, SshRule};
