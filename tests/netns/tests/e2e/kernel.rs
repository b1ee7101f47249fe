//! linerate with the WireGuard of Linux itself: Debian's kernel as a guest under QEMU.
//!
//! ```text
//!   left                            guest                             right
//!   wg0  10.9.0.1  . . tunnel . .   wg0  10.9.0.2
//!   eth0 10.1.0.1 ------ tap -----  eth0 10.1.0.2
//!                                   eth1 10.4.0.254 ------ tap ------ eth0 10.4.0.2
//! ```
//!
//! Each also has the IPv6 address with the same numbers: fd09::1, ... right sends through the
//! guest's tunnel, so that both ends of the traffic are sockets of this rig.
//! `make kernel-test` builds the guest and runs this; TCG is slow, and this takes some minutes.

mod cookies;
mod handshakes;
mod paths;
mod rekey;
mod rig;
mod roaming;
