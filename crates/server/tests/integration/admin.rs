//! Administration over the network: the API with its keys, the page with its sessions, and the page
//! in a real browser; what machines ask, and logins by a provider.

mod api;
mod browser;
mod chromium;
mod headscale;
mod machine;
mod networks;
mod oidc;
mod page;
pub mod world;
