//! Performance of a tunnel, measured on the rig of `linerate-netns`.
//!
//! Both ends of the tunnel and the traffic programs share this machine's cores, so figures
//! are only comparable within one run.
//!
//! `bin/bench.rs` compares:
//!
//! ```text
//!   contender   an implementation, one of its settings, or a build of linerate
//!   suite       a turn: a fresh pair of one contender, each test once, readings of each measure
//!   flood quic connections crowd proxy_streams swarm relay_load
//!               the generators of UDP, QUIC, TCP connections, handshakes, proxied TCP, nodes of a network and
//!               datagrams through a relay; the bench runs itself inside the hosts for them
//!   link        an emulated link between the hosts, for delay and loss
//!   comparison  turns A B, B A, A B, ..., medians, ratios pair by pair
//!   claim       the interval of a second run's median; `claim_check` compares two runs
//!   ladder      one linerate with one technique more on each rung
//!   flame       flame graphs of the daemons during a test
//!   published   the rows of the figures in README.md and docs/figures.md
//!   tree        the commit that is measured
//!   report      tables, JSON, a page of HTML, the published figures
//! ```

#![forbid(unsafe_code)]

pub mod claim;
pub mod claim_check;
pub mod comparison;
pub mod connections;
pub mod contender;
pub mod crowd;
pub mod filtered;
pub mod flame;
pub mod flood;
pub mod ladder;
pub mod lifetime;
pub mod link;
mod machine;
pub mod measure;
pub mod proxy_streams;
pub mod published;
pub mod quic;
pub mod readings;
pub mod relay_load;
pub mod report;
pub mod suite;
pub mod swarm;
pub mod tree;
