//! Answers of a gateway about mapped ports.

use std::{net::Ipv4Addr, time::Duration};

use mesh::portmap::{
    Mapper, Nonce, Target,
    mapping_messages::{LONGEST, Response},
};

use super::{steps, take};

const NONCE: Nonce = Nonce([9; 12]);
/// A day; no mapping lasts longer.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Any datagram, and a mapper that receives such datagrams while time passes.
pub fn portmap(data: &[u8]) {
    if let Some(Response::PcpMap { nonce, external, .. }) = Response::read(data) {
        assert!(data.len() >= 60 && data.len() <= LONGEST);
        assert_eq!(data[24..36], nonce.0);
        assert_eq!(data[42..44], external.to_be_bytes());
    }
    let place = Target { gateway: Ipv4Addr::LOCALHOST, own: Ipv4Addr::LOCALHOST, port: 41641 };
    let (mut mapper, mut now) = (Mapper::new(NONCE), Duration::ZERO);
    mapper.start(place, now);
    steps(data, 200, |step, rest| {
        match step % 4 {
            0 => now += Duration::from_millis(u16::from_le_bytes(take(rest)).into()),
            1 => now = mapper.poll_timeout().map_or(now, |at| at.max(now)),
            2 => mapper.check(now),
            _ => {
                let [len] = take::<1>(rest);
                let (datagram, behind) = rest.split_at(usize::from(len).min(rest.len()));
                *rest = behind;
                mapper.handle_datagram(datagram, now);
            }
        }
        mapper.handle_timeout(now);
        let sent = std::iter::from_fn(|| mapper.poll_transmit()).inspect(|request| {
            assert!(Response::read(request).is_none(), "a request is not a response");
        });
        assert!(sent.count() <= 2);
        assert!(mapper.poll_timeout().is_some_and(|at| at > now && at <= now + DAY));
        if let Some(mapping) = mapper.state().mapping {
            assert!(mapping.expires > now && mapping.expires <= now + DAY);
            assert!(mapping.external.port() != 0 && !mapping.external.ip().is_unspecified());
        }
    });
}
