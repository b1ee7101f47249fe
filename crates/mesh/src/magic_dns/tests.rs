use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, RecordType},
};
use proptest::prelude::*;

use super::*;

fn host(name: &str, addresses: &[&str]) -> Host {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Host { name: name.into(), addresses, subdomains: false }
}

fn record(name: &str, kind: &str, value: &str) -> ExtraRecord {
    ExtraRecord { name: name.into(), kind: kind.into(), value: value.into() }
}

fn upstream(last: u8) -> Vec<Resolver> {
    vec![Resolver::parse(&format!("192.0.2.{last}"), &[], Scope::default()).unwrap()]
}

fn config() -> Config {
    Config {
        suffix: "tail.example".into(),
        magic: true,
        accept: true,
        own: host("own.tail.example.", &["100.64.0.1", "fd7a:115c:a1e0::1"]),
        peers: vec![
            host("Peer.tail.example.", &["100.64.0.2", "fd7a:115c:a1e0::2"]),
            host("six.tail.example.", &["fd7a:115c:a1e0::6"]),
            Host { subdomains: true, ..host("web.tail.example.", &["100.64.0.7"]) },
            host("shared.other.example.", &["100.64.0.9"]),
            host("", &["100.64.0.10"]),
        ],
        extra: vec![
            record("git.corp.example.", "A", "100.64.0.2"),
            record("git.corp.example.", "", "100.64.0.3"),
            record("six.corp.example.", "AAAA", "fd7a:115c:a1e0::2"),
        ],
        routes: vec![
            ("corp.example".into(), upstream(1)),
            ("deep.corp.example.".into(), upstream(2)),
            ("sub.tail.example".into(), upstream(3)),
            ("void.example".into(), vec![]),
        ],
        ..Config::default()
    }
}

fn names(config: &Config) -> Names {
    Names::new(config).0
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii(name).unwrap();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    message
}

fn reply_to(names: &Names, query: &Message) -> Message {
    match names.answer(&query.to_vec().unwrap(), Transport::Udp) {
        Answer::Reply(reply) => Message::from_vec(&reply).unwrap(),
        other => panic!("no reply to {query}: {other:?}"),
    }
}

fn forwarded(names: &Names, query: &Message) -> Forward {
    match names.answer(&query.to_vec().unwrap(), Transport::Udp) {
        Answer::Forward(forward) => forward,
        other => panic!("{query} is not forwarded: {other:?}"),
    }
}

/// Returns the addresses of a name that exists, and checks their TTL.
fn addresses(names: &Names, name: &str, kind: RecordType) -> Vec<String> {
    let reply = reply_to(names, &query(name, kind));
    assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{name}");
    assert!(reply.metadata.authoritative && reply.metadata.recursion_available);
    assert_eq!(reply.metadata.id, 77);
    if reply.answers.is_empty() {
        assert_negative(&reply);
    }
    let answers = reply.answers.iter().inspect(|record| assert_eq!(record.ttl, 5));
    answers.map(|record| record.data.to_string()).collect()
}

fn assert_negative(reply: &Message) {
    let [soa] = &reply.authorities[..] else { panic!("no SOA in {reply}") };
    assert_eq!(soa.ttl, 10);
    let RData::SOA(data) = &soa.data else { panic!("no SOA in {reply}") };
    assert_eq!(data.minimum, 10);
    let query = reply.queries[0].name();
    assert!(soa.name.zone_of(query), "{} is not above {query}", soa.name);
}

fn assert_no_name(names: &Names, name: &str) {
    let reply = reply_to(names, &query(name, RecordType::A));
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name}");
    assert!(reply.answers.is_empty());
    assert_negative(&reply);
}

#[test]
fn node_name_is_resolved_in_any_case() {
    let names = names(&config());
    for name in ["peer.tail.example.", "PEER.Tail.Example."] {
        assert_eq!(addresses(&names, name, RecordType::A), ["100.64.0.2"]);
    }
    assert_eq!(addresses(&names, "own.tail.example.", RecordType::A), ["100.64.0.1"]);
    assert_eq!(addresses(&names, "shared.other.example.", RecordType::A), ["100.64.0.9"]);
    assert_eq!(addresses(&names, "peer.tail.example.", RecordType::TXT), [""; 0]);
}

