//! Floor 1: every Linux system call. It implements the half-traits of `packet`
//! over a TUN device and over UDP sockets, and holds what else a running peer
//! asks of the kernel.
//!
//! ```text
//!   tun      TunRecv, TunSend            <- the IP side
//!   udp      UdpReceiver, UdpSender      <- the UDP side
//!   netlink  links, addresses, routes, rules; Monitor for their changes
//!   ethtool  what a device does for packets
//!   probe    each offload tried, in private
//!   namespace  a private network namespace, and sockets in it
//!   process  start in the background, drop privileges, signals
//!   splice   bytes from one socket to another without a copy
//!   offload  what is used of the kernel's offloads, and what it refused
//!   opened   a file and the folder that it is in
//!   unix     a listening Unix socket that only its user may open
//!   socket_file  the file of one, which is removed with it
//!   whole_file   a file that is replaced as a whole
//!   watch    a file that is deleted or replaced
//!   poll, wake, clock, time              what the others wait and count with
//! ```
//!
//! Everything that waits is a file descriptor underneath: the receiving halves
//! end by their waker, and what a main thread waits for is `AsFd`, to be put
//! together in [`poll::readable`].
//!
//! Unsafe code stands in few files: `tun/device.rs` (two ioctls), `ethtool.rs` (one), `clock.rs`
//! (`adjtimex`), `udp/mmsg.rs` (`sendmmsg`, `recvmmsg`), `line.rs` (descriptors that come over a
//! socket), `namespace.rs` and `process/background.rs` (`fork`), `process/code.rs` and
//! `process/heap.rs` (what is resident), `process/turns.rs` (the length of turns), and
//! `process/signals.rs` (what a child does between fork and exec).
#![deny(unsafe_code)]

pub mod clock;
pub mod ethtool;
pub mod keepalive;
mod line;
pub mod namespace;
pub mod netlink;
pub mod offload;
pub mod opened;
pub mod poll;
pub mod probe;
pub mod process;
mod socket_file;
pub mod splice;
#[cfg(test)]
mod testing;
pub mod time;
pub mod tun;
pub mod udp;
pub mod unix;
pub mod wake;
pub mod watch;
pub mod whole_file;

pub use offload::Offloads;
pub use socket_file::SocketFile;
pub use tun::{Tun, TunError, TunInfo, TunRecv, TunSend};
pub use udp::{BindError, Buffers, UdpReceiver, UdpSender, UdpSocket};
pub use wake::Wake;
