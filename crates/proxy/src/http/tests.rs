mod answers;

use proptest::{collection, prelude::*, sample};
use zeroize::Zeroizing;

use super::*;

fn parsed(text: &str) -> Result<Option<(Request, usize)>, Refusal> {
    let whole = parse(text.as_bytes(), &Users::default());
    if let Ok(Some((_, len))) = &whole {
        for cut in 0..*len {
            let part = parse(&text.as_bytes()[..cut], &Users::default());
            assert_eq!(part, Ok(None), "cut at {cut}: {text:?}");
        }
    }
    whole
}

fn forward(text: &str) -> Forward {
    match parsed(text) {
        Ok(Some((Request::Forward(forward), _))) => forward,
        other => panic!("{text:?}: {other:?}"),
    }
}

fn forwarded(text: &str) -> (String, String, Body) {
    let Forward { target, head, body, .. } = forward(text);
    (target.to_string(), String::from_utf8(head).unwrap(), body)
}

#[test]
fn connect_needs_a_host_and_a_port() {
    for (request_target, target) in [
        ("a.example:443", "a.example:443"),
        ("[fd00::1]:22", "[fd00::1]:22"),
        ("10.0.0.1:1", "10.0.0.1:1"),
    ] {
        let text =
            format!("CONNECT {request_target} HTTP/1.1\r\nHost: {request_target}\r\n\r\nearly");
        let target = Target::parse(target, None).unwrap();
        assert_eq!(parsed(&text), Ok(Some((Request::Connect(target), text.len() - 5))));
    }
    for request_target in ["a.example", "http://a.example/", "a:b", "/"] {
        assert_eq!(
            parsed(&format!("CONNECT {request_target} HTTP/1.1\r\n\r\n")),
            Err(Refusal::BadRequest)
        );
    }
}

#[test]
fn forwarded_request_has_its_path_and_no_hop_by_hop_fields() {
    let (target, head, body) = forwarded(
        "GET http://a.example:81/p?q HTTP/1.1\r\nHost: evil\r\nProxy-Connection: keep-alive\r\n\
         Connection: keep-alive, X-Private\r\nX-Private: 1\r\nAccept: */*\r\nTE: trailers\r\n\
         Proxy-Authorization: Basic x\r\n\r\n",
    );
    assert_eq!(target, "a.example:81");
    let expected = "GET /p?q HTTP/1.1\r\nHost: a.example:81\r\nAccept: */*\r\n\
                    Via: 1.1 linerate\r\n\r\n";
    assert_eq!((head.as_str(), body), (expected, Body::Bytes(0)));
    let (target, head, _) = forwarded("OPTIONS HTTP://[fd00::1]?x HTTP/1.0\r\nVia: 1.1 a\r\n\r\n");
    assert_eq!(target, "[fd00::1]:80");
    let expected = "OPTIONS /?x HTTP/1.1\r\nHost: [fd00::1]\r\nVia: 1.1 a\r\n\
                    Connection: close\r\nVia: 1.0 linerate\r\n\r\n";
    assert_eq!(head, expected);
}

