//! Input of a relay for peers: headers, binds, and packets to forward.

use std::time::Duration;

use mesh::peer_relay::Server;
use packet::Endpoint;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use tailnet::{
    disco::{Bind, Disco, Message},
    geneve::{GENEVE_LEN, Geneve, Protocol, Vni},
    keys::DiscoKey,
};

use super::{steps, take};

/// A relay with three clients, two of which share an endpoint: valid and invalid binds from several
/// addresses, garbage, data and time. The relay never sends a client its own packet, more bytes
/// than it received, or anything before the client returned a challenge from that address.
pub fn peer_relay(data: &[u8]) {
    if let Some(header) = Geneve::read(data) {
        assert_eq!(header.bytes()[..], data[..GENEVE_LEN]);
    }
    let disco = |byte: u8| Disco::new(DiscoKey::new(Box::new([byte; 32].into())));
    let mut clients = [1, 2, 3].map(disco);
    let rng = Box::new(ChaCha20Rng::from_seed([7; 32]));
    let mut now = Duration::from_secs(9);
    let mut server = Server::new(DiscoKey::new(Box::new([9; 32].into())), rng, now);
    let keys = [clients[0].public(), clients[1].public()];
    let at = |port: u8| Endpoint::new(([192, 0, 2, 1], 1000 + u16::from(port % 4)).into());
    let mut challenges = vec![None; 3];
    let mut proven = [false; 4];
    steps(data, 64, |step, data| {
        let [who, from, number] = take(data);
        let (client, from_port) = (usize::from(who % 3), from % 4);
        let from = at(from);
        let vni = Vni::new(u32::from(number % 3)).expect("it is small");
        let header = Geneve { control: true, protocol: Protocol::Disco, vni };
        let other = if client == 0 { keys[1] } else { keys[0] };
        let datagram = match step % 8 {
            0 => {
                let made = server.allocate(keys[0], keys, now);
                assert!(made.is_ok_and(|made| made.server == server.key()));
                return;
            }
            1 => {
                now += Duration::from_secs(u64::from(number));
                server.handle_timeout(now);
                return;
            }
            2 => {
                let remote = from.remote.direct().expect("it is an address");
                if let Some(to) = server.forward(vni, remote, (1, 100), now) {
                    let port = to.remote.direct().expect("it is an address").port();
                    assert!(to != from, "it is sent back to the sender");
                    assert!(proven[usize::from(port - 1000)], "the address was not proven");
                }
                return;
            }
            3 => data.iter().take(160).copied().collect(),
            4 | 5 => {
                let bind =
                    Bind { vni, generation: u32::from(number / 8), other, challenge: [0; 32] };
                clients[client].seal(server.key(), &Message::Bind(bind), [step; 24])
            }
            _ => {
                let Some(bind) = challenges[client] else { return };
                proven[usize::from(from_port)] = true;
                clients[client].seal(server.key(), &Message::BindAnswer(bind), [step; 24])
            }
        };
        let Some(answer) = server.handle_control(header, &datagram, from, now) else { return };
        assert!(
            answer.len() <= GENEVE_LEN + datagram.len(),
            "the answer is longer than the request"
        );
        assert_eq!(Geneve::read(&answer), Some(header));
        let (_, output) =
            clients[client].open(&answer[GENEVE_LEN..]).expect("the sender can open it");
        let Message::BindChallenge(challenge) = output else { panic!("{output:?}") };
        challenges[client] = Some(challenge);
    });
}
