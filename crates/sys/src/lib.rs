//! Floor 1: all Linux system calls. It implements the half-traits of `packet` over a TUN device
//! and UDP sockets, and wraps the other system calls of a running peer.
//!
//! ```text
//!   tun          TunRecv, TunSend            <- the IP side
//!   udp          UdpReceiver, UdpSender      <- the UDP side
//!   netlink      links, addresses, routes, rules, and monitors of their changes
//!   ethtool      features and driver of a network device
//!   probe        tests of offloads
//!   namespace    a private network namespace, and sockets in it
//!   process      start in the background, privileges, sandbox, signals
//!   resolve      addresses of host names
//!   splice       relays bytes between sockets without copying them
//!   offload      the state of the kernel's offloads
//!   opened_file  a file and its folder
//!   tcp_idle     the time since data last arrived over a TCP connection
//!   keepalive    TCP keepalive
//!   unsent       limits the unsent data of a TCP connection
//!   unix         a listening Unix socket that only its user may open
//!   channel      a socket pair with message boundaries
//!   socket_file  the file of a Unix socket, removed with it
//!   atomic_file  replaces files atomically
//!   watch        waits until a file is deleted or replaced
//!   file_changes reports that a file was written or replaced
//!   errno        error numbers, for all crates above
//!   prometheus   metrics as text, for both daemons
//!   poll, wake, clock, time                  waiting, and the time
//! ```
//!
//! All waits are on file descriptors. A waker ends the wait of a receiving half, and the event
//! sources of a main thread implement `AsFd`, for [`poll::readable`].
//!
//! Unsafe code is in these files: `tun/device.rs` (two ioctls), `ethtool.rs` (one), `clock.rs`
//! (`adjtimex`), `resolve.rs` (`getaddrinfo`), `udp/mmsg.rs` (`sendmmsg`, `recvmmsg`), `channel.rs`
//! (descriptors received over a socket), `namespace.rs` and `process/background.rs` (`fork`), `process/code.rs` and
//! `process/heap.rs` (resident memory), `process/time_slice.rs` (the scheduler), and
//! `process/signals.rs` (a child between fork and exec, SIGPIPE).
#![deny(unsafe_code)]

pub mod atomic_file;
mod channel;
pub mod clock;
pub mod errno;
pub mod ethtool;
mod file_changes;
pub mod helper_server;
pub mod keepalive;
pub mod namespace;
pub mod netlink;
pub mod offload;
pub mod opened_file;
pub mod poll;
pub mod probe;
pub mod process;
pub mod prometheus;
pub mod resolve;
mod socket_file;
pub mod splice;
pub mod tcp_idle;
#[cfg(test)]
mod testing;
pub mod time;
pub mod tun;
pub mod udp;
pub mod unix;
pub mod unsent;
pub mod wake;
pub mod watch;

pub use channel::Channel;
pub use errno::Errno;
pub use file_changes::FileChanges;
pub use offload::Offloads;
pub use socket_file::SocketFile;
pub use tun::{Tun, TunError, TunInfo, TunRecv, TunSend, TunSource};
pub use udp::{
    BindError, BufferSizes, ProbeDatagram, ProbeSockets, TunUdpPoll, UdpReceiver, UdpSender,
    UdpSocket,
};
pub use wake::Wake;

/// How long to wait after an error of a listener or a shared socket. The usual cause is a lack of
/// file descriptors, which lasts for some time.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
