//! Input of the proxies: SOCKS5 and HTTP of clients, DNS of servers.

use std::net::{IpAddr, SocketAddr};

use config::{Host, Target};
use proxy::{
    Users,
    dns::{Answer, Query, Record},
    http::{self, Body, Follows, RequestInfo},
    socks::{self, Negotiation, State, datagram},
};

use super::take;

/// The longest piece of an input.
const PIECE: usize = 64;

fn users(flags: u8) -> Users {
    let mut users = Users::default();
    if flags & 1 != 0 {
        users.add("ann".into(), "pw".to_owned().into());
    }
    users
}

/// Cuts bytes into pieces by a seed.
fn pieces(bytes: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    let mut state = u32::from(seed) | 1 << 8;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(0x9e37_79b1) ^ state >> 15;
        let len = (1 + state as usize % PIECE).min(rest.len());
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A client of the SOCKS5 proxy, whole and in pieces, and one of its datagrams.
pub fn socks(data: &[u8]) {
    let mut rest = data;
    let [flags, seed] = take(&mut rest);
    let users = users(flags);
    let whole = dialogue(&users, [rest].into_iter());
    assert_eq!(whole, dialogue(&users, pieces(rest, seed)), "the result differs in pieces");
    let (output, request, early) = whole;
    assert!(rest.ends_with(&early));
    if let Some(request) = request {
        let is_asked = flags & 1 != 0;
        assert_eq!(output, if is_asked { &[5, 2, 1, 0][..] } else { &[5, 0] });
        let consumed = &rest[..rest.len() - early.len()];
        assert!(!is_asked || consumed.windows(8).any(|w| w == b"\x01\x03ann\x02pw"));
        let (command, target) = match request {
            socks::Request::Connect(target) => (1, target),
            socks::Request::UdpAssociate(target) => (3, target),
        };
        check_target(&target);
        let port = consumed.len() - 2;
        assert_eq!(consumed[port..], target.port.to_be_bytes());
        assert!(consumed[..port].windows(2).any(|two| two == [5, command]));
    }
    let Some((target, payload)) = datagram::parse(rest) else { return };
    check_target(&target);
    assert!(rest.ends_with(payload));
    if let Host::Ip(ip) = target.host {
        let again = datagram::encode(SocketAddr::new(ip, target.port), payload);
        assert_eq!(datagram::parse(&again), Some((target, payload)));
    }
}

/// The proxy's output, the request, and the bytes behind it.
type Dialogue = (Vec<u8>, Option<socks::Request>, Vec<u8>);

fn dialogue<'a>(users: &Users, pieces: impl Iterator<Item = &'a [u8]>) -> Dialogue {
    let mut negotiation = Negotiation::new(users);
    let mut output = Vec::new();
    for piece in pieces {
        negotiation.handle_input(piece);
        output.extend(negotiation.poll_output().unwrap_or_default());
    }
    let request = match negotiation.state() {
        State::Requested(request) => Some(request.clone()),
        State::Negotiating | State::Refused => None,
    };
    (output, request, negotiation.into_rest())
}

fn check_target(target: &Target) {
    match &target.host {
        Host::Name(name) => {
            assert!((1..=253).contains(&name.len()));
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            assert!(name.bytes().all(is_plain), "{name:?}");
        }
        Host::Ip(ip) => assert_eq!(*ip, ip.to_canonical()),
    }
    assert_eq!(Target::parse(&target.to_string(), None).as_ref(), Some(target));
}

/// A client of the HTTP proxy. The origin gets exactly one unambiguous request without the proxy's
/// fields, and a body ends in one place.
pub fn http(data: &[u8]) {
    let mut rest = data;
    let [flags, seed, cut, more] = take(&mut rest);
    if flags & 0x80 != 0 {
        return answer(rest, flags, seed & 1 == 0);
    }
    let users = users(flags);
    let (request, len) = match http::parse(rest, &users) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return,
        Err(refusal) => {
            let answer = refusal.encode("no");
            let is_answered =
                refusal == http::Refusal::LastHop && answer.starts_with(b"HTTP/1.1 2");
            let is_refused =
                [b"HTTP/1.1 4", b"HTTP/1.1 5"].iter().any(|line| answer.starts_with(*line));
            assert!(is_answered || is_refused);
            return;
        }
    };
    assert!(flags & 1 == 0 || rest[..len].to_ascii_lowercase().windows(6).any(|w| w == b"basic "));
    assert_eq!(http::parse(&rest[..len], &users).ok().flatten().map(|(_, len)| len), Some(len));
    let short = usize::from(u16::from_le_bytes([cut, more])) % len;
    let partial = http::parse(&rest[..short], &users);
    assert!(matches!(partial, Ok(None)), "{short} of {len} bytes: {partial:?}");
    match request {
        http::Request::Connect(target) => check_target(&target),
        http::Request::Forward(forward) => {
            check_target(&forward.target);
            check_request(&forward);
            let again = http::parse(rest, &users);
            let Ok(Some((http::Request::Forward(other), _))) = again else {
                panic!("the second parse gives another request");
            };
            check_body(&rest[len..], seed, forward.body, other.body);
        }
    }
}

