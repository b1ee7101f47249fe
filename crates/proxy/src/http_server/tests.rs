//! Clients over sockets, origins in memory, on virtual time.

use std::sync::PoisonError;

use sys::process::OpenFiles;
use tokio::{
    io::DuplexStream,
    net::UnixStream,
    runtime::Builder,
    task::{JoinHandle, yield_now},
    time::sleep,
};

use super::*;
use crate::{
    capacity::Capacity,
    connections::{Connections, Source},
    dial::Dialer,
    identity::Identity,
    reach::Reach,
    testing::{Memory, Way, connected},
    users::Users,
};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const CLIENT: Client = Client::User(1);
const SECOND: Duration = Duration::from_secs(1);

/// A client of a proxy, and all origins.
struct World {
    client: Stream,
    gate: Arc<Gate<Memory>>,
    serving: JoinHandle<io::Result<()>>,
}

impl World {
    async fn new() -> Self {
        let (client, here) = UnixStream::pair().unwrap();
        Self::with(Stream::Unix(client), Stream::Unix(here)).await
    }

    async fn with(client: Stream, here: Stream) -> Self {
        let ways =
            [(A, Way::Open), (B, Way::Open), ("10.0.0.3", Way::Closed), ("10.0.0.4", Way::Late)];
        let reach = Reach::new(Arc::new(Identity::of(vec![[10, 0, 0, 9].into()])), |_| true);
        let dialer = Dialer::new(Arc::new(Memory::new(&ways)), reach, Default::default(), 9);
        let connections = Connections::new(Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0));
        let connection = connections.admit(Group::Asking, Source::Client(CLIENT), 1).unwrap();
        let gate = Gate { dialer: Arc::new(dialer), users: Users::default(), connections };
        let gate = Arc::new(gate);
        let serving = tokio::spawn(serve(gate.clone(), here, CLIENT, connection));
        Self { client, gate, serving }
    }

    async fn say(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next bytes for the client.
    async fn expect(&mut self, text: &str) {
        expect(&mut self.client, text).await;
    }

    /// Connections that were made.
    fn dialed(&self) -> usize {
        self.gate.dialer.stack.ends.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The end of the connection that is made next.
    async fn origin(&self) -> DuplexStream {
        while self.dialed() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        self.gate.dialer.stack.ends.lock().unwrap().remove(0).1
    }

    async fn ends(&mut self) {
        assert_eq!(self.client.read(&mut [0]).await.unwrap(), 0, "there is more");
    }
}

async fn expect(stream: &mut (impl AsyncRead + Unpin), text: &str) {
    let mut got = vec![0; text.len()];
    let read = timeout(60 * SECOND, stream.read_exact(&mut got)).await;
    let got = String::from_utf8_lossy(&got);
    assert!(matches!(read, Ok(Ok(_))) && got == text, "{got:?}, not {text:?}: {read:?}");
}

/// What a request is once it has passed.
fn passed(method: &str, path: &str, host: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Via: 1.1 linerate\r\n\r\n")
}

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(work)
}

