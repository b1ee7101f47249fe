//! What the simulator promises: links that do what they say, boxes as RFC 4787 has them, and
//! which pairs of boxes can be passed by hole punching.
#![allow(clippy::unwrap_used, missing_docs)]

mod behaviour;
mod links;
mod pairs;
mod properties;
mod support;
