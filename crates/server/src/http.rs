//! HTTP of the server: listeners, the routing of requests, bodies, and upgrades.

pub(crate) mod arrival;
pub(crate) mod body;
pub(crate) mod listen;
pub(crate) mod metrics;
pub(crate) mod router;
pub(crate) mod upgrade;
pub(crate) mod web_socket;
