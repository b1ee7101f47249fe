//! Administration over the network: the API with its keys, the page with its sessions and in a real
//! browser, requests of machines, and logins at a provider.

mod api;
mod browser;
mod chromium;
mod headscale;
mod machine;
mod networks;
mod oidc;
mod page;
pub(crate) mod world;