#[test]
fn one_client_connection_carries_requests_to_several_origins() {
    run(async {
        let mut world = World::new().await;
        world.say(&format!("GET http://{A}/1 HTTP/1.1\r\nHost: {A}\r\n\r\n")).await;
        let mut a = world.origin().await;
        expect(&mut a, &passed("GET", "/1", A, "")).await;
        a.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 3\r\n\r\none").await.unwrap();
        world.expect("HTTP/1.1 200 x\r\nContent-Length: 3\r\nVia: 1.1 linerate\r\n\r\none").await;
        // The origin's connection is kept as well.
        world.say(&format!("HEAD http://{A}/2 HTTP/1.1\r\n\r\n")).await;
        expect(&mut a, &passed("HEAD", "/2", A, "")).await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        world.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        assert_eq!(world.dialed(), 0);
        // A request that must not be sent twice gets a new one.
        let post = format!("POST http://{A}/2 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");
        world.say(&post).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "the first is let go");
        let mut a = world.origin().await;
        expect(&mut a, &(passed("POST", "/2", A, "Content-Length: 4\r\n") + "body")).await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        world.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        // Two at once, to another.
        let get = |path: &str| format!("GET http://{B}/{path} HTTP/1.1\r\n\r\n");
        world.say(&(get("3") + &get("4"))).await;
        let mut b = world.origin().await;
        expect(&mut b, &passed("GET", "/3", B, "")).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "the first is let go");
        let chunks = "Transfer-Encoding: chunked\r\n";
        let body = "5;x\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n";
        b.write_all(format!("HTTP/1.1 200 x\r\n{chunks}\r\n{body}").as_bytes()).await.unwrap();
        world.expect(&format!("HTTP/1.1 200 x\r\n{chunks}Via: 1.1 linerate\r\n\r\n{body}")).await;
        expect(&mut b, &passed("GET", "/4", B, "")).await;
        b.write_all(b"HTTP/1.1 200 x\r\n\r\nuntil the end").await.unwrap();
        drop(b);
        let head = "HTTP/1.1 200 x\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\n";
        world.expect(&format!("{head}until the end")).await;
        world.ends().await;
    });
}

#[test]
fn an_answer_without_a_body_is_over_with_its_head() {
    run(async {
        let mut world = World::new().await;
        for (method, status, length) in
            [("HEAD", "200", "Content-Length: 9\r\n"), ("GET", "304", ""), ("DELETE", "204", "")]
        {
            world.say(&format!("{method} http://{A}/ HTTP/1.1\r\n\r\n")).await;
            let mut a = world.origin().await;
            expect(&mut a, &passed(method, "/", A, "")).await;
            let answer = format!("HTTP/1.1 {status} x\r\n{length}Connection: close\r\n\r\n");
            a.write_all(answer.as_bytes()).await.unwrap();
            let head = format!("HTTP/1.1 {status} x\r\n{length}Via: 1.1 linerate\r\n\r\n");
            world.expect(&head).await;
        }
    });
}

