//! HTTP of the server: listeners, the routing of requests, bodies, and upgrades.

pub mod arrival;
pub mod body;
pub mod listen;
pub mod metrics;
pub mod router;
pub mod upgrade;
pub mod web_socket;
