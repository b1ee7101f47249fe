//! Floor 5: a WireGuard tunnel in the program itself. No interface, no root, no other
//! process: the program's own sockets are inside of the tunnel, and nobody else's are.
//!
//! ```text
//!   the program's tasks     TcpStream, TcpListener, UdpSocket     tokio's traits
//!        |  wakers                    |
//!   Tunnel ------------------- netstack::Stack                    TCP, UDP, ICMP
//!        `--> node::Node ----- engine ----- UDP socket            WireGuard
//! ```
//!
//! ```no_run
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tunnel::{Config, Tunnel};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::from_file("wg0.conf")?;
//! let tunnel = Tunnel::start(&config).await?;
//!
//! let mut stream = tunnel.connect_host("intranet.example", 80).await?;
//! stream.write_all(b"GET / HTTP/1.0\r\nHost: intranet.example\r\n\r\n").await?;
//! let mut page = String::new();
//! stream.read_to_string(&mut page).await?;
//!
//! drop(stream);
//! tunnel.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What waits for what
//!
//! The tunnel has the threads of the data plane, three, or five from four cores on, and
//! one that hears of changed routes. All sleep while there is nothing to do. A socket that
//! has to wait leaves its task's waker with the stack; nothing polls. A writer waits while
//! the peer, the network or the engine take no more; a reader that does not read closes
//! the window. So a slow end stops a fast one, and in between nothing is dropped.
//!
//! Sockets need no runtime: any executor polls them. Names do, one of tokio with its clock
//! and its I/O switched on: [`Tunnel::connect_host`], [`Tunnel::resolve`], and
//! [`Tunnel::start`] where an endpoint is a name.
//!
//! # How it ends
//!
//! Clones of a [`Tunnel`] are the same one. When the last is dropped, its connections are
//! reset and the peers told; all threads have ended when `drop` returns, and the keys are
//! wiped. A socket that is still held, or waits, fails with `ConnectionReset` or
//! `NotConnected`; it does not keep the tunnel up, nor does it hang. [`Tunnel::close`]
//! waits before that for what was written to arrive.
//!
//! # HTTP
//!
//! - hyper: a `Connector` is hyper-util's `Service<Uri>`; for https it is wrapped in a
//!   connector of TLS. Feature `hyper`. hyper's servers take a [`TcpStream`] in a
//!   `TokioIo`, as they take tokio's.
//! - reqwest: its public interface takes no stream of anybody else's, so it reaches the
//!   tunnel through a `Gateway`, a SOCKS proxy on loopback that only this program can use.
//!   Feature `gateway`.
//!
//! # Tailnets
//!
//! With the feature `tailnet` a program is a node of a Tailscale-compatible network: a
//! `tailnet::Member` joins, and has a [`Tunnel`] of which peers, names and addresses are
//! those of the network.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "hyper")]
mod hyper;
mod start;
#[cfg(feature = "tailnet")]
pub mod tailnet;
mod tunnel;

#[cfg(feature = "hyper")]
pub use self::hyper::{Connector, Stream};
pub use self::{
    config::{Config, ConfigError, Peer},
    start::StartError,
    tunnel::Tunnel,
};
pub use ::config::conf::ConfError;
#[cfg(feature = "gateway")]
pub use gateway::Gateway;
pub use ipnet::IpNet;
pub use netstack::{
    Keepalive, OwnedReadHalf, OwnedWriteHalf, ReuniteError, TcpListener, TcpStream, UdpSocket,
};
pub use wg::{KeyError, PresharedKey, PrivateKey, PublicKey, config::PeerState};
