//! Clients of a network: their connections with Noise, their requests, their streams of maps, and
//! requests of the server to them.

pub(crate) mod data_paths;
mod frames;
pub(crate) mod machine;
pub(crate) mod map_stream;
pub(crate) mod pings;
pub(crate) mod router_health;
pub(crate) mod tka;
pub(crate) mod ts2021;
