//! Administration: the API, the web page, and the authentication of both.

pub mod api;
pub(crate) mod page;
pub(crate) mod policy_text;
pub(crate) mod sessions;
pub(crate) mod slow_hash;
pub(crate) mod state;