#[test]
fn single_label_is_a_node_if_magic_dns_is_on() {
    let mut config = config();
    assert_eq!(addresses(&names(&config), "peer.", RecordType::A), ["100.64.0.2"]);
    config.magic = false;
    config.defaults = upstream(9);
    forwarded(&names(&config), &query("peer.", RecordType::A));
}

#[test]
fn ipv6_addresses_are_answered_only_if_needed_or_enabled() {
    let mut config = config();
    let six = "fd7a:115c:a1e0::2";
    let peer = "peer.tail.example.";
    assert_eq!(addresses(&names(&config), peer, RecordType::AAAA), [""; 0]);
    assert_eq!(addresses(&names(&config), peer, RecordType::ANY), ["100.64.0.2"]);
    let only = addresses(&names(&config), "six.tail.example.", RecordType::AAAA);
    assert_eq!(only, ["fd7a:115c:a1e0::6"]);
    config.aaaa = true;
    assert_eq!(addresses(&names(&config), peer, RecordType::AAAA), [six]);
    config.aaaa = false;
    config.own.addresses.remove(0);
    assert_eq!(addresses(&names(&config), peer, RecordType::AAAA), [six]);
    assert_eq!(addresses(&names(&config), peer, RecordType::A), [""; 0]);
}

#[test]
fn extra_record_is_answered_with_all_its_addresses() {
    let names = names(&config());
    let git = addresses(&names, "git.corp.example.", RecordType::A);
    assert_eq!(git, ["100.64.0.2", "100.64.0.3"]);
    let six = addresses(&names, "six.corp.example.", RecordType::AAAA);
    assert_eq!(six, ["fd7a:115c:a1e0::2"]);
    assert_eq!(addresses(&names, "six.corp.example.", RecordType::A), [""; 0]);
}

#[test]
fn unknown_name_in_an_own_zone_does_not_exist() {
    let names = names(&config());
    let unknown = ["nobody.tail.example.", "a.peer.tail.example.", "a.void.example."];
    for name in unknown.into_iter().chain(["site.onion.", "onion.", "b._dns-sd._udp.lan."]) {
        assert_no_name(&names, name);
    }
    assert_eq!(addresses(&names, "tail.example.", RecordType::A), [""; 0]);
    assert_eq!(addresses(&names, "tail.example.", RecordType::SOA).len(), 1);
}

#[test]
fn names_below_a_node_resolve_only_with_the_subdomain_attribute() {
    let names = names(&config());
    assert_eq!(addresses(&names, "a.b.web.tail.example.", RecordType::A), ["100.64.0.7"]);
    assert_no_name(&names, "a.own.tail.example.");
}

#[test]
fn longest_suffix_selects_the_resolvers() {
    let mut config = config();
    config.defaults = upstream(9);
    let names = names(&config);
    for (name, last) in [
        ("corp.example.", 1),
        ("a.corp.example.", 1),
        ("a.DEEP.corp.example.", 2),
        ("a.sub.tail.example.", 3),
        ("notcorp.example.", 9),
        ("example.", 9),
        (".", 9),
    ] {
        let forward = forwarded(&names, &query(name, RecordType::MX));
        assert_eq!(forward.resolvers(), upstream(last), "{name}");
    }
}

#[test]
fn query_without_resolvers_fails() {
    let reply = reply_to(&names(&config()), &query("www.example.", RecordType::A));
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(reply.queries[0].name().to_string(), "www.example.");
}

#[test]
fn fallback_resolvers_need_an_exit_node_and_the_hosts_come_last() {
    let mut config = config();
    let www = query("www.example.", RecordType::A);
    config.fallback = upstream(5);
    config.system = upstream(6);
    assert_eq!(forwarded(&names(&config), &www).resolvers(), upstream(6));
    config.exit_node = true;
    assert_eq!(forwarded(&names(&config), &www).resolvers(), upstream(5));
    config.defaults = upstream(7);
    assert_eq!(forwarded(&names(&config), &www).resolvers(), upstream(7));
}

