use proptest::{collection, prelude::*};
use zeroize::Zeroizing;

use super::*;

fn negotiate(users: &Users, inputs: &[&[u8]]) -> (Vec<u8>, State, Vec<u8>) {
    // The result must be the same for whole messages and single bytes.
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut negotiation = Negotiation::new(users);
        let mut replies = Vec::new();
        for piece in pieces {
            negotiation.handle_input(piece);
            replies.extend(negotiation.poll_output().unwrap_or_default());
        }
        let state = std::mem::replace(&mut negotiation.state, State::Negotiating);
        (replies, state, negotiation.into_rest())
    };
    let all = inputs.concat();
    let whole = run(&mut inputs.iter().copied());
    assert_eq!(whole, run(&mut all.chunks(1)));
    whole
}

fn refusal(reply: Reply) -> Vec<u8> {
    vec![5, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

const HELLO: &[u8] = &[5, 1, 0];

#[test]
fn each_address_type_is_parsed_and_early_data_is_stored() {
    let name = [&[5, 1, 0, 3, 9][..], b"a.example", &[0, 80]].concat();
    let v6: Vec<u8> = [&[5, 1, 0, 4, 0xfd][..], &[0; 14], &[2, 1, 187]].concat();
    for (request, target) in [
        (&[5, 1, 0, 1, 10, 0, 0, 2, 0, 80][..], "10.0.0.2:80"),
        (&name, "a.example:80"),
        (&v6, "[fd00::2]:443"),
    ] {
        let (replies, state, rest) = negotiate(&Users::default(), &[HELLO, request, b"early"]);
        let target = Target::parse(target, None).unwrap();
        assert_eq!((replies, state), (vec![5, 0], State::Requested(Request::Connect(target))));
        assert_eq!(rest, b"early");
    }
    let (_, state, _) = negotiate(&Users::default(), &[HELLO, &[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]]);
    let anywhere = Target::parse("0.0.0.0:0", None).unwrap();
    assert_eq!(state, State::Requested(Request::UdpAssociate(anywhere)));
}

#[test]
fn unsupported_commands_and_address_types_get_their_reply_code() {
    for (request, reply) in [
        (&[5, 2, 0, 1, 10, 0, 0, 2, 0, 80][..], Reply::CommandNotSupported),
        (&[5, 9, 0, 1, 10, 0, 0, 2, 0, 80], Reply::CommandNotSupported),
        (&[5, 1, 0, 2, 10, 0, 0, 2, 0, 80], Reply::AddressNotSupported),
        (&[5, 1, 0, 3, 1, b' ', 0, 80], Reply::AddressNotSupported),
        (&[5, 1, 0, 3, 0, 0, 80], Reply::AddressNotSupported),
        (&[4, 1, 0, 1, 10, 0, 0, 2, 0, 80], Reply::GeneralFailure),
    ] {
        let (replies, state, _) = negotiate(&Users::default(), &[HELLO, request]);
        assert_eq!(replies, [&[5, 0][..], &refusal(reply)].concat(), "{request:?}");
        assert_eq!(state, State::Refused);
    }
}

#[test]
fn only_the_right_password_is_accepted() {
    let mut users = Users::default();
    users.add("ann".into(), Zeroizing::new("pw".into()));
    let connect = &[5, 1, 0, 1, 10, 0, 0, 2, 0, 80];
    let right = [&[1, 3][..], b"ann", &[2], b"pw"].concat();
    let wrong = [&[1, 3][..], b"ann", &[2], b"pv"].concat();
    let (replies, state, _) = negotiate(&users, &[&[5, 2, 0, 2], &right, connect]);
    assert_eq!(replies, [5, 2, 1, 0]);
    assert!(matches!(state, State::Requested(_)));
    let (replies, state, _) = negotiate(&users, &[&[5, 2, 0, 2], &wrong, connect]);
    assert_eq!((&replies[..], state), (&[5, 2, 1, 1][..], State::Refused));
    // A client that offers no password, and one that skips it.
    let (replies, state, _) = negotiate(&users, &[HELLO, connect]);
    assert_eq!((&replies[..], state), (&[5, 0xff][..], State::Refused));
    let (replies, state, _) = negotiate(&users, &[&[5, 1, 2], connect]);
    assert_eq!((&replies[..], state), (&[5, 2, 1, 1][..], State::Refused));
}

#[test]
fn password_message_of_another_version_is_rejected() {
    let mut users = Users::default();
    users.add("ann".into(), Zeroizing::new("pw".into()));
    for version in [0, 2, 5] {
        let right = [&[version, 3][..], b"ann", &[2], b"pw"].concat();
        let (replies, state, _) = negotiate(&users, &[&[5, 1, 2], &right]);
        assert_eq!((&replies[..], state), (&[5, 2, 1, 1][..], State::Refused), "{version}");
    }
}

#[test]
fn ipv4_mapped_address_becomes_ipv4() {
    let mapped = [&[5, 1, 0, 4][..], &[0; 10], &[0xff, 0xff, 10, 0, 0, 2, 0, 80]].concat();
    let (_, state, _) = negotiate(&Users::default(), &[HELLO, &mapped]);
    let target = Target::parse("10.0.0.2:80", None).unwrap();
    assert_eq!(state, State::Requested(Request::Connect(target)));
}

#[test]
fn dial_errors_map_to_reply_codes() {
    use io::ErrorKind;
    for (kind, number) in [
        (ErrorKind::Other, 1),
        (ErrorKind::PermissionDenied, 2),
        (ErrorKind::NetworkUnreachable, 3),
        (ErrorKind::HostUnreachable, 4),
        (ErrorKind::NotFound, 4),
        (ErrorKind::TimedOut, 4),
        (ErrorKind::ConnectionRefused, 5),
    ] {
        assert_eq!(Reply::of_error(&kind.into()) as u8, number, "{kind}");
    }
}

#[test]
fn other_protocol_is_refused_without_a_reply() {
    for input in [&b"GET / HTTP/1.1\r\n"[..], &[4, 1, 0, 80]] {
        let (replies, state, _) = negotiate(&Users::default(), &[input]);
        assert_eq!((&replies[..], state), (&b""[..], State::Refused));
    }
}

#[test]
fn reply_encodes_the_address_family() {
    let v6 = Reply::Succeeded.encode("[::1]:258".parse().unwrap());
    assert_eq!(v6, [&[5, 0, 0, 4][..], &[0; 15], &[1, 1, 2]].concat());
    let refused = io::ErrorKind::ConnectionRefused.into();
    assert_eq!(Reply::of_error(&refused), Reply::ConnectionRefused);
}

proptest! {
    #[test]
    fn any_split_of_any_input_gives_the_same_result(
        version in prop_oneof![Just(5_u8), any::<u8>()],
        input in collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..300),
        with_users in any::<bool>(),
    ) {
        let mut users = Users::default();
        if with_users {
            users.add("a".into(), Zeroizing::new("b".into()));
        }
        negotiate(&users, &[&[version], &input]);
        super::datagram::parse(&input);
    }
}
