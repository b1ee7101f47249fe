//! STUN's server: says to each from where it asks.

use std::net::UdpSocket;

use tailnet::stun::{read_request, response};

/// Answers until nobody waits for it.
pub async fn answer(socket: UdpSocket) {
    socket.set_nonblocking(true).expect("a socket may be without waiting");
    let socket = tokio::net::UdpSocket::from_std(socket).expect("a runtime");
    let mut request = [0; 1500];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut request).await else { continue };
        if let Ok(tx) = read_request(&request[..len]) {
            // One that is lost is asked for again.
            let _ = socket.send_to(&response(tx, from), from).await;
        }
    }
}
