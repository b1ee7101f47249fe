//! Addresses and URLs, limits of connections, requests to other servers, and STUN.

pub(crate) mod address;
pub(crate) mod connections;
pub(crate) mod fair_semaphore;
pub(crate) mod fetch;
pub(crate) mod own_address;
pub(crate) mod remote_url;
pub(crate) mod roots;
pub(crate) mod stun;
pub(crate) mod trusted_proxies;
