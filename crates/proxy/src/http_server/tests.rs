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
    test_stack::{HostBehavior, MemoryStack, connected},
    users::Users,
};

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const CLIENT: Client = Client::User(1);
const SECOND: Duration = Duration::from_secs(1);

/// A proxy with one client and all origins.
struct Rig {
    client: Stream,
    context: Arc<ProxyContext<MemoryStack>>,
    serving: JoinHandle<io::Result<()>>,
}

impl Rig {
    async fn new() -> Self {
        let (client, here) = UnixStream::pair().unwrap();
        Self::with(Stream::Unix(client), Stream::Unix(here)).await
    }

    async fn with(client: Stream, here: Stream) -> Self {
        let hosts = [
            (A, HostBehavior::Open),
            (B, HostBehavior::Open),
            ("10.0.0.3", HostBehavior::Closed),
            ("10.0.0.4", HostBehavior::Late),
        ];
        let reach = Reach::new(Arc::new(Identity::new(vec![[10, 0, 0, 9].into()])), |_| true);
        let dialer = Dialer::new(Arc::new(MemoryStack::new(&hosts)), reach, Default::default(), 9);
        let connections = Connections::new(Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0));
        let connection =
            connections.admit(Group::BeforeRequest, Source::Client(CLIENT), 1).unwrap();
        let context =
            ProxyContext { dialer: Arc::new(dialer), users: Users::default(), connections };
        let context = Arc::new(context);
        let serving = tokio::spawn(serve(context.clone(), here, CLIENT, connection));
        Self { client, context, serving }
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next bytes for the client.
    async fn expect(&mut self, text: &str) {
        expect(&mut self.client, text).await;
    }

    /// The number of connections to origins that no test has taken yet.
    fn dialed(&self) -> usize {
        self.context.dialer.stack.ends.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits for the next connection to an origin and takes its end.
    async fn origin(&self) -> DuplexStream {
        while self.dialed() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        self.context.dialer.stack.ends.lock().unwrap().remove(0).1
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

/// A request as the proxy forwards it.
fn forwarded(method: &str, path: &str, host: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Via: 1.1 linerate\r\n\r\n")
}

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(work)
}

#[test]
fn one_client_connection_carries_requests_to_several_origins() {
    run(async {
        let mut rig = Rig::new().await;
        rig.send(&format!("GET http://{A}/1 HTTP/1.1\r\nHost: {A}\r\n\r\n")).await;
        let mut a = rig.origin().await;
        expect(&mut a, &forwarded("GET", "/1", A, "")).await;
        a.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 3\r\n\r\none").await.unwrap();
        rig.expect("HTTP/1.1 200 x\r\nContent-Length: 3\r\nVia: 1.1 linerate\r\n\r\none").await;
        // The connection to the origin is reused.
        rig.send(&format!("HEAD http://{A}/2 HTTP/1.1\r\n\r\n")).await;
        expect(&mut a, &forwarded("HEAD", "/2", A, "")).await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        rig.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        assert_eq!(rig.dialed(), 0);
        // A request that must not be sent twice gets a new one.
        let post = format!("POST http://{A}/2 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");
        rig.send(&post).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "the first is closed");
        let mut a = rig.origin().await;
        expect(&mut a, &(forwarded("POST", "/2", A, "Content-Length: 4\r\n") + "body")).await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        rig.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        // Two pipelined requests to another origin.
        let get = |path: &str| format!("GET http://{B}/{path} HTTP/1.1\r\n\r\n");
        rig.send(&(get("3") + &get("4"))).await;
        let mut b = rig.origin().await;
        expect(&mut b, &forwarded("GET", "/3", B, "")).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "the first is closed");
        let chunks = "Transfer-Encoding: chunked\r\n";
        let body = "5;x\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n";
        b.write_all(format!("HTTP/1.1 200 x\r\n{chunks}\r\n{body}").as_bytes()).await.unwrap();
        rig.expect(&format!("HTTP/1.1 200 x\r\n{chunks}Via: 1.1 linerate\r\n\r\n{body}")).await;
        expect(&mut b, &forwarded("GET", "/4", B, "")).await;
        b.write_all(b"HTTP/1.1 200 x\r\n\r\nuntil the end").await.unwrap();
        drop(b);
        let head = "HTTP/1.1 200 x\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\n";
        rig.expect(&format!("{head}until the end")).await;
        rig.ends().await;
    });
}

#[test]
fn bodiless_answer_ends_with_its_head() {
    run(async {
        let mut rig = Rig::new().await;
        for (method, status, length) in
            [("HEAD", "200", "Content-Length: 9\r\n"), ("GET", "304", ""), ("DELETE", "204", "")]
        {
            rig.send(&format!("{method} http://{A}/ HTTP/1.1\r\n\r\n")).await;
            let mut a = rig.origin().await;
            expect(&mut a, &forwarded(method, "/", A, "")).await;
            let answer = format!("HTTP/1.1 {status} x\r\n{length}Connection: close\r\n\r\n");
            a.write_all(answer.as_bytes()).await.unwrap();
            let head = format!("HTTP/1.1 {status} x\r\n{length}Via: 1.1 linerate\r\n\r\n");
            rig.expect(&head).await;
        }
    });
}

