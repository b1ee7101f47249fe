//! Clients of a network: their connections with Noise, their requests, their streams of maps, and
//! requests of the server to them.

pub mod data_paths;
mod frames;
pub mod machine;
pub mod map_stream;
pub mod pings;
pub mod router_health;
pub mod tka;
pub mod ts2021;
