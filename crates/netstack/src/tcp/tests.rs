//! Scenarios on virtual time: two connections and a link between them.

mod closing;
mod forgery;
mod loss;
mod opening;
mod paths;
mod windows;
mod world;
