//! Tests of running servers through their interfaces for clients, administrators and other servers.
//! They are one program, so that the server's libraries are linked once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod admin;
mod import;
mod loopback;
mod mesh;
mod policy;
mod replicas;
mod upgrade;
