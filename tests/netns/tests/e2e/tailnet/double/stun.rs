//! A STUN server, which answers with the source address.

use std::net::UdpSocket;

use tailnet::stun::{read_request, response};

/// Answers until the runtime ends.
pub(super) async fn answer(socket: UdpSocket) {
    socket.set_nonblocking(true).expect("a socket can be non-blocking");
    let socket = tokio::net::UdpSocket::from_std(socket).expect("a runtime");
    let mut request = [0; 1500];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut request).await else { continue };
        if let Ok(tx) = read_request(&request[..len]) {
            // A lost answer is requested again.
            let _ = socket.send_to(&response(tx, from), from).await;
        }
    }
}