#[test]
fn the_body_comes_after_100_continue_and_not_at_all_after_a_refusal() {
    run(async {
        let mut world = World::new().await;
        let fields = "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n";
        let request = format!("PUT http://{A}/ HTTP/1.1\r\n{fields}\r\n");
        world.say(&request).await;
        let mut a = world.origin().await;
        expect(&mut a, &passed("PUT", "/", A, fields)).await;
        a.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        world.expect("HTTP/1.1 100 Continue\r\nVia: 1.1 linerate\r\n\r\n").await;
        world.say("3\r\nyes\r\n0\r\n\r\n").await;
        expect(&mut a, "3\r\nyes\r\n0\r\n\r\n").await;
        a.write_all(b"HTTP/1.1 201 x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        world.expect("HTTP/1.1 201 x\r\nContent-Length: 0\r\nVia: 1.1 linerate\r\n\r\n").await;
        world.say(&request).await;
        let mut a = world.origin().await;
        expect(&mut a, &passed("PUT", "/", A, fields)).await;
        a.write_all(b"HTTP/1.1 401 x\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        world.expect("HTTP/1.1 401 x\r\nContent-Length: 2\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\nno").await;
        world.ends().await;
    });
}

#[test]
fn another_protocol_goes_both_ways_from_the_first_byte_on() {
    run(async {
        let mut world = World::new().await;
        world
            .say(&format!(
                "GET ws://{A}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            ))
            .await;
        let mut a = world.origin().await;
        let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
        expect(&mut a, &passed("GET", "/", A, fields)).await;
        a.write_all(format!("HTTP/1.1 101 x\r\n{fields}\r\n\u{1}first").as_bytes()).await.unwrap();
        let head =
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nVia: 1.1 linerate\r\nConnection: Upgrade\r\n";
        world.expect(&format!("{head}\r\n\u{1}first")).await;
        world.say("GET / is no request here").await;
        expect(&mut a, "GET / is no request here").await;
        a.write_all(b"HTTP/1.1 200 x is no answer").await.unwrap();
        world.expect("HTTP/1.1 200 x is no answer").await;
        world.client.shutdown().await.unwrap();
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0);
        a.write_all(b"late").await.unwrap();
        drop(a);
        world.expect("late").await;
        world.ends().await;
    });
}

/// RFC 9112, section 9.3.1.
#[test]
fn a_kept_connection_that_ends_costs_no_answer_and_serves_no_request_that_must_not_be_sent_twice() {
    run(async {
        let answer = b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n";
        let seen = "HTTP/1.1 200 x\r\nContent-Length: 0\r\nVia: 1.1 linerate\r\n\r\n";
        let get = format!("GET http://{A}/ HTTP/1.1\r\n\r\n");
        let mut world = World::new().await;
        let mut first = None;
        for _ in 0..2 {
            world.say(&get).await;
            let mut a = match first.take() {
                Some(a) => a,
                None => world.origin().await,
            };
            expect(&mut a, &passed("GET", "/", A, "")).await;
            a.write_all(answer).await.unwrap();
            world.expect(seen).await;
            first = Some(a);
        }
        // It ends as the request comes.
        let mut a = first.unwrap();
        world.say(&get).await;
        expect(&mut a, &passed("GET", "/", A, "")).await;
        drop(a);
        let mut a = world.origin().await;
        expect(&mut a, &passed("GET", "/", A, "")).await;
        a.write_all(answer).await.unwrap();
        world.expect(seen).await;
        // It has ended before: any request goes elsewhere.
        drop(a);
        let mut last = None;
        for (method, fields) in
            [("POST", ""), ("PATCH", "Content-Length: 0\r\n"), ("PUT", "Content-Length: 1\r\n")]
        {
            world.say(&format!("{method} http://{A}/ HTTP/1.1\r\n{fields}\r\n")).await;
            let mut a = world.origin().await;
            expect(&mut a, &passed(method, "/", A, fields)).await;
            if method == "PUT" {
                world.say("x").await;
                expect(&mut a, "x").await;
            }
            a.write_all(answer).await.unwrap();
            world.expect(seen).await;
            last = Some(a);
        }
        // Nor is it kept for long.
        let mut a = last.unwrap();
        sleep(ORIGIN_IDLE + SECOND).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "it is closed");
        // Not even for a request that begins before that time and ends after it.
        world.say(&get).await;
        let mut a = world.origin().await;
        a.write_all(answer).await.unwrap();
        world.expect(seen).await;
        world.say(&get[..10]).await;
        sleep(ORIGIN_IDLE + SECOND).await;
        world.say(&get[10..]).await;
        let mut a = world.origin().await;
        a.write_all(answer).await.unwrap();
        world.expect(seen).await;
    });
}

#[test]
fn a_client_that_has_sent_its_next_request_does_not_make_way_during_the_dial() {
    run(async {
        let mut world = World::new().await;
        world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let answer = b"HTTP/1.1 204 x\r\n\r\n";
        world.origin().await.write_all(answer).await.unwrap();
        let seen = "HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n";
        world.expect(seen).await;
        sleep(60 * SECOND).await;
        world.say("GET http://10.0.0.4/ HTTP/1.1\r\n\r\n").await;
        sleep(SECOND / 2).await;
        let other = Source::Client(Client::User(2));
        let connections = &world.gate.connections;
        let mut others = Vec::new();
        while let Ok(other) = connections.admit(Group::Clients, other, 1) {
            others.push(other);
        }
        let newcomer = connections.admit(Group::Clients, Source::Client(CLIENT), 1);
        assert!(newcomer.is_err() && connections.counters().idle == 0);
        world.origin().await.write_all(answer).await.unwrap();
        world.expect(seen).await;
    });
}

#[test]
fn an_origin_that_fails_is_answered_for_and_the_client_may_go_on() {
    run(async {
        let mut world = World::new().await;
        let failed = async |world: &mut World, to: &str, head: bool, line: &str| {
            let method = if head { "HEAD" } else { "GET" };
            world.say(&format!("{method} http://{to}/ HTTP/1.1\r\n\r\n")).await;
            if to == A {
                drop(world.origin().await);
            }
            world.expect(line).await;
            let mut rest = String::new();
            while !rest.ends_with("\r\n\r\n") {
                rest.push(world.client.read_u8().await.unwrap() as char);
            }
            if !head {
                let mut body = [0; 500];
                assert!(world.client.read(&mut body).await.unwrap() > 0);
            }
            rest
        };
        for head in [false, true, false] {
            let rest = failed(&mut world, "10.0.0.3", head, "HTTP/1.1 502 Bad Gateway\r\n").await;
            assert!(!rest.contains("close"), "{rest}");
        }
        let rest = failed(&mut world, A, false, "HTTP/1.1 502 Bad Gateway\r\n").await;
        assert!(rest.contains("Connection: close"), "{rest}");
        world.ends().await;
        for answer in ["SSH-2.0\r\n\r\n", "HTTP/1.1 200 x\r\nContent-Length: 1, 2\r\n\r\n"] {
            let mut world = World::new().await;
            world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
            world.origin().await.write_all(answer.as_bytes()).await.unwrap();
            world.expect("HTTP/1.1 502 Bad Gateway\r\n").await;
        }
    });
}

#[test]
fn interim_answers_without_end_are_ended() {
    run(async {
        for minor in [0, 1] {
            let mut world = World::new().await;
            world.say(&format!("GET http://{A}/ HTTP/1.{minor}\r\n\r\n")).await;
            let mut origin = world.origin().await;
            let answering = tokio::spawn(async move {
                while origin.write_all(b"HTTP/1.1 103 x\r\nLink: x\r\n\r\n").await.is_ok() {}
            });
            let mut answer = Vec::new();
            let read = world.client.read_to_end(&mut answer);
            timeout(60 * SECOND, read).await.expect("it goes on").unwrap();
            let text = String::from_utf8(answer).unwrap();
            assert_eq!(text.matches("HTTP/1.1 502 Bad Gateway\r\n").count(), 1);
            assert_eq!(text.contains("HTTP/1.1 103"), minor == 1);
            answering.await.unwrap();
        }
    });
}

#[test]
fn an_answer_that_ends_too_early_does_not_end_like_a_whole_one() {
    run(async {
        for answer in [
            "HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nhalf",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n4\nhalf",
        ] {
            let (client, here) = connected(1 << 20).await;
            let mut world = World::with(Stream::Tcp(client), Stream::Tcp(here)).await;
            world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
            world.origin().await.write_all(answer.as_bytes()).await.unwrap();
            let ended = world.client.read_to_end(&mut Vec::new()).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "{answer}");
        }
    });
}

#[test]
fn the_heads_of_clients_and_origins_have_a_time() {
    run(async {
        let mut world = World::new().await;
        let began = Instant::now();
        world.say("GET http://").await;
        world.expect("HTTP/1.1 408 Request Timeout\r\n").await;
        assert!(began.elapsed() >= ASKING);
        let mut world = World::new().await;
        world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = world.origin().await;
        // What takes its time before the head may do so.
        sleep(10 * ASKING).await;
        a.write_all(b"HTTP/1.1 200 x").await.unwrap();
        let began = Instant::now();
        world.expect("HTTP/1.1 504 Gateway Timeout\r\n").await;
        assert!(began.elapsed() >= ASKING && began.elapsed() < ASKING + 2 * SECOND);
    });
}

#[test]
fn a_client_between_two_requests_has_a_time_of_its_own() {
    run(async {
        let mut world = World::new().await;
        world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = world.origin().await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        world.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        sleep(IDLE - SECOND).await;
        assert!(!world.serving.is_finished());
        let began = Instant::now();
        world.ends().await;
        assert!(began.elapsed() <= 2 * SECOND);
    });
}

#[test]
fn a_client_that_has_ended_its_half_is_answered() {
    run(async {
        for to in [A, "10.0.0.4"] {
            let mut world = World::new().await;
            world.say(&format!("GET http://{to}/ HTTP/1.1\r\n\r\n")).await;
            world.client.shutdown().await.unwrap();
            let mut origin = world.origin().await;
            expect(&mut origin, &passed("GET", "/", to, "")).await;
            sleep(10 * SECOND).await;
            assert_eq!(timeout(SECOND, origin.read(&mut [0])).await.ok().map(drop), None);
            origin.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            world
                .expect("HTTP/1.1 200 x\r\nContent-Length: 2\r\nVia: 1.1 linerate\r\n\r\nok")
                .await;
            world.ends().await;
        }
    });
}

#[test]
fn a_client_that_is_gone_ends_its_request() {
    run(async {
        let (client, here) = connected(1 << 20).await;
        let mut world = World::with(Stream::Tcp(client), Stream::Tcp(here)).await;
        world.say(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = world.origin().await;
        expect(&mut a, &passed("GET", "/", A, "")).await;
        world.client.reset();
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0);
        assert!(world.serving.await.unwrap().is_err());
    });
}

#[test]
fn a_client_of_http_1_0_gets_the_contents_of_chunks_and_then_the_end() {
    run(async {
        let mut world = World::new().await;
        world.say(&format!("GET http://{A}/ HTTP/1.0\r\n\r\n")).await;
        let mut a = world.origin().await;
        let answer =
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
        for byte in answer.bytes() {
            a.write_all(&[byte]).await.unwrap();
            yield_now().await;
        }
        world
            .expect("HTTP/1.1 200 x\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\nonetwo")
            .await;
        world.ends().await;
    });
}

#[test]
fn an_origin_that_answers_before_it_takes_the_whole_request_is_not_kept() {
    run(async {
        for long in ["body", "head"] {
            let mut world = World::new().await;
            let x = "x".repeat(5000);
            let (field, body) = if long == "body" { ("", &x[..]) } else { (&x[..], "") };
            let len = body.len();
            let fields = format!("X: {field}\r\nContent-Length: {len}\r\n");
            world.say(&format!("PUT http://{A}/ HTTP/1.1\r\n{fields}\r\n{body}")).await;
            let mut a = world.origin().await;
            a.read_exact(&mut [0; 100]).await.unwrap();
            sleep(SECOND).await;
            a.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            let fields = "Content-Length: 2\r\nVia: 1.1 linerate\r\nConnection: close\r\n";
            world.expect(&format!("HTTP/1.1 200 x\r\n{fields}\r\nok")).await;
            world.ends().await;
            let mut rest = Vec::new();
            a.read_to_end(&mut rest).await.unwrap();
            assert!(rest.len() < 5000, "{long}");
        }
    });
}

/// RFC 9112, section 9.6.
#[test]
fn an_answer_to_half_a_body_arrives_whole() {
    const ANSWER: usize = 1 << 20;
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (mut client, here) = connected(4096).await;
        let mut world =
            World::with(Stream::Unix(UnixStream::pair().unwrap().0), Stream::Tcp(here)).await;
        let length = 1_u64 << 30;
        let request = format!("POST http://{A}/ HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client.write_all(&[7; 1000]).await.unwrap();
        let mut origin = world.origin().await;
        let fields = format!("Content-Length: {length}\r\n");
        expect(&mut origin, &passed("POST", "/", A, &fields)).await;
        origin.read_exact(&mut [0; 1000]).await.unwrap();
        let answering = tokio::spawn(async move {
            let head = format!("HTTP/1.1 200 x\r\nContent-Length: {ANSWER}\r\n\r\n");
            origin.write_all(head.as_bytes()).await.unwrap();
            origin.write_all(&vec![7; ANSWER]).await.unwrap();
        });
        for _ in 0..10 {
            client.write_all(&[7; 1000]).await.unwrap();
            sleep(Duration::from_millis(10)).await;
        }
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        assert_eq!(answer.len() - head - 4, ANSWER);
        answering.await.unwrap();
        drop(client);
        let serving = &mut world.serving;
        timeout(5 * SECOND, serving).await.expect("it ends").unwrap().unwrap();
    });
}
