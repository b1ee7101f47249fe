//! Running servers, as their clients, administrators and other servers see them. One program, so that the
//! server's libraries are linked once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod admin;
mod import;
mod loopback;
mod mesh;
mod policy;
mod replicas;
mod upgrade;