/// An origin's answer through the HTTP proxy: the client's answer has one end.
fn answer(data: &[u8], flags: u8, whole: bool) {
    let bit = |bit: u8| flags & bit != 0;
    let (is_head, upgrades, closes) = (bit(2), bit(4), bit(8));
    let info = RequestInfo {
        minor: u8::from(bit(16)),
        is_head,
        upgrades,
        closes,
        ..RequestInfo::default()
    };
    let Ok(Some((answer, len))) = http::Answer::parse(data, &info, whole) else { return };
    for short in [len - 1, len / 2] {
        let partial = http::Answer::parse(&data[..short], &info, whole);
        assert!(matches!(partial, Ok(None)), "{short} of {len} bytes: {partial:?}");
    }
    assert!(upgrades || answer.follows != Follows::Upgrade);
    if answer.head.is_empty() {
        assert!(!bit(16) && answer.follows == Follows::Head);
        return;
    }
    let (first, fields) = lines_of(&answer.head);
    assert!(first.starts_with(b"HTTP/1.1 ") && first[9..12].iter().all(u8::is_ascii_digit));
    let all = |name: &str| of_name(&fields, name);
    for ours in
        ["proxy-authenticate", "proxy-authorization", "proxy-connection", "keep-alive", "te"]
    {
        assert!(all(ours).is_empty(), "{ours} goes to the client");
    }
    assert!(
        all("via").ends_with(&[&b"1.1 linerate"[..]]) || all("via").ends_with(&[b"1.0 linerate"])
    );
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    assert!(lengths.len() <= 1 && (lengths.is_empty() || codings.is_empty()));
    let says_close = all("connection").iter().any(|value| value.ends_with(b"close"));
    assert_eq!(says_close, !answer.client_stays);
    match answer.follows {
        Follows::Body(Body::Bytes(len)) if !is_head && len > 0 => {
            assert_eq!(lengths, [len.to_string().as_bytes()]);
        }
        Follows::Body(Body::Bytes(_)) | Follows::Head | Follows::Upgrade => {}
        Follows::Contents(_) => assert!(codings.is_empty() && !bit(16)),
        Follows::Body(Body::Chunks(_)) => assert!(!codings.is_empty() && bit(16)),
        Follows::UntilClose => assert!(!answer.client_stays && !answer.origin_stays),
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

type Field = (Vec<u8>, Vec<u8>);

/// A strict parser of a head (RFC 9112): its first line and its fields.
fn lines_of(head: &[u8]) -> (&[u8], Vec<Field>) {
    let end = find(head, b"\r\n\r\n").expect("a head ends");
    assert_eq!(end + 4, head.len(), "bytes follow the head");
    let bare = |byte: u8| byte == b'\r' || byte == b'\n' || byte == 0;
    let mut lines = Vec::new();
    let mut rest = &head[..end + 2];
    while let Some(at) = find(rest, b"\r\n") {
        assert!(!rest[..at].iter().copied().any(bare), "a line in a line");
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    let mut fields = Vec::new();
    for line in &lines[1..] {
        let colon = line.iter().position(|byte| *byte == b':').expect("a field has a name");
        let name = line[..colon].to_ascii_lowercase();
        assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_whitespace));
        fields.push((name, line[colon + 1..].trim_ascii().to_vec()));
    }
    (lines[0], fields)
}

fn of_name<'a>(fields: &'a [Field], name: &str) -> Vec<&'a [u8]> {
    let named = fields.iter().filter(|field| field.0 == name.as_bytes());
    named.map(|field| &field.1[..]).collect()
}

/// Checks the request for the origin.
fn check_request(forward: &http::Forward) {
    let (first, fields) = lines_of(&forward.head);
    let mut words = first.split(|byte| *byte == b' ');
    let [method, path, version] = [(); 3].map(|()| words.next().expect("three words"));
    assert_eq!(words.next(), None);
    assert!(!method.is_empty());
    assert!(path.starts_with(b"/") || (method, path) == (b"OPTIONS", b"*"));
    assert_eq!(version, b"HTTP/1.1");
    let all = |name: &str| of_name(&fields, name);
    let connection: &[&[u8]] = match (forward.info.upgrades, forward.info.closes) {
        (true, _) => &[b"Upgrade"],
        (_, true) => &[b"close"],
        _ => &[],
    };
    assert_eq!((all("host").len(), &all("connection")[..]), (1, connection));
    assert_eq!(all("upgrade").is_empty(), !forward.info.upgrades);
    for ours in ["proxy-authorization", "proxy-connection", "keep-alive", "te"] {
        assert!(all(ours).is_empty(), "{ours} goes to the origin");
    }
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    match &forward.body {
        Body::Chunks(_) => {
            assert!(lengths.is_empty());
            assert_eq!(codings.concat().to_ascii_lowercase(), b"chunked");
        }
        Body::Bytes(len) => {
            assert!(codings.is_empty());
            let words = lengths.iter().flat_map(|words| words.split(|byte| *byte == b','));
            let report: Vec<u64> = words
                .map(|word| str::from_utf8(word).expect("a number").trim().parse().expect("one"))
                .collect();
            assert!(report.iter().all(|report| report == len), "{report:?}, not {len}");
            assert!(*len == 0 || !report.is_empty());
        }
    }
}

