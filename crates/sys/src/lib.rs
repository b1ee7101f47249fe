//! Floor 1: every Linux system call. It implements the half-traits of `packet` over a TUN device
//! and UDP sockets, and wraps what else a running peer needs from the kernel.
//!
//! ```text
//!   tun      TunRecv, TunSend            <- the IP side
//!   udp      UdpReceiver, UdpSender      <- the UDP side
//!   netlink  links, addresses, routes, rules; Monitor for their changes
//!   ethtool  features and driver of a network device
//!   probe    tests which offloads work
//!   namespace  a private network namespace, and sockets in it
//!   process  start in the background, privileges, sandbox, signals
//!   resolve  addresses of host names
//!   splice   relays bytes between sockets without copying them
//!   offload  which of the kernel's offloads are used, and which it refused
//!   opened   a file and the folder that it is in
//!   silence  for how long nothing has come over a TCP connection
//!   unsent   how much of a TCP stream waits in the kernel
//!   unix     a listening Unix socket that only its user may open
//!   channel  a socket pair that keeps the boundaries of its packets
//!   socket_file  the file of one, which is removed with it
//!   atomic_file   a file that is replaced as a whole
//!   watch    waits until a file is deleted or replaced
//!   file_changes  tells that a file was written or replaced
//!   errno    error numbers, for all crates above
//!   poll, wake, clock, time              waiting, and the time
//! ```
//!
//! Everything that waits does so on file descriptors: a receiving half is ended by its waker, and
//! what a main thread waits for is `AsFd`, for [`poll::readable`].
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
pub mod keepalive;
pub mod namespace;
pub mod netlink;
pub mod offload;
pub mod opened_file;
pub mod poll;
pub mod probe;
pub mod process;
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

/// How long to wait after a listener or a shared socket failed: mostly because no file descriptor is
/// free, which is not better at once.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
