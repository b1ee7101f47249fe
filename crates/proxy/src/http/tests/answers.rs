use super::super::*;

const GET: RequestInfo =
    RequestInfo { minor: 1, is_head: false, is_idempotent: true, upgrades: false, closes: false };

fn answer_to(info: &RequestInfo, text: &str) -> Result<Option<Answer>, Refusal> {
    let whole = Answer::parse(text.as_bytes(), info, true)?;
    let Some((answer, len)) = whole else { return Ok(None) };
    for cut in 0..len {
        let part = Answer::parse(&text.as_bytes()[..cut], info, true);
        assert_eq!(part, Ok(None), "cut at {cut}: {text:?}");
    }
    Ok(Some(answer))
}

fn answer(info: &RequestInfo, text: &str) -> (String, Answer) {
    let answer = answer_to(info, text).unwrap().unwrap_or_else(|| panic!("{text:?} is whole"));
    (String::from_utf8(answer.head.clone()).unwrap(), answer)
}

#[test]
fn answer_is_forwarded_without_hop_by_hop_fields_and_connections_persist() {
    let (head, answer) = answer(
        &GET,
        "HTTP/1.1 200 Fine\r\nConnection: keep-alive, X-Private\r\nKeep-Alive: timeout=5\r\n\
         X-Private: 1\r\nProxy-Connection: x\r\nProxy-Authenticate: Basic\r\n\
         Proxy-Authentication-Info: x\r\nContent-Length : 5\r\nVia: 1.0 other\r\nETag: \"x\"\r\n\r\n",
    );
    let expected = "HTTP/1.1 200 Fine\r\nVia: 1.0 other\r\nETag: \"x\"\r\nContent-Length: 5\r\n\
                    Via: 1.1 linerate\r\n\r\n";
    assert_eq!((head.as_str(), answer.follows), (expected, Follows::Body(Body::Bytes(5))));
    assert!(answer.client_stays && answer.origin_stays);
}

#[test]
fn answer_framing_decides_which_connections_persist() {
    let chunks = || Follows::Body(Body::Chunks(Chunks::default()));
    let none = || Follows::Body(Body::Bytes(0));
    let head = RequestInfo { is_head: true, ..GET };
    for (info, text, follows, client, origin) in [
        (GET, "1.1 200 x\r\nContent-Length: 3\r\n", Follows::Body(Body::Bytes(3)), true, true),
        (GET, "1.0 200 x\r\nContent-Length: 3\r\n", Follows::Body(Body::Bytes(3)), true, false),
        (GET, "1.1 200 x\r\nConnection: close\r\nContent-Length: 0\r\n", none(), true, false),
        (GET, "1.1 200 x\r\nTransfer-Encoding: chunked\r\n", chunks(), true, true),
        (GET, "1.1 200 x\r\nTransfer-Encoding: gzip, Chunked\r\n", chunks(), true, true),
        (GET, "1.1 200 x\r\nTransfer-Encoding: gzip\r\n", Follows::UntilClose, false, false),
        (GET, "1.1 200 x\r\n", Follows::UntilClose, false, false),
        (
            GET,
            "1.1 200 x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            chunks(),
            true,
            false,
        ),
        (GET, "1.1 204 x\r\n", none(), true, true),
        (GET, "1.1 304 x\r\nContent-Length: 7\r\n", none(), true, true),
        (head, "1.1 200 x\r\nContent-Length: 7\r\n", none(), true, true),
        (head, "1.1 200 x\r\nTransfer-Encoding: chunked\r\n", none(), true, true),
        (RequestInfo { closes: true, ..GET }, "1.1 204 x\r\n", none(), false, true),
    ] {
        let (head, answer) = answer(&info, &format!("HTTP/{text}\r\n"));
        assert_eq!(answer.follows, follows, "{text}");
        assert_eq!((answer.client_stays, answer.origin_stays), (client, origin), "{text}");
        assert_eq!(head.contains("\r\nConnection: close\r\n"), !client, "{head}");
        assert!(head.starts_with("HTTP/1.1 "), "{head}");
    }
}

