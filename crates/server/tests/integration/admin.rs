//! Administration over the network: the API with its keys, the page with its sessions, and the page
//! in a real browser; and what machines ask.

mod api;
mod browser;
mod chromium;
mod machine;
mod networks;
mod page;
pub mod world;
