//! STUN's server: says to each from where it asks (RFC 8489).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use tailnet::stun::is_stun;

const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];

/// Answers until nobody waits for it.
pub async fn answer(socket: UdpSocket) {
    socket.set_nonblocking(true).expect("a socket may be without waiting");
    let socket = tokio::net::UdpSocket::from_std(socket).expect("a runtime");
    let mut request = [0; 1500];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut request).await else { continue };
        if is_stun(&request[..len]) {
            // One that is lost is asked for again.
            let _ = socket.send_to(&response(&request[8..20], from), from).await;
        }
    }
}

fn response(tx: &[u8], from: SocketAddr) -> Vec<u8> {
    let mask = [&COOKIE[..], tx].concat();
    let (family, address) = match from.ip().to_canonical() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let port = from.port().to_be_bytes();
    let masked = |bytes: &[u8]| bytes.iter().zip(&mask).map(|(a, b)| a ^ b).collect::<Vec<_>>();
    let value = [&[0, family][..], &masked(&port), &masked(&address)].concat();
    let len = |len: usize| u16::try_from(len).expect("it is short").to_be_bytes();
    let attribute = [&[0, 0x20][..], &len(value.len()), &value].concat();
    [&[1, 1][..], &len(attribute.len()), &COOKIE, tx, &attribute].concat()
}
