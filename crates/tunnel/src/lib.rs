//! Floor 5: a WireGuard tunnel in a program, without an interface, root or another process. Only the
//! program's own sockets are inside the tunnel.
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
//! # Threads and wakers
//!
//! The tunnel has the threads of the data plane (three, or five with four cores or more), and one that
//! waits for changed routes. All sleep while they are idle. A socket that waits leaves its task's waker
//! with the stack. A writer waits while the peer, the network or the engine accept nothing more; a
//! reader that does not read closes the window. So a slow end slows a fast one down, and no data is
//! dropped in between.
//!
//! Sockets work with any executor. Names need a tokio runtime with time and I/O enabled:
//! [`Tunnel::connect_host`], [`Tunnel::resolve`], and [`Tunnel::start`] if an endpoint is a name.
//!
//! # How it ends
//!
//! Clones of a [`Tunnel`] share it. When the last one is dropped, its connections are reset, also at
//! the peers. When `drop` returns, all threads have ended and the keys are wiped. Remaining sockets
//! fail with `ConnectionReset` or `NotConnected`; they neither keep the tunnel running nor hang.
//! [`Tunnel::close`] first waits until the written bytes have arrived.
//!
//! # HTTP
//!
//! - hyper: a `Connector` is a `Service<Uri>` for hyper-util; for https, wrap it in a TLS connector.
//!   Feature `hyper`. hyper's servers accept a [`TcpStream`] in a `TokioIo`, like tokio's.
//! - reqwest: its public interface does not accept a custom stream. It reaches the tunnel through a
//!   `Gateway`, a SOCKS proxy on loopback that only this program can use. Feature `gateway`.
//!
//! # Tailnets
//!
//! With the feature `tailnet` a program can be a node of a Tailscale-compatible network: a
//! `tailnet::Member` joins, and has a [`Tunnel`] with the peers, names and addresses of the network.
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