#[test]
fn without_accepted_dns_names_resolve_and_zones_do_not_exist() {
    let mut config = config();
    config.accept = false;
    config.defaults = upstream(7);
    let names = names(&config);
    assert_eq!(addresses(&names, "peer.tail.example.", RecordType::A), ["100.64.0.2"]);
    for name in ["nobody.tail.example.", "a.corp.example."] {
        let reply = reply_to(&names, &query(name, RecordType::A));
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail, "{name}");
    }
    assert!(names.match_domains().is_empty());
}

#[test]
fn addresses_of_nodes_have_reverse_names_in_own_zones() {
    let mut config = config();
    config.defaults = upstream(9);
    let names = names(&config);
    let name = |name: &str| addresses(&names, name, RecordType::PTR);
    assert_eq!(name("1.0.64.100.in-addr.arpa."), ["own.tail.example."]);
    assert_eq!(name("9.0.64.100.in-addr.arpa."), ["shared.other.example."]);
    // As in stock nodes, an extra record comes before the name of a node.
    assert_eq!(name("2.0.64.100.in-addr.arpa."), ["git.corp.example."]);
    let six = "6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.e.1.a.c.5.1.1.a.7.d.f.ip6.arpa.";
    assert_eq!(name(six), ["six.tail.example."]);
    assert_eq!(name("100.100.100.100.in-addr.arpa."), ["magicdns.localhost-tailscale-daemon."]);
    assert_eq!(addresses(&names, "1.0.64.100.in-addr.arpa.", RecordType::A), [""; 0]);
    assert_eq!(name("64.100.in-addr.arpa."), [""; 0]);
    assert_eq!(name("0.64.100.in-addr.arpa."), [""; 0]);
    assert_no_name(&names, "1.255.127.100.in-addr.arpa.");
    assert_no_name(&names, &six.replacen('6', "5", 1));
    for other in ["1.0.128.100.in-addr.arpa.", "1.1.168.192.in-addr.arpa.", "in-addr.arpa."] {
        forwarded(&names, &query(other, RecordType::PTR));
    }
}

#[test]
fn via_names_resolve_to_site_addresses() {
    let names = names(&config());
    for name in ["192-168-1-2-via-7.", "192-168-1-2-via-0x7.tail.example."] {
        let found = addresses(&names, name, RecordType::AAAA);
        assert_eq!(found, ["fd7a:115c:a1e0:b1a:0:7:c0a8:102"], "{name}");
        assert_eq!(addresses(&names, name, RecordType::A), [""; 0]);
    }
    for name in ["192-168-1-via-7.tail.example.", "1-2-3-4-via-4294967296.tail.example."] {
        assert_no_name(&names, name);
    }
}

#[test]
fn bad_parts_of_a_configuration_are_reported_and_skipped() {
    let mut config = config();
    config.peers.push(host("a..b", &["100.64.0.11"]));
    config.extra.push(record("x.example", "TXT", "hello"));
    config.extra.push(record("y.example", "A", "1.2.3"));
    config.routes.push(("..".into(), vec![]));
    let https = Resolver::parse("https://dns.example/q", &[], Scope::default());
    config.defaults = vec![https.unwrap()];
    let (names, skipped) = Names::new(&config);
    let expected = [
        Skipped::RecordType("x.example".into()),
        Skipped::RecordValue("y.example".into()),
        Skipped::Name("a..b".into()),
        Skipped::Name("..".into()),
        Skipped::Https("https://dns.example/q".into()),
    ];
    assert_eq!(skipped, expected);
    assert_eq!(addresses(&names, "peer.tail.example.", RecordType::A), ["100.64.0.2"]);
    assert!(names.match_domains().contains(&"tail.example".to_owned()));
    assert!(names.match_domains().contains(&"127.100.in-addr.arpa".to_owned()));
}

#[test]
fn too_long_reply_is_truncated_only_over_udp() {
    let mut config = config();
    let records = (0..60).map(|n| record("many.example", "A", &format!("100.64.1.{n}")));
    config.extra.extend(records);
    let names = names(&config);
    let mut query = query("many.example.", RecordType::A);
    let reply = reply_to(&names, &query);
    assert!(reply.metadata.truncation && reply.answers.is_empty());
    let Answer::Reply(whole) = names.answer(&query.to_vec().unwrap(), Transport::Tcp) else {
        panic!("no reply");
    };
    let whole_reply = Message::from_vec(&whole).unwrap();
    assert!(!whole_reply.metadata.truncation && whole_reply.edns.is_none());
    assert_eq!(whole_reply.answers.len(), 60);

    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    query.set_edns(edns);
    let reply = reply_to(&names, &query);
    assert_eq!((reply.metadata.truncation, reply.answers.len()), (false, 60));
    assert_eq!(reply.edns.as_ref().unwrap().max_payload(), UDP_LEN);
}