#[test]
fn body_follows_100_continue_and_is_not_sent_after_a_refusal() {
    run(async {
        let mut rig = Rig::new().await;
        let fields = "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n";
        let request = format!("PUT http://{A}/ HTTP/1.1\r\n{fields}\r\n");
        rig.send(&request).await;
        let mut a = rig.origin().await;
        expect(&mut a, &forwarded("PUT", "/", A, fields)).await;
        a.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        rig.expect("HTTP/1.1 100 Continue\r\nVia: 1.1 linerate\r\n\r\n").await;
        rig.send("3\r\nyes\r\n0\r\n\r\n").await;
        expect(&mut a, "3\r\nyes\r\n0\r\n\r\n").await;
        a.write_all(b"HTTP/1.1 201 x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        rig.expect("HTTP/1.1 201 x\r\nContent-Length: 0\r\nVia: 1.1 linerate\r\n\r\n").await;
        rig.send(&request).await;
        let mut a = rig.origin().await;
        expect(&mut a, &forwarded("PUT", "/", A, fields)).await;
        a.write_all(b"HTTP/1.1 401 x\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        rig.expect("HTTP/1.1 401 x\r\nContent-Length: 2\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\nno").await;
        rig.ends().await;
    });
}

#[test]
fn upgraded_connection_carries_bytes_both_ways() {
    run(async {
        let mut rig = Rig::new().await;
        rig.send(&format!(
            "GET ws://{A}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        ))
        .await;
        let mut a = rig.origin().await;
        let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
        expect(&mut a, &forwarded("GET", "/", A, fields)).await;
        a.write_all(format!("HTTP/1.1 101 x\r\n{fields}\r\n\u{1}first").as_bytes()).await.unwrap();
        let head =
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nVia: 1.1 linerate\r\nConnection: Upgrade\r\n";
        rig.expect(&format!("{head}\r\n\u{1}first")).await;
        rig.send("GET / is no request here").await;
        expect(&mut a, "GET / is no request here").await;
        a.write_all(b"HTTP/1.1 200 x is no answer").await.unwrap();
        rig.expect("HTTP/1.1 200 x is no answer").await;
        rig.client.shutdown().await.unwrap();
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0);
        a.write_all(b"late").await.unwrap();
        drop(a);
        rig.expect("late").await;
        rig.ends().await;
    });
}

/// RFC 9112, section 9.3.1.
#[test]
fn idle_origin_connection_is_only_reused_for_repeatable_requests() {
    run(async {
        let answer = b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n";
        let seen = "HTTP/1.1 200 x\r\nContent-Length: 0\r\nVia: 1.1 linerate\r\n\r\n";
        let get = format!("GET http://{A}/ HTTP/1.1\r\n\r\n");
        let mut rig = Rig::new().await;
        let mut first = None;
        for _ in 0..2 {
            rig.send(&get).await;
            let mut a = match first.take() {
                Some(a) => a,
                None => rig.origin().await,
            };
            expect(&mut a, &forwarded("GET", "/", A, "")).await;
            a.write_all(answer).await.unwrap();
            rig.expect(seen).await;
            first = Some(a);
        }
        // It closes when the request arrives.
        let mut a = first.unwrap();
        rig.send(&get).await;
        expect(&mut a, &forwarded("GET", "/", A, "")).await;
        drop(a);
        let mut a = rig.origin().await;
        expect(&mut a, &forwarded("GET", "/", A, "")).await;
        a.write_all(answer).await.unwrap();
        rig.expect(seen).await;
        // It has closed before: any request uses another connection.
        drop(a);
        let mut last = None;
        for (method, fields) in
            [("POST", ""), ("PATCH", "Content-Length: 0\r\n"), ("PUT", "Content-Length: 1\r\n")]
        {
            rig.send(&format!("{method} http://{A}/ HTTP/1.1\r\n{fields}\r\n")).await;
            let mut a = rig.origin().await;
            expect(&mut a, &forwarded(method, "/", A, fields)).await;
            if method == "PUT" {
                rig.send("x").await;
                expect(&mut a, "x").await;
            }
            a.write_all(answer).await.unwrap();
            rig.expect(seen).await;
            last = Some(a);
        }
        // An idle connection is closed after `ORIGIN_IDLE`.
        let mut a = last.unwrap();
        sleep(ORIGIN_IDLE + SECOND).await;
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0, "it is closed");
        // Also if the next request begins before that time and ends after it.
        rig.send(&get).await;
        let mut a = rig.origin().await;
        a.write_all(answer).await.unwrap();
        rig.expect(seen).await;
        rig.send(&get[..10]).await;
        sleep(ORIGIN_IDLE + SECOND).await;
        rig.send(&get[10..]).await;
        let mut a = rig.origin().await;
        a.write_all(answer).await.unwrap();
        rig.expect(seen).await;
    });
}

#[test]
fn client_with_a_pending_request_is_not_evicted_during_the_dial() {
    run(async {
        let mut rig = Rig::new().await;
        rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let answer = b"HTTP/1.1 204 x\r\n\r\n";
        rig.origin().await.write_all(answer).await.unwrap();
        let seen = "HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n";
        rig.expect(seen).await;
        sleep(60 * SECOND).await;
        rig.send("GET http://10.0.0.4/ HTTP/1.1\r\n\r\n").await;
        sleep(SECOND / 2).await;
        let other = Source::Client(Client::User(2));
        let connections = &rig.context.connections;
        let mut others = Vec::new();
        while let Ok(other) = connections.admit(Group::Clients, other, 1) {
            others.push(other);
        }
        let newcomer = connections.admit(Group::Clients, Source::Client(CLIENT), 1);
        assert!(newcomer.is_err() && connections.counters().idle == 0);
        rig.origin().await.write_all(answer).await.unwrap();
        rig.expect(seen).await;
    });
}

#[test]
fn failed_origin_gives_502_and_the_client_connection_persists() {
    run(async {
        let mut rig = Rig::new().await;
        let failed = async |rig: &mut Rig, to: &str, head: bool, line: &str| {
            let method = if head { "HEAD" } else { "GET" };
            rig.send(&format!("{method} http://{to}/ HTTP/1.1\r\n\r\n")).await;
            if to == A {
                drop(rig.origin().await);
            }
            rig.expect(line).await;
            let mut rest = String::new();
            while !rest.ends_with("\r\n\r\n") {
                rest.push(rig.client.read_u8().await.unwrap() as char);
            }
            if !head {
                let mut body = [0; 500];
                assert!(rig.client.read(&mut body).await.unwrap() > 0);
            }
            rest
        };
        for head in [false, true, false] {
            let rest = failed(&mut rig, "10.0.0.3", head, "HTTP/1.1 502 Bad Gateway\r\n").await;
            assert!(!rest.contains("close"), "{rest}");
        }
        let rest = failed(&mut rig, A, false, "HTTP/1.1 502 Bad Gateway\r\n").await;
        assert!(rest.contains("Connection: close"), "{rest}");
        rig.ends().await;
        for answer in ["SSH-2.0\r\n\r\n", "HTTP/1.1 200 x\r\nContent-Length: 1, 2\r\n\r\n"] {
            let mut rig = Rig::new().await;
            rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
            rig.origin().await.write_all(answer.as_bytes()).await.unwrap();
            rig.expect("HTTP/1.1 502 Bad Gateway\r\n").await;
        }
    });
}

#[test]
fn endless_interim_answers_are_cut_off() {
    run(async {
        for minor in [0, 1] {
            let mut rig = Rig::new().await;
            rig.send(&format!("GET http://{A}/ HTTP/1.{minor}\r\n\r\n")).await;
            let mut origin = rig.origin().await;
            let answering = tokio::spawn(async move {
                while origin.write_all(b"HTTP/1.1 103 x\r\nLink: x\r\n\r\n").await.is_ok() {}
            });
            let mut answer = Vec::new();
            let read = rig.client.read_to_end(&mut answer);
            timeout(60 * SECOND, read).await.expect("it goes on").unwrap();
            let text = String::from_utf8(answer).unwrap();
            assert_eq!(text.matches("HTTP/1.1 502 Bad Gateway\r\n").count(), 1);
            assert_eq!(text.contains("HTTP/1.1 103"), minor == 1);
            answering.await.unwrap();
        }
    });
}

#[test]
fn truncated_answer_ends_with_a_reset() {
    run(async {
        for answer in [
            "HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nhalf",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n4\nhalf",
        ] {
            let (client, here) = connected(1 << 20).await;
            let mut rig = Rig::with(Stream::Tcp(client), Stream::Tcp(here)).await;
            rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
            rig.origin().await.write_all(answer.as_bytes()).await.unwrap();
            let ended = rig.client.read_to_end(&mut Vec::new()).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "{answer}");
        }
    });
}

#[test]
fn incomplete_heads_of_client_and_origin_time_out() {
    run(async {
        let mut rig = Rig::new().await;
        let began = Instant::now();
        rig.send("GET http://").await;
        rig.expect("HTTP/1.1 408 Request Timeout\r\n").await;
        assert!(began.elapsed() >= REQUEST_TIMEOUT);
        let mut rig = Rig::new().await;
        rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = rig.origin().await;
        // The time before the head is unlimited.
        sleep(10 * REQUEST_TIMEOUT).await;
        a.write_all(b"HTTP/1.1 200 x").await.unwrap();
        let began = Instant::now();
        rig.expect("HTTP/1.1 504 Gateway Timeout\r\n").await;
        assert!(
            began.elapsed() >= REQUEST_TIMEOUT && began.elapsed() < REQUEST_TIMEOUT + 2 * SECOND
        );
    });
}

#[test]
fn idle_client_is_closed_after_the_idle_time() {
    run(async {
        let mut rig = Rig::new().await;
        rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = rig.origin().await;
        a.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        rig.expect("HTTP/1.1 204 x\r\nVia: 1.1 linerate\r\n\r\n").await;
        sleep(IDLE - SECOND).await;
        assert!(!rig.serving.is_finished());
        let began = Instant::now();
        rig.ends().await;
        assert!(began.elapsed() <= 2 * SECOND);
    });
}

#[test]
fn half_closed_client_gets_its_answer() {
    run(async {
        for to in [A, "10.0.0.4"] {
            let mut rig = Rig::new().await;
            rig.send(&format!("GET http://{to}/ HTTP/1.1\r\n\r\n")).await;
            rig.client.shutdown().await.unwrap();
            let mut origin = rig.origin().await;
            expect(&mut origin, &forwarded("GET", "/", to, "")).await;
            sleep(10 * SECOND).await;
            assert_eq!(timeout(SECOND, origin.read(&mut [0])).await.ok().map(drop), None);
            origin.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            rig.expect("HTTP/1.1 200 x\r\nContent-Length: 2\r\nVia: 1.1 linerate\r\n\r\nok").await;
            rig.ends().await;
        }
    });
}

#[test]
fn client_reset_ends_its_request() {
    run(async {
        let (client, here) = connected(1 << 20).await;
        let mut rig = Rig::with(Stream::Tcp(client), Stream::Tcp(here)).await;
        rig.send(&format!("GET http://{A}/ HTTP/1.1\r\n\r\n")).await;
        let mut a = rig.origin().await;
        expect(&mut a, &forwarded("GET", "/", A, "")).await;
        rig.client.reset();
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0);
        assert!(rig.serving.await.unwrap().is_err());
    });
}

