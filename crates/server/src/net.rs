//! Addresses and URLs, limits of connections, requests to other servers, and STUN.

pub mod address;
pub mod connections;
pub mod fair_semaphore;
pub mod fetch;
pub mod own_address;
pub mod remote_url;
pub mod roots;
pub mod stun;
pub mod trusted_proxies;
