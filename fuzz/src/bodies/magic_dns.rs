//! Input of a tailnet's resolver: queries of any program on the host, replies of resolvers.

use mesh::{
    magic_dns::{Answer, Config, Host, Names, Resolver, Transport, UDP_LEN},
    permitted_addresses::Scope,
};

use super::take;

fn names() -> Names {
    let host = |name: &str, last| Host {
        name: name.into(),
        addresses: vec![[100, 64, 0, last].into()],
        subdomains: last == 3,
    };
    let resolver = Resolver::parse("192.0.2.1", &[], Scope::default()).expect("an address");
    let config = Config {
        suffix: "tail.example".into(),
        magic: true,
        accept: true,
        own: host("own.tail.example", 1),
        peers: vec![host("peer.tail.example", 2), host("web.tail.example", 3)],
        routes: vec![("corp.example".into(), vec![resolver])],
        ..Config::default()
    };
    Names::new(&config).0
}

/// A query, and a reply to it if it is forwarded.
pub fn magic_dns(data: &[u8]) {
    let mut rest = data;
    let [flags, query_len] = take(&mut rest);
    let transport = if flags & 1 == 0 { Transport::Udp } else { Transport::Tcp };
    let (query, reply) = rest.split_at(usize::from(query_len).min(rest.len()));
    match names().answer(query, transport) {
        Answer::Ignore => {}
        Answer::Reply(reply) => {
            assert_eq!(reply[..2], query[..2], "another id");
            assert!(reply[2] & 0x80 != 0 && query[2] & 0x80 == 0);
            assert!(transport == Transport::Tcp || reply.len() <= usize::from(UDP_LEN));
        }
        Answer::Forward(forward) => {
            assert_eq!(forward.resolvers().len(), 1);
            let request = forward.query(0x1234);
            assert!(request.starts_with(&[0x12, 0x34]) && request[2] & 0x80 == 0);
            let mut echo = request.clone();
            echo[2] |= 0x80;
            assert!(forward.read(0x1234, &echo).is_ok(), "the echoed question does not match");
            assert!(forward.read(0x1235, &echo).is_err());
            for reply in [reply.to_vec(), [&echo[..], reply].concat()] {
                let Ok(read) = forward.read(0x1234, &reply) else { continue };
                assert_eq!(forward.reply(read)[..2], query[..2], "another id");
            }
            assert_eq!(forward.failed()[..2], query[..2]);
        }
    }
}