#[test]
fn unsupported_query_gets_its_response_code() {
    let names = names(&config());
    let mut update = query("peer.tail.example.", RecordType::A);
    update.metadata.op_code = OpCode::Status;
    assert_eq!(reply_to(&names, &update).metadata.response_code, ResponseCode::NotImp);
    let none = Message::new(77, MessageType::Query, OpCode::Query);
    assert_eq!(reply_to(&names, &none).metadata.response_code, ResponseCode::FormErr);
    let mut two = query("peer.tail.example.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert_eq!(reply_to(&names, &two).metadata.response_code, ResponseCode::FormErr);
    let mut chaos = query("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(reply_to(&names, &chaos).metadata.response_code, ResponseCode::Refused);
    let mut later = query("peer.tail.example.", RecordType::A);
    later.set_edns(Edns::new().set_version(1).clone());
    // BADVERS and BADSIG have the same number.
    assert_eq!(u16::from(reply_to(&names, &later).metadata.response_code), 16);
}

#[test]
fn truncated_query_gets_an_error_and_a_reply_is_ignored() {
    let names = names(&config());
    let mut query = query("peer.tail.example.", RecordType::A);
    let bytes = query.to_vec().unwrap();
    for len in 0..bytes.len() {
        match names.answer(&bytes[..len], Transport::Udp) {
            Answer::Ignore => assert!(len < 12, "{len}"),
            Answer::Reply(reply) => {
                let reply = Message::from_vec(&reply).unwrap();
                assert_eq!(
                    (reply.metadata.id, reply.metadata.response_code),
                    (77, ResponseCode::FormErr)
                );
                assert!(len >= 12, "{len}");
            }
            Answer::Forward(_) => panic!("{len} bytes are forwarded"),
        }
    }
    query.metadata.message_type = MessageType::Response;
    let reply = query.to_vec().unwrap();
    for bytes in [&reply[..], &reply[..15]] {
        assert!(matches!(names.answer(bytes, Transport::Udp), Answer::Ignore));
    }
}

#[test]
fn forwarded_query_contains_only_the_clients_question() {
    let mut asked = query("www.corp.example.", RecordType::AAAA);
    let mut edns = Edns::new();
    edns.set_max_payload(4096).set_dnssec_ok(true);
    edns.options_mut().insert(hickory_proto::rr::rdata::opt::EdnsOption::Unknown(10, vec![7; 8]));
    asked.set_edns(edns);
    let forward = forwarded(&names(&config()), &asked);
    let sent = Message::from_vec(&forward.query(4711)).unwrap();
    assert_eq!(sent.metadata.id, 4711);
    assert_eq!(sent.queries, asked.queries);
    assert!(sent.metadata.recursion_desired);
    let edns = sent.edns.as_ref().unwrap();
    assert_eq!(edns.max_payload(), UDP_LEN);
    assert!(edns.flags().dnssec_ok && edns.options().as_ref().is_empty());
}

#[test]
fn reply_to_another_question_is_refused() {
    let names = names(&config());
    let forward = forwarded(&names, &query("www.corp.example.", RecordType::A));
    let mut reply = Message::from_vec(&forward.query(9)).unwrap();
    assert_eq!(forward.read(9, &reply.to_vec().unwrap()).unwrap_err(), ReplyError::Malformed);
    reply.metadata.message_type = MessageType::Response;
    let bytes = reply.to_vec().unwrap();
    assert_eq!(forward.read(8, &bytes).unwrap_err(), ReplyError::OtherId);
    let mut upper = reply.clone();
    upper.queries[0].set_name(Name::from_ascii("WWW.corp.example.").unwrap());
    forward.read(9, &upper.to_vec().unwrap()).unwrap();
    let mut other = reply.clone();
    other.queries[0].set_name(Name::from_ascii("evil.corp.example.").unwrap());
    let read = forward.read(9, &other.to_vec().unwrap());
    assert_eq!(read.unwrap_err(), ReplyError::OtherQuestion);
    let good = forward.read(9, &bytes).unwrap();
    assert!(!good.is_refusal());
    assert_eq!(Message::from_vec(&forward.reply(good)).unwrap().metadata.id, 77);

    reply.metadata.response_code = ResponseCode::Refused;
    reply.queries.clear();
    assert!(forward.read(9, &reply.to_vec().unwrap()).unwrap().is_refusal());
    let failed = Message::from_vec(&forward.failed()).unwrap();
    assert_eq!((failed.metadata.id, failed.metadata.response_code), (77, ResponseCode::ServFail));
}

#[test]
fn truncated_reply_is_retried_only_if_the_client_accepts_more() {
    let names = names(&config());
    let asked = query("www.corp.example.", RecordType::A);
    let udp = forwarded(&names, &asked);
    let Answer::Forward(tcp) = names.answer(&asked.to_vec().unwrap(), Transport::Tcp) else {
        panic!("not forwarded");
    };
    let mut cut = Message::from_vec(&udp.query(1)).unwrap();
    cut.metadata.message_type = MessageType::Response;
    cut.metadata.truncation = true;
    let cut = cut.to_vec().unwrap();
    assert!(!udp.should_retry_over_tcp(&udp.read(1, &cut).unwrap()));
    assert!(tcp.should_retry_over_tcp(&tcp.read(1, &cut).unwrap()));

    let mut long = Message::from_vec(&udp.query(1)).unwrap().to_vec().unwrap();
    long[2] |= 0x80;
    long.resize(600, 0);
    let reply = udp.reply(udp.read(1, &long).unwrap());
    assert!(Message::from_vec(&reply).unwrap().metadata.truncation);
    assert_eq!(tcp.reply(tcp.read(1, &long).unwrap()).len(), 600);
}

#[test]
fn resolver_is_an_address_or_https_url() {
    let parse = |text: &str| Resolver::parse(text, &[], Scope::default());
    assert_eq!(parse("192.0.2.1"), Ok(Resolver::Plain("192.0.2.1:53".parse().unwrap())));
    assert_eq!(parse("2001:db8::1"), Ok(Resolver::Plain("[2001:db8::1]:53".parse().unwrap())));
    assert_eq!(parse("192.0.2.1:54"), Ok(Resolver::Plain("192.0.2.1:54".parse().unwrap())));
    assert!(matches!(parse("https://dns.example/q"), Ok(Resolver::Https { .. })));
    for text in
        ["127.0.0.53", "[::1]:54", "::ffff:127.0.0.1", "169.254.169.254", "224.0.0.251:5353"]
    {
        assert!(matches!(parse(text), Ok(Resolver::Refused(_))), "{text}");
    }
    for text in ["", "tls://dns.example", "dns.example", "http://100.64.0.1:80/dns-query"] {
        assert_eq!(parse(text), Err(ParseResolverError(text.into())), "{text}");
    }
}

proptest! {
    #[test]
    fn garbage_gets_a_reply_with_its_id_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let names = names(&config());
        for transport in [Transport::Udp, Transport::Tcp] {
            if let Answer::Reply(reply) = names.answer(&bytes, transport) {
                prop_assert_eq!(&reply[..2], &bytes[..2]);
                prop_assert!(reply[2] & 0x80 != 0);
                if transport == Transport::Udp {
                    prop_assert!(reply.len() <= usize::from(UDP_LEN));
                }
            }
        }
    }

    #[test]
    fn damaged_query_or_reply_causes_no_panic(
        at in 0..60_usize, with: u8, len in 0..80_usize, edns: bool,
    ) {
        let names = names(&config());
        let mut asked = query("www.corp.example.", RecordType::A);
        if edns {
            asked.set_edns(Edns::new());
        }
        let mut bytes = asked.to_vec().unwrap();
        let forward = forwarded(&names, &asked);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = with;
        }
        bytes.truncate(len);
        if let Answer::Forward(forward) = names.answer(&bytes, Transport::Tcp) {
            prop_assert!(Message::from_vec(&forward.query(3)).is_ok());
        }
        if let Ok(reply) = forward.read(77, &bytes) {
            prop_assert_eq!(&forward.reply(reply)[..2], &77_u16.to_be_bytes());
        }
    }
}
