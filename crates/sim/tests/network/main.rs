//! Properties of the simulator: the effects of links, boxes as in RFC 4787, and pairs of boxes that
//! hole punching traverses.
#![allow(clippy::unwrap_used, missing_docs)]

mod behaviour;
mod links;
mod pairs;
mod properties;
mod support;