/// RFC 9112, section 3.2.4.
#[test]
fn options_without_a_path_becomes_an_asterisk() {
    for (request_target, path) in
        [("http://a", "*"), ("http://a:81", "*"), ("http://a/", "/"), ("http://a?x", "/?x")]
    {
        let (_, head, _) =
            forwarded(&format!("OPTIONS {request_target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(head.starts_with(&format!("OPTIONS {path} HTTP/1.1\r\n")), "{head}");
        let (_, head, _) = forwarded(&format!("GET {request_target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(head.starts_with("GET /"), "{head}");
    }
}

/// RFC 9110, section 7.6.2.
#[test]
fn max_forwards_is_decremented_for_options_and_trace() {
    let of = |method: &str, hops: &str| {
        parsed(&format!("{method} http://a/ HTTP/1.1\r\nMax-Forwards: {hops}\r\n\r\n"))
    };
    for (method, refusal) in [("OPTIONS", Refusal::LastHop), ("TRACE", Refusal::NotImplemented)] {
        assert_eq!(of(method, "0"), Err(refusal));
        let Ok(Some((Request::Forward(forward), _))) = of(method, "10") else { panic!("{method}") };
        let head = String::from_utf8(forward.head).unwrap();
        assert!(head.contains("\r\nMax-Forwards: 9\r\n"), "{head}");
    }
    for (method, hops) in [("GET", "0"), ("OPTIONS", "x"), ("TRACE", "-1")] {
        let Ok(Some((Request::Forward(forward), _))) = of(method, hops) else { panic!("{method}") };
        let head = String::from_utf8(forward.head).unwrap();
        assert!(head.contains(&format!("\r\nMax-Forwards: {hops}\r\n")), "{head}");
    }
    assert!(Refusal::LastHop.encode("yes").starts_with(b"HTTP/1.1 200 OK\r\n"));
}

#[test]
fn upgrade_needs_both_fields_and_http_1_1() {
    let handshake = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                     Sec-WebSocket-Key: x\r\n";
    let forward = |version: &str, fields: &str| {
        forward(&format!("GET ws://a/chat HTTP/{version}\r\n{fields}\r\n"))
    };
    let whole = forward("1.1", handshake);
    assert_eq!((whole.target.to_string(), whole.info.upgrades), ("a:80".to_owned(), true));
    let expected = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Key: x\r\nConnection: Upgrade\r\nVia: 1.1 linerate\r\n\r\n";
    assert_eq!(String::from_utf8(whole.head).unwrap(), expected);
    for (version, fields) in
        [("1.0", handshake), ("1.1", "Upgrade: websocket\r\n"), ("1.1", "Connection: upgrade\r\n")]
    {
        let other = forward(version, fields);
        let head = String::from_utf8(other.head).unwrap();
        assert!(!other.info.upgrades && !head.contains("pgrade"), "{head}");
    }
}

#[test]
fn connection_persists_unless_close_or_http_1_0() {
    for (version, fields, closes) in [
        ("1.1", "", false),
        ("1.1", "Proxy-Connection: keep-alive\r\n", false),
        ("1.1", "Connection: x, Close\r\n", true),
        ("1.1", "Proxy-Connection: close\r\n", true),
        ("1.0", "Connection: keep-alive\r\n", true),
    ] {
        let forward = forward(&format!("GET http://a/ HTTP/{version}\r\n{fields}\r\n"));
        assert_eq!(forward.info.closes, closes, "{version} {fields}");
        let head = String::from_utf8(forward.head).unwrap();
        assert_eq!(head.contains("\r\nConnection: close\r\n"), closes, "{head}");
    }
}

#[test]
fn expect_is_forwarded_except_from_http_1_0() {
    for (version, expects) in [("1.1", true), ("1.0", false)] {
        let text = format!("PUT http://a/ HTTP/{version}\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(forwarded(&text).1.contains("Expect: 100-continue"), expects, "{version}");
    }
}

#[test]
fn invalid_proxy_request_is_refused() {
    let long = format!("GET http://a/ HTTP/1.1\r\nX: {}", "x".repeat(HEAD_MAX));
    let words = "x,".repeat(FIELDS_MAX);
    let words = format!("GET http://a/ HTTP/1.1\r\nConnection: {words}x\r\n\r\n");
    for (text, refusal) in [
        ("GET / HTTP/1.1\r\n\r\n", Refusal::BadRequest),
        ("GET https://a/ HTTP/1.1\r\n\r\n", Refusal::NotImplemented),
        ("GET ftp://a/ HTTP/1.1\r\n\r\n", Refusal::NotImplemented),
        ("GET http://user@a/ HTTP/1.1\r\n\r\n", Refusal::BadRequest),
        ("\u{5}\u{1}\u{0}", Refusal::BadRequest),
        ("GET http://a/ HTTP/1.1\r\nX y\r\n\r\n", Refusal::BadRequest),
        ("GET wss://a/ HTTP/1.1\r\n\r\n", Refusal::NotImplemented),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::BadRequest),
        ("GET http://a/ HTTP/1.1\r\nX : y\r\n\r\n", Refusal::BadRequest),
        ("GET http://a/ HTTP/1.1\r\nX: y\r\n z\r\n\r\n", Refusal::BadRequest),
        (&long, Refusal::TooLarge),
        (&words, Refusal::BadRequest),
    ] {
        assert_eq!(parsed(text), Err(refusal), "{:?}", &text[..text.len().min(60)]);
    }
}

#[test]
fn conflicting_body_lengths_are_refused() {
    let body = |fields: &str| match parsed(&format!("POST http://a/ HTTP/1.1\r\n{fields}\r\n")) {
        Ok(Some((Request::Forward(forward), _))) => Ok(forward.body),
        Err(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    };
    assert_eq!(body("Content-Length: 5\r\n"), Ok(Body::Bytes(5)));
    assert_eq!(body("Content-Length: 5, 5\r\n"), Ok(Body::Bytes(5)));
    assert_eq!(body("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunks(Chunks::default())));
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    ] {
        assert_eq!(body(fields), Err(Refusal::BadRequest), "{fields}");
    }
    let in_1_0 = "POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parsed(in_1_0), Err(Refusal::BadRequest));
    let gzip = body("Transfer-Encoding: gzip, chunked\r\n");
    assert_eq!(gzip, Err(Refusal::NotImplemented));
    // `Connection` cannot take the length away.
    let (_, head, _) = forwarded(
        "POST http://a/ HTTP/1.1\r\nContent-Length: 5\r\nConnection: content-length\r\n\r\n",
    );
    assert!(head.contains("Content-Length: 5"), "{head}");
    // Equal lengths become one.
    let (_, head, _) =
        forwarded("POST http://a/ HTTP/1.1\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\n");
    assert!(head.contains("\r\nContent-Length: 5\r\n"), "{head}");
    assert_eq!(head.matches("Content-Length").count(), 1, "{head}");
}

/// The field would be forwarded, and the origin might read a length from it.
#[test]
fn non_utf8_length_or_coding_is_refused() {
    for (fields, refusal) in [
        (&b"Content-Length: 5\r\nContent-Length: 6\xff\r\n"[..], Refusal::BadRequest),
        (b"Content-Length: 5, \xff\r\n", Refusal::BadRequest),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: \xff\r\n", Refusal::NotImplemented),
    ] {
        let text = [b"POST http://a/ HTTP/1.1\r\n", fields, b"\r\n"].concat();
        assert_eq!(parse(&text, &Users::default()), Err(refusal), "{}", fields.escape_ascii());
    }
}

#[test]
fn body_ends_at_its_length_before_the_next_request() {
    let chunked = b"5;x=y\r\nhello\r\n0a\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n";
    for (body, text) in [
        (Body::Bytes(5), &b"hello"[..]),
        (Body::Chunks(Chunks::default()), chunked),
        (Body::Chunks(Chunks::default()), b"0\r\n\r\n"),
    ] {
        let both = [text, b"GET http://b/"].concat();
        let mut whole = body;
        let mut piecewise = Body::Bytes(0);
        if let Body::Chunks(_) = whole {
            piecewise = Body::Chunks(Chunks::default());
        } else if let Body::Bytes(len) = whole {
            piecewise = Body::Bytes(len);
        }
        assert_eq!(whole.handle_input(&both).unwrap(), (text.len(), true));
        for (at, byte) in text.iter().enumerate() {
            let step = piecewise.handle_input(&[*byte]).unwrap();
            assert_eq!(step, (1, at + 1 == text.len()), "byte {at}");
        }
    }
    for text in
        [&b"x"[..], b"\n", b"\r\n", b";x\n", b"5\r\nhelloo", b"11111111111111111", b"-1\r\n"]
    {
        assert!(Body::Chunks(Chunks::default()).handle_input(text).is_err(), "{text:?}");
    }
}

/// Other parsers may accept a bare line feed or carriage return as the end of a line, or as a part of
/// the line.
#[test]
fn chunk_lines_without_crlf_are_refused() {
    for text in [
        &b"5\nhello\r\n0\r\n\r\n"[..],
        b"5;x\nhello\r\n0\r\n\r\n",
        b"5;x\ry\r\nhello",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"0\r\nTrailer: 1\n\r\n",
        b"0\r\nTrailer: 1\r2\r\n\r\n",
        b"0\r\n\n",
    ] {
        let handled = Body::Chunks(Chunks::default()).handle_input(text);
        assert!(handled.is_err(), "{}", text.escape_ascii());
    }
}

#[test]
fn chunk_extensions_and_trailers_are_limited() {
    for begin in ["5;", "0\r\nTrailer: "] {
        let mut chunks = Body::Chunks(Chunks::default());
        chunks.handle_input(begin.as_bytes()).unwrap();
        chunks.handle_input(&vec![b'x'; HEAD_MAX - 64]).unwrap();
        assert!(chunks.handle_input(&[b'x'; 100]).is_err(), "{begin}");
    }
}

#[test]
fn limit_of_extensions_applies_to_each_chunk() {
    let mut chunks = Body::Chunks(Chunks::default());
    let chunk = format!("1{};x=y\r\n.\r\n", " ".repeat(100));
    for _ in 0..HEAD_MAX / 50 {
        let taken = chunks.handle_input(chunk.as_bytes());
        assert_eq!(taken.unwrap(), (chunk.len(), false));
    }
    chunks.handle_input(b"0;").unwrap();
    chunks.handle_input(&vec![b'x'; HEAD_MAX - 64]).unwrap();
    let trailer = format!("\r\nTrailer: {}\r\n\r\n", "x".repeat(HEAD_MAX - 64));
    assert!(chunks.handle_input(trailer.as_bytes()).unwrap().1, "the trailer has its own limit");
}

#[test]
fn decoded_chunks_move_to_the_front() {
    let mut body = Chunks::default();
    let mut bytes = *b"5;x=y\r\nhello\r\n2\r\n, \r\n5\r\nwo";
    let decoded = body.decode(&mut bytes).unwrap();
    assert_eq!((decoded.taken, decoded.is_over), (bytes.len(), false));
    assert_eq!(&bytes[..decoded.contents], b"hello, wo");
    let mut bytes = *b"rld\r\n0\r\n\r\nHTTP";
    let decoded = body.decode(&mut bytes).unwrap();
    assert_eq!((decoded.taken, decoded.is_over), (bytes.len() - 4, true));
    assert_eq!(&bytes[..decoded.contents], b"rld");
}

#[test]
fn basic_authentication_accepts_only_the_right_credentials() {
    let mut users = Users::default();
    users.add("ann".into(), Zeroizing::new("p:w\u{ff}".into()));
    let authenticate = |field: &str| {
        let text = format!("CONNECT a:1 HTTP/1.1\r\n{field}\r\n");
        parse(text.as_bytes(), &users).map(|request| request.is_some())
    };
    // "ann:p:wÿ" and "ann:p:w"
    assert_eq!(authenticate("proxy-authorization: basic YW5uOnA6d8O/\r\n"), Ok(true));
    for field in [
        "",
        "Proxy-Authorization: Basic YW5uOnA6dw==\r\n",
        "Proxy-Authorization: Bearer YW5uOnA6d8O/\r\n",
        "Proxy-Authorization: Basic %%%\r\n",
        "Authorization: Basic YW5uOnA6d8O/\r\n",
    ] {
        assert_eq!(authenticate(field), Err(Refusal::AuthenticationRequired), "{field}");
    }
    let answer = String::from_utf8(Refusal::AuthenticationRequired.encode("who?")).unwrap();
    assert!(answer.contains("\r\nProxy-Authenticate: Basic "), "{answer}");
    assert!(answer.contains("\r\nContent-Length: 5\r\n") && answer.ends_with("\r\n\r\nwho?\n"));
}

/// Pieces of requests.
const PIECES: [&str; 16] = [
    "GET ",
    "CONNECT ",
    "http://",
    "a.example",
    "[fd00::1]",
    ":80",
    "/",
    "?",
    " HTTP/1.1\r\n",
    "Host: a\r\n",
    "Content-Length: ",
    "7",
    "Transfer-Encoding: chunked\r\n",
    "\r\n",
    ":",
    "\0",
];

proptest! {
    #[test]
    fn forwarded_head_has_one_host_and_one_end(
        pieces in collection::vec(sample::select(&PIECES[..]), 0..24),
    ) {
        let text = pieces.concat();
        if let Ok(Some((Request::Forward(forward), len))) = parse(text.as_bytes(), &Users::default()) {
            prop_assert!(len <= text.len());
            let head = String::from_utf8(forward.head).unwrap();
            prop_assert_eq!(head.find("\r\n\r\n"), Some(head.len() - 4), "{}", head);
            prop_assert_eq!(head.matches("Host:").count(), 1);
        }
    }

    #[test]
    fn chunk_parser_result_does_not_depend_on_the_split(
        bytes in collection::vec(sample::select(&b"0159af\r\n;x"[..]), 0..64),
        cut in 0..64_usize,
    ) {
        let mut whole = Body::Chunks(Chunks::default());
        let mut parts = Body::Chunks(Chunks::default());
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let parts = match parts.handle_input(first) {
            Ok((_, false)) => parts.handle_input(second).map(|(len, ends)| (first.len() + len, ends)),
            ended => ended,
        };
        prop_assert_eq!(whole.handle_input(&bytes).ok(), parts.ok());
    }
}