/// A body ends at the same place whole and in pieces.
fn check_body(bytes: &[u8], seed: u8, mut whole: Body, mut cut: Body) {
    let all = whole.handle_input(bytes).ok();
    let (mut at, mut is_over) = (0, false);
    let mut failed = false;
    for piece in pieces(bytes, seed) {
        match cut.handle_input(piece) {
            Ok((taken, over)) => {
                assert!(taken == piece.len() || over, "a piece is left");
                (at, is_over) = (at + taken, over);
            }
            Err(_) => failed = true,
        }
        if is_over || failed {
            break;
        }
    }
    match all {
        Some((taken, over)) if !bytes.is_empty() => assert_eq!((at, is_over), (taken, over)),
        Some(_) => {}
        None => assert!(failed, "only the undivided body is refused"),
    }
}

/// An answer of a name server: arbitrary, or to a question.
pub fn dns(data: &[u8]) {
    let mut rest = data;
    let [kind, name_len, flags, count] = take(&mut rest);
    let record = if kind & 1 == 0 { Record::A } else { Record::Aaaa };
    let (name, rest) = rest.split_at(usize::from(name_len).min(rest.len()));
    let name = String::from_utf8_lossy(name);
    let name = if kind & 2 == 0 { "www.example" } else { &*name };
    let Some(query) = Query::new(0x1234, name, record) else { return };
    let bytes = query.as_bytes();
    check_question(bytes, name);
    if kind & 4 != 0 {
        query.answer(rest);
        return;
    }
    let mut message = bytes.to_vec();
    message[2] |= 0x80;
    message[3] = flags;
    message[7] = count;
    let records = message.len();
    message.extend_from_slice(rest);
    let answer = query.answer(&message).expect("it is an answer to the question");
    let expected = match flags & 0xf {
        0 => records_of(&message[records..], count, record),
        3 => Answer::NoSuchName,
        _ => Answer::Failed,
    };
    assert_eq!(answer, expected);
}

fn check_question(text: &[u8], name: &str) {
    let (mut at, mut labels) = (12, Vec::new());
    while text[at] != 0 {
        let end = at + 1 + usize::from(text[at]);
        labels.push(&text[at + 1..end]);
        at = end;
    }
    assert_eq!(labels.join(&b'.'), name.strip_suffix('.').unwrap_or(name).as_bytes());
    assert_eq!(text.len(), at + 5);
    assert!(at + 1 - 12 <= 255);
}

/// A strict parser for comparison (RFC 1035 section 4.1.3).
fn records_of(text: &[u8], count: u8, record: Record) -> Answer {
    let (mut rest, mut addresses, mut least) = (text, Vec::new(), u32::MAX);
    for _ in 0..count {
        let Some((kind, class, seconds, data, behind)) = one_record(rest) else {
            return Answer::Failed;
        };
        rest = behind;
        least = least.min(seconds);
        if kind != record as u16 || class != 1 || addresses.len() == 16 {
            continue;
        }
        let v4 = <[u8; 4]>::try_from(data).map(IpAddr::from).ok();
        let v6 = <[u8; 16]>::try_from(data).map(IpAddr::from).ok();
        match if record == Record::A { v4 } else { v6 } {
            Some(address) => addresses.push(address),
            None => return Answer::Failed,
        }
    }
    Answer::Addresses(addresses, if count == 0 { 0 } else { least })
}

type One<'a> = (u16, u16, u32, &'a [u8], &'a [u8]);

fn one_record(mut text: &[u8]) -> Option<One<'_>> {
    loop {
        let (&len, rest) = text.split_first()?;
        match len {
            0 => text = rest,
            0xc0.. => text = rest.get(1..)?,
            1..64 => {
                text = rest.get(usize::from(len)..)?;
                continue;
            }
            64.. => return None,
        }
        break;
    }
    let fixed: &[u8; 10] = text.first_chunk()?;
    let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let seconds = u32::from(short(4)) << 16 | u32::from(short(6));
    let (data, rest) = text[10..].split_at_checked(short(8).into())?;
    Some((short(0), short(2), seconds, data, rest))
}