#[test]
fn answer_before_the_end_of_the_request_closes_both_connections() {
    let text = b"HTTP/1.1 401 no\r\nContent-Length: 5\r\n\r\n";
    let (answer, _) = Answer::parse(text, &GET, false).unwrap().unwrap();
    assert!(!answer.client_stays && !answer.origin_stays);
    assert!(answer.head.windows(17).any(|part| part == b"Connection: close"));
}

#[test]
fn content_length_is_forwarded_only_without_a_transfer_coding() {
    let head = RequestInfo { is_head: true, ..GET };
    for (info, text, expected) in [
        (head, "200 x\r\nContent-Length: 7\r\n", "Content-Length: 7"),
        (GET, "304 x\r\nContent-Length: 7, 7\r\n", "Content-Length: 7"),
        (
            GET,
            "200 x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked",
        ),
        (GET, "204 x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n", ""),
    ] {
        let (head, _) = answer(&info, &format!("HTTP/1.1 {text}\r\n"));
        let fields = head.split("\r\n").filter(|line| {
            line.starts_with("Content-Length") || line.starts_with("Transfer-Encoding")
        });
        assert_eq!(fields.collect::<String>(), expected, "{text}");
    }
}

#[test]
fn invalid_answer_is_refused() {
    let long = format!("HTTP/1.1 200 x\r\nX: {}", "x".repeat(HEAD_MAX));
    let words = format!("HTTP/1.1 204 x\r\nConnection: {}x\r\n\r\n", "x,".repeat(FIELDS_MAX));
    for text in [
        "SSH-2.0-x\r\n\r\n",
        "HTTP/2 200 x\r\n\r\n",
        "HTTP/1.1 099 x\r\n\r\n",
        "HTTP/1.1 200 x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 x\r\nContent-Length: 5, 6\r\n\r\n",
        "HTTP/1.1 200 x\r\nContent-Length: +5\r\n\r\n",
        "HTTP/1.1 304 x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
        "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        "HTTP/1.1 200 x\r\nX: y\r\n folded\r\n\r\n",
        "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        &long,
        &words,
    ] {
        let shown = &text[..text.len().min(60)];
        assert_eq!(answer_to(&GET, text), Err(Refusal::BadGateway), "{shown:?}");
    }
}

#[test]
fn interim_answers_pass_and_101_only_after_an_upgrade_request() {
    let (head, interim) =
        answer(&GET, "HTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(interim.follows, Follows::Head);
    assert_eq!(head, "HTTP/1.1 103 Early Hints\r\nLink: x\r\nVia: 1.1 linerate\r\n\r\n");
    let upgrades = RequestInfo { upgrades: true, ..GET };
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                    Connection: keep-alive, upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n";
    let early = Answer::parse(switched.as_bytes(), &upgrades, false);
    assert_eq!(early, Err(Refusal::BadGateway), "before the end of the request");
    let (head, switched) = answer(&upgrades, switched);
    assert_eq!(switched.follows, Follows::Upgrade);
    let expected = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Accept: x\r\nVia: 1.1 linerate\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(head, expected);
    let required =
        "HTTP/1.1 426 x\r\nUpgrade: TLS/1.0\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n";
    let (head, _) = answer(&GET, required);
    assert!(
        head.contains("\r\nUpgrade: TLS/1.0\r\n") && head.contains("\r\nConnection: Upgrade\r\n")
    );
    let (head, _) = answer(&GET, "HTTP/1.1 200 x\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n");
    assert!(!head.contains("Upgrade"), "{head}");
}

#[test]
fn http_1_0_client_gets_neither_chunks_nor_interim_answers() {
    let old = RequestInfo { minor: 0, closes: true, ..GET };
    let (head, answer_) = answer(&old, "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(answer_.follows, Follows::Contents(Chunks::default()));
    assert_eq!(head, "HTTP/1.1 200 x\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\n");
    let (head, interim) = answer(&old, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!((head.as_str(), interim.follows), ("", Follows::Head));
    let coded = answer_to(&old, "HTTP/1.1 200 x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
    assert_eq!(coded, Err(Refusal::BadGateway));
}
