//! Clients with persistent connections to the HTTP proxy, and clients that close their sending half
//! early.

use std::io::{BufRead, BufReader};
use std::net::Shutdown;

use super::*;

/// Requests over one connection.
const REQUESTS: usize = 200;

#[test]
fn a_persistent_connection_gets_all_answers_of_all_origins() {
    let world = with_proxy("");
    services::origin(&world.right.host, "[::]:81");
    world.left.inside(|| {
        let stream = TcpStream::connect("127.0.0.1:8080").expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let mut client = BufReader::new(stream);
        for number in 0..REQUESTS {
            // Two requests for each origin. The second one reuses the connection because it may be
            // sent twice.
            let host = ["10.9.0.2:81", "[fd09::2]:81"][number / 2 % 2];
            let (method, body) = match number % 2 {
                0 => ("POST", format!("body {number}")),
                _ => ("GET", String::new()),
            };
            let request = format!(
                "{method} http://{host}/up HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            client.get_mut().write_all(request.as_bytes()).expect("it reads");
            let (head, answer) = one_answer(&mut client);
            assert!(head.starts_with("HTTP/1.1 200 "), "{number}: {head}");
            assert!(head.contains("Via: 1.1 linerate") && !head.contains("close"), "{head}");
            let (request, seen) = answer.split_once('\n').expect("two lines");
            assert_eq!((request, seen), ((number % 2 + 1).to_string().as_str(), body.as_str()));
        }
    });
}

/// The head and the body of an answer with a length.
fn one_answer(client: &mut impl BufRead) -> (String, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(client.read_line(&mut head).expect("it answers") > 0, "it ended behind {head:?}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.and_then(|len| len.parse().ok()).expect("a length")];
    client.read_exact(&mut body).expect("it answers whole");
    (head, String::from_utf8(body).expect("a text"))
}

#[test]
fn a_client_that_closes_its_half_early_is_answered() {
    let world = with_proxy("Forward = tcp 127.0.0.1:8001 -> 10.9.0.2:80");
    assert_eq!(world.by_socks("http://10.9.0.2/page"), "hello");
    let right = &world.right.host;
    let get = b"GET /page HTTP/1.0\r\n\r\n";
    let socks = [&[5, 1, 0][..], &[5, 1, 0, 1, 10, 9, 0, 2, 0, 80], get].concat();
    let connect = [b"CONNECT 10.9.0.2:80 HTTP/1.1\r\n\r\n", &get[..]].concat();
    let absolute = b"GET http://10.9.0.2/page HTTP/1.1\r\nHost: 10.9.0.2\r\n\r\n";
    for (to, output) in [
        ("127.0.0.1:8080", &absolute[..]),
        ("127.0.0.1:8080", &connect),
        ("127.0.0.1:1080", &socks),
        ("127.0.0.1:8001", get),
    ] {
        // The first SYN is not answered, so connecting takes a second.
        right.run("ip route add blackhole 10.9.0.1/32");
        let mut client = world.left.inside(|| {
            let mut client = TcpStream::connect(to).expect("it listens");
            client.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
            client.write_all(output).expect("it reads");
            client.shutdown(Shutdown::Write).expect("half of it can end");
            client
        });
        std::thread::sleep(Duration::from_millis(300));
        right.run("ip route del blackhole 10.9.0.1/32");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("it answers");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.ends_with("hello"), "{to}: {text:?}");
    }
}
