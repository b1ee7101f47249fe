//! Input of a node: messages inside the tunnel.

use std::net::IpAddr;

use tailnet::tsmp::{self, LONGEST, Message, Tsmp};

use super::take;

/// Any packet, and any message behind valid headers.
pub fn tsmp(data: &[u8]) {
    look(data);
    let mut rest = data;
    let [v6, fragment, ..]: [u8; 4] = take(&mut rest);
    let own: IpAddr =
        if v6 & 1 == 0 { [100, 64, 0, 1].into() } else { [0xfd7a, 0, 0, 0, 0, 0, 0, 1].into() };
    let token = take(&mut rest);
    let Some(mut packet) = tsmp::ping(own, own, token) else { panic!("of one family") };
    look(&packet);
    let header = packet.len() - 9;
    packet.truncate(header);
    packet.extend(rest.iter().take(2000));
    let len = packet.len() as u16;
    if own.is_ipv4() {
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[6] = fragment;
    } else {
        packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
    }
    look(&packet);
}

fn look(packet: &[u8]) {
    let Some(Tsmp { from, to, message }) = tsmp::read(packet) else { return };
    assert!(packet.len() <= LONGEST);
    if let Message::Ping(token) = message {
        let pong = tsmp::pong(to, from, token).expect("a packet is of one family");
        // An answer is at most two bytes longer, for its port.
        assert!(pong.len() <= packet.len() + 2);
        let answer = Tsmp { from: to, to: from, message: Message::Pong(token) };
        assert_eq!(tsmp::read(&pong), Some(answer));
    }
}
