//! Administration: the API, the web page, and the authentication of both.

pub mod api;
pub mod page;
pub mod sessions;
pub mod slow_hash;
