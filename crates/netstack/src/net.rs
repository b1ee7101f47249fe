//! Sockets of the stack, with the names of tokio's.

mod halves;
mod tcp_listener;
mod tcp_stream;
mod udp_socket;

pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use tcp_listener::TcpListener;
pub use tcp_stream::TcpStream;
pub use udp_socket::UdpSocket;
