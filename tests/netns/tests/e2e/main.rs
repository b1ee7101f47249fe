//! End-to-end tests: real daemons, peers and coordinators on hosts in network namespaces.
//!
//! One program contains all tests, so that the libraries are linked once and the tests share the
//! machine.

#![forbid(unsafe_code)]

mod capture;
mod confined;
mod control;
mod doctor;
mod dscp;
mod ecn;
mod gateway;
mod interop;
mod ipv6_only;
mod kernel;
mod library;
mod lifecycle;
mod namespaces;
mod nat;
mod overlay;
mod overload;
mod path_mtu;
mod post_quantum;
mod proxy;
mod quick;
mod roaming;
mod secrets;
mod seeing;
mod server;
mod service;
mod soak;
mod tailnet;
mod traffic;
mod tutorials;
mod up;
