//! Scenarios on virtual time: two connections and a link between them.

mod bottleneck;
mod closing;
mod congestion;
mod each;
mod forgery;
mod keepalive;
mod loss;
mod opening;
mod paths;
mod tails;
mod windows;
mod world;