#[test]
fn http_1_0_client_gets_decoded_chunks_and_then_the_end() {
    run(async {
        let mut rig = Rig::new().await;
        rig.send(&format!("GET http://{A}/ HTTP/1.0\r\n\r\n")).await;
        let mut a = rig.origin().await;
        let answer =
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
        for byte in answer.bytes() {
            a.write_all(&[byte]).await.unwrap();
            yield_now().await;
        }
        rig.expect("HTTP/1.1 200 x\r\nVia: 1.1 linerate\r\nConnection: close\r\n\r\nonetwo").await;
        rig.ends().await;
    });
}

#[test]
fn origin_that_answers_before_the_end_of_the_request_is_not_reused() {
    run(async {
        for long in ["body", "head"] {
            let mut rig = Rig::new().await;
            let x = "x".repeat(5000);
            let (field, body) = if long == "body" { ("", &x[..]) } else { (&x[..], "") };
            let len = body.len();
            let fields = format!("X: {field}\r\nContent-Length: {len}\r\n");
            rig.send(&format!("PUT http://{A}/ HTTP/1.1\r\n{fields}\r\n{body}")).await;
            let mut a = rig.origin().await;
            a.read_exact(&mut [0; 100]).await.unwrap();
            sleep(SECOND).await;
            a.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            let fields = "Content-Length: 2\r\nVia: 1.1 linerate\r\nConnection: close\r\n";
            rig.expect(&format!("HTTP/1.1 200 x\r\n{fields}\r\nok")).await;
            rig.ends().await;
            let mut rest = Vec::new();
            a.read_to_end(&mut rest).await.unwrap();
            assert!(rest.len() < 5000, "{long}");
        }
    });
}

/// RFC 9112, section 9.6.
#[test]
fn answer_to_an_incomplete_body_arrives_whole() {
    const ANSWER: usize = 1 << 20;
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (mut client, here) = connected(4096).await;
        let mut rig =
            Rig::with(Stream::Unix(UnixStream::pair().unwrap().0), Stream::Tcp(here)).await;
        let length = 1_u64 << 30;
        let request = format!("POST http://{A}/ HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client.write_all(&[7; 1000]).await.unwrap();
        let mut origin = rig.origin().await;
        let fields = format!("Content-Length: {length}\r\n");
        expect(&mut origin, &forwarded("POST", "/", A, &fields)).await;
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
        let serving = &mut rig.serving;
        timeout(5 * SECOND, serving).await.expect("it ends").unwrap().unwrap();
    });
}
