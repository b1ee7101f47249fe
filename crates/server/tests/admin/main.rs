//! Administration over the network: the API with its keys, the page with its sessions, and the page
//! in a real browser.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod api;
mod browser;
mod chromium;
mod page;
mod world;
