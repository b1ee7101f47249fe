//! What a tunnel carries and costs, measured on the rig of `linerate-netns`.
//!
//! Both ends of the tunnel and the programs that make the traffic share this machine's cores, so
//! a figure means something only beside another one of the same run.
//!
//! `bin/bench.rs` compares:
//!
//! ```text
//!   contender   what is measured: an implementation, one of its settings, or a build of linerate
//!   suite       a turn: a fresh pair of one contender, each test once, readings of each measure
//!   flood quic connections crowd pour swarm relayed
//!               the generators of UDP, QUIC, TCP connections, handshakes, proxied TCP, nodes of a network and
//!               datagrams through a relay; the bench runs itself inside the hosts for them
//!   link        an emulated link between the hosts, for delay and loss
//!   comparison  turns A B, B A, A B, ..., medians, ratios pair by pair
//!   claim       where the medians of a second run lie; `again` compares one with that
//!   ladder      one linerate with ever more of its techniques
//!   flame       where daemons spend their time during a test
//!   published   what the README's figures are made of
//!   tree        which commit is measured
//!   report      tables, JSON, a page of HTML, the README's figures
//! ```

#![forbid(unsafe_code)]

pub mod again;
pub mod claim;
pub mod comparison;
pub mod connections;
pub mod contender;
pub mod crowd;
pub mod filtered;
pub mod flame;
pub mod flood;
pub mod ladder;
pub mod leash;
pub mod link;
mod machine;
pub mod measure;
pub mod pour;
pub mod published;
pub mod quic;
pub mod readings;
pub mod relayed;
pub mod report;
pub mod suite;
pub mod swarm;
pub mod tree;
