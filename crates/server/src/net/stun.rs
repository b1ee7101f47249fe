//! STUN server, which reports the public addresses of clients.

use std::{io, net::SocketAddr};

use tailnet::stun::{read_request, response};
use tokio::net::UdpSocket;

use crate::network::counters::STUN;

/// Maximum size of a request, in bytes.
const LONGEST: usize = 512;

/// Answers requests while the server runs.
pub(crate) async fn answer(socket: UdpSocket) {
    let mut datagram = [0; LONGEST];
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((len, from)) => {
                if let Ok(tx) = read_request(&datagram[..len]) {
                    // The client repeats a request if the answer is lost.
                    let _ = socket.send_to(&response(tx, from), from).await;
                    STUN.add(1);
                }
            }
            // The error concerns an earlier answer, not this socket.
            Err(error) => tracing::trace!("STUN: {error}"),
        }
    }
}

/// Opens a socket.
///
/// # Errors
/// The address cannot be used.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind(address).await
}
