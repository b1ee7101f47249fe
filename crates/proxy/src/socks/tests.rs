use proptest::{collection, prelude::*};
use zeroize::Zeroizing;

use super::*;

fn talk(users: &Users, inputs: &[&[u8]]) -> (Vec<u8>, State, Vec<u8>) {
    // Whole, and byte by byte: it has to be the same.
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut negotiation = Negotiation::new(users);
        let mut said = Vec::new();
        for piece in pieces {
            negotiation.handle_input(piece);
            said.extend(negotiation.poll_output().unwrap_or_default());
        }
        let state = std::mem::replace(&mut negotiation.state, State::Asking);
        (said, state, negotiation.into_rest())
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
fn each_kind_of_address_is_asked_for_and_what_follows_is_kept() {
    let name = [&[5, 1, 0, 3, 9][..], b"a.example", &[0, 80]].concat();
    let v6: Vec<u8> = [&[5, 1, 0, 4, 0xfd][..], &[0; 14], &[2, 1, 187]].concat();
    for (request, target) in [
        (&[5, 1, 0, 1, 10, 0, 0, 2, 0, 80][..], "10.0.0.2:80"),
        (&name, "a.example:80"),
        (&v6, "[fd00::2]:443"),
    ] {
        let (said, state, rest) = talk(&Users::default(), &[HELLO, request, b"early"]);
        let target = Target::parse(target, None).unwrap();
        assert_eq!((said, state), (vec![5, 0], State::Asked(Request::Connect(target))));
        assert_eq!(rest, b"early");
    }
    let (_, state, _) = talk(&Users::default(), &[HELLO, &[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]]);
    let anywhere = Target::parse("0.0.0.0:0", None).unwrap();
    assert_eq!(state, State::Asked(Request::UdpAssociate(anywhere)));
}

#[test]
fn bind_and_unknown_commands_and_addresses_are_refused_by_their_numbers() {
    for (request, reply) in [
        (&[5, 2, 0, 1, 10, 0, 0, 2, 0, 80][..], Reply::CommandNotSupported),
        (&[5, 9, 0, 1, 10, 0, 0, 2, 0, 80], Reply::CommandNotSupported),
        (&[5, 1, 0, 2, 10, 0, 0, 2, 0, 80], Reply::AddressNotSupported),
        (&[5, 1, 0, 3, 1, b' ', 0, 80], Reply::AddressNotSupported),
        (&[5, 1, 0, 3, 0, 0, 80], Reply::AddressNotSupported),
        (&[4, 1, 0, 1, 10, 0, 0, 2, 0, 80], Reply::GeneralFailure),
    ] {
        let (said, state, _) = talk(&Users::default(), &[HELLO, request]);
        assert_eq!(said, [&[5, 0][..], &refusal(reply)].concat(), "{request:?}");
        assert_eq!(state, State::Refused);
    }
}

#[test]
fn a_user_has_to_have_the_right_password() {
    let mut users = Users::default();
    users.add("ann".into(), Zeroizing::new("pw".into()));
    let connect = &[5, 1, 0, 1, 10, 0, 0, 2, 0, 80];
    let right = [&[1, 3][..], b"ann", &[2], b"pw"].concat();
    let wrong = [&[1, 3][..], b"ann", &[2], b"pv"].concat();
    let (said, state, _) = talk(&users, &[&[5, 2, 0, 2], &right, connect]);
    assert_eq!(said, [5, 2, 1, 0]);
    assert!(matches!(state, State::Asked(_)));
    let (said, state, _) = talk(&users, &[&[5, 2, 0, 2], &wrong, connect]);
    assert_eq!((&said[..], state), (&[5, 2, 1, 1][..], State::Refused));
    // A client that only comes without a name, and one that skips the password.
    let (said, state, _) = talk(&users, &[HELLO, connect]);
    assert_eq!((&said[..], state), (&[5, 0xff][..], State::Refused));
    let (said, state, _) = talk(&users, &[&[5, 1, 2], connect]);
    assert_eq!((&said[..], state), (&[5, 2, 1, 1][..], State::Refused));
}

#[test]
fn a_password_of_another_version_of_the_negotiation_is_not_taken() {
    let mut users = Users::default();
    users.add("ann".into(), Zeroizing::new("pw".into()));
    for version in [0, 2, 5] {
        let right = [&[version, 3][..], b"ann", &[2], b"pw"].concat();
        let (said, state, _) = talk(&users, &[&[5, 1, 2], &right]);
        assert_eq!((&said[..], state), (&[5, 2, 1, 1][..], State::Refused), "{version}");
    }
}

#[test]
fn an_ipv4_address_in_ipv6_is_asked_for_as_ipv4() {
    let mapped = [&[5, 1, 0, 4][..], &[0; 10], &[0xff, 0xff, 10, 0, 0, 2, 0, 80]].concat();
    let (_, state, _) = talk(&Users::default(), &[HELLO, &mapped]);
    let target = Target::parse("10.0.0.2:80", None).unwrap();
    assert_eq!(state, State::Asked(Request::Connect(target)));
}

#[test]
fn a_failed_dial_is_told_by_its_number() {
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
fn another_protocol_gets_no_answer() {
    for input in [&b"GET / HTTP/1.1\r\n"[..], &[4, 1, 0, 80]] {
        let (said, state, _) = talk(&Users::default(), &[input]);
        assert_eq!((&said[..], state), (&b""[..], State::Refused));
    }
}

#[test]
fn a_reply_has_the_address_of_its_family() {
    let v6 = Reply::Succeeded.encode("[::1]:258".parse().unwrap());
    assert_eq!(v6, [&[5, 0, 0, 4][..], &[0; 15], &[1, 1, 2]].concat());
    let refused = io::ErrorKind::ConnectionRefused.into();
    assert_eq!(Reply::of_error(&refused), Reply::ConnectionRefused);
}

proptest! {
    #[test]
    fn no_input_breaks_it_however_it_is_cut(
        version in prop_oneof![Just(5_u8), any::<u8>()],
        input in collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..300),
        with_users in any::<bool>(),
    ) {
        let mut users = Users::default();
        if with_users {
            users.add("a".into(), Zeroizing::new("b".into()));
        }
        talk(&users, &[&[version], &input]);
        super::datagram::parse(&input);
    }
}
