//! STUN: tells clients from where they are seen.

use std::{io, net::SocketAddr};

use tailnet::stun::{read_request, response};
use tokio::net::UdpSocket;

use crate::counted::STUN;

/// Longer than any request.
const LONGEST: usize = 512;

/// Answers at an address for as long as the server runs.
pub async fn answer(socket: UdpSocket) {
    let mut datagram = [0; LONGEST];
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((len, from)) => {
                if let Ok(tx) = read_request(&datagram[..len]) {
                    // One that is lost is asked for again.
                    let _ = socket.send_to(&response(tx, from), from).await;
                    STUN.add(1);
                }
            }
            // An earlier answer was not taken: nothing of this socket's.
            Err(error) => tracing::trace!("STUN: {error}"),
        }
    }
}

/// The socket of an address.
///
/// # Errors
/// It cannot be had.
pub async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind(address).await
}
