use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Mutex, atomic::AtomicUsize},
    time::Duration,
};

use mesh::magic_dns::{Config, Host, Resolver};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net, time,
};

use super::*;

const PEER: &str = "peer.tail.example";

fn names(resolvers: &[SocketAddr]) -> Names {
    let peer =
        Host { name: PEER.into(), addresses: vec![[100, 64, 0, 2].into()], ..Host::default() };
    let config = Config {
        suffix: "tail.example".into(),
        magic: true,
        accept: true,
        peers: vec![peer],
        defaults: resolvers.iter().copied().map(Resolver::Plain).collect(),
        ..Config::default()
    };
    Names::new(&config).0
}

fn query(id: u16, name: &str) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// An answer to a query, with an address that ends in `last`.
fn answer(query: &[u8], last: u8) -> Vec<u8> {
    let mut reply = query.to_vec();
    reply[2] |= 0x80;
    reply[7] = 1;
    reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, last]);
    reply
}

fn code(reply: &[u8]) -> u8 {
    reply[3] & 0xf
}

/// A resolver in this process that the test controls.
struct Upstream {
    udp: net::UdpSocket,
    tcp: net::TcpListener,
}

impl Upstream {
    async fn new() -> Self {
        let tcp = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let udp = net::UdpSocket::bind(tcp.local_addr().unwrap()).await.unwrap();
        Self { udp, tcp }
    }

    fn address(&self) -> SocketAddr {
        self.tcp.local_addr().unwrap()
    }

    async fn datagram(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 2048];
        let (len, from) = self.udp.recv_from(&mut buffer).await.unwrap();
        (buffer[..len].to_vec(), from)
    }

    async fn stream(&self) -> (Vec<u8>, net::TcpStream) {
        let (mut stream, _) = self.tcp.accept().await.unwrap();
        (read(&mut stream).await, stream)
    }
}

async fn read(stream: &mut net::TcpStream) -> Vec<u8> {
    let mut message = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut message).await.unwrap();
    message
}

async fn write(stream: &mut net::TcpStream, message: &[u8]) {
    serve::write(stream, message).await.unwrap();
}

struct TestServer {
    server: Server,
    tcp: SocketAddr,
    client: net::UdpSocket,
    hooked: Arc<AtomicUsize>,
}

impl TestServer {
    async fn new(resolvers: &[SocketAddr]) -> Self {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let udp = UdpSocket::bind(local).unwrap();
        let tcp = TcpListener::bind(local).unwrap();
        let (udp_at, tcp_at) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
        let sockets = Sockets { udp: vec![udp], tcp: vec![tcp] };
        let hooked = Arc::new(AtomicUsize::new(0));
        let hook: SocketHook = Arc::new({
            let hooked = hooked.clone();
            move |_| {
                hooked.fetch_add(1, Relaxed);
                Ok(())
            }
        });
        let served = Served { names: names(resolvers), own: HashSet::new() };
        let server = Server::start(sockets, served, hook).unwrap();
        let client = net::UdpSocket::bind(local).await.unwrap();
        client.connect(udp_at).await.unwrap();
        Self { server, tcp: tcp_at, client, hooked }
    }

    async fn send_query(&self, name: &str) {
        self.client.send(&query(7, name)).await.unwrap();
    }

    async fn answer(&self) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let len = self.client.recv(&mut buffer).await.unwrap();
        assert_eq!(buffer[..2], [0, 7], "another id");
        buffer[..len].to_vec()
    }
}

#[tokio::test]
async fn names_are_answered_over_udp_and_tcp() {
    let server_under_test = TestServer::new(&[]).await;
    server_under_test.send_query(PEER).await;
    let by_udp = server_under_test.answer().await;
    assert!(by_udp.ends_with(&[100, 64, 0, 2]));
    let mut stream = net::TcpStream::connect(server_under_test.tcp).await.unwrap();
    for _ in 0..2 {
        write(&mut stream, &query(7, PEER)).await;
        assert_eq!(read(&mut stream).await, by_udp);
    }
    server_under_test.send_query("www.example").await;
    assert_eq!(code(&server_under_test.answer().await), 2);
    let counts = server_under_test.server.counts();
    assert_eq!(counts, Counts { answered: 4, ..Counts::default() });
}

#[tokio::test]
async fn new_names_apply_from_the_next_query() {
    let server_under_test = TestServer::new(&[]).await;
    server_under_test.server.set(Served::default());
    server_under_test.send_query(PEER).await;
    assert_eq!(code(&server_under_test.answer().await), 2);
    server_under_test.server.set(Served { names: names(&[]), own: HashSet::new() });
    server_under_test.send_query(PEER).await;
    assert_eq!(code(&server_under_test.answer().await), 0);
}

#[tokio::test]
async fn senders_outside_this_machine_are_rejected() {
    let server_under_test = TestServer::new(&[]).await;
    let shared = &server_under_test.server.shared;
    let own: IpAddr = [100, 64, 0, 1].into();
    server_under_test.server.set(Served { own: HashSet::from([own]), ..Served::default() });
    for (address, admitted) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("::ffff:127.0.0.1", true),
        ("100.64.0.1", true),
        ("::ffff:100.64.0.1", true),
        ("100.64.0.2", false),
        ("192.168.1.1", false),
    ] {
        assert_eq!(shared.admits(address.parse().unwrap()), admitted, "{address}");
    }
    assert_eq!(server_under_test.server.counts().strangers, 2);
}

#[tokio::test]
async fn connections_are_limited_and_only_from_this_machine() {
    let server_under_test = TestServer::new(&[]).await;
    let shared = &server_under_test.server.shared;
    let [own, stranger]: [IpAddr; 2] = [[127, 0, 0, 1].into(), [192, 168, 1, 1].into()];
    let mut taken = Vec::new();
    while let Some(permit) = shared.admit_stream(own) {
        taken.push(permit);
        assert!(taken.len() <= MAX_STREAMS);
    }
    taken.pop();
    assert!(shared.admit_stream(stranger).is_none() && shared.admit_stream(own).is_some());
}

#[tokio::test]
async fn forwarded_query_has_a_random_id_and_forged_replies_are_ignored() {
    let upstream = Upstream::new().await;
    let server_under_test = TestServer::new(&[upstream.address()]).await;
    let ids = Mutex::new(HashSet::new());
    for _ in 0..4 {
        server_under_test.send_query("www.example").await;
        let (query_bytes, from) = upstream.datagram().await;
        ids.lock().unwrap().insert([query_bytes[0], query_bytes[1]]);
        let mut forged = answer(&query_bytes, 6);
        forged[0] ^= 1;
        for reply in
            [forged, answer(&query(0, "evil.example"), 6), vec![1], answer(&query_bytes, 5)]
        {
            upstream.udp.send_to(&reply, from).await.unwrap();
        }
        assert!(server_under_test.answer().await.ends_with(&[192, 0, 2, 5]));
    }
    assert!(ids.lock().unwrap().len() > 1, "all ids are the same");
    assert_eq!(server_under_test.hooked.load(Relaxed), 4);
    assert_eq!(server_under_test.server.counts().forwarded, 4);
}

#[tokio::test]
async fn truncated_answer_is_fetched_by_tcp_for_a_tcp_client() {
    let upstream = Upstream::new().await;
    let server_under_test = TestServer::new(&[upstream.address()]).await;
    let mut client = net::TcpStream::connect(server_under_test.tcp).await.unwrap();
    write(&mut client, &query(7, "www.example")).await;
    let (query_bytes, from) = upstream.datagram().await;
    let mut cut = answer(&query_bytes, 5);
    cut[2] |= 2;
    upstream.udp.send_to(&cut, from).await.unwrap();
    let (query_bytes, mut stream) = upstream.stream().await;
    write(&mut stream, &answer(&query_bytes, 8)).await;
    let reply = read(&mut client).await;
    assert_eq!(reply[..2], [0, 7]);
    assert!(reply.ends_with(&[192, 0, 2, 8]));
}

#[tokio::test(start_paused = true)]
async fn tcp_query_starts_after_two_seconds_without_answer() {
    let upstream = Upstream::new().await;
    let server_under_test = TestServer::new(&[upstream.address()]).await;
    let start = time::Instant::now();
    server_under_test.send_query("www.example").await;
    let (query_bytes, mut stream) = upstream.stream().await;
    assert!(start.elapsed() >= Duration::from_secs(2));
    write(&mut stream, &answer(&query_bytes, 9)).await;
    assert!(server_under_test.answer().await.ends_with(&[192, 0, 2, 9]));
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_a_failure_after_ten_seconds() {
    let upstream = Upstream::new().await;
    let server_under_test = TestServer::new(&[upstream.address()]).await;
    let start = time::Instant::now();
    server_under_test.send_query("www.example").await;
    assert_eq!(code(&server_under_test.answer().await), 2);
    assert!(start.elapsed() <= Duration::from_secs(11));
    assert_eq!(server_under_test.server.counts().failed, 1);
}

#[tokio::test]
async fn refusal_is_used_only_if_no_resolver_answers() {
    let upstreams = [Upstream::new().await, Upstream::new().await];
    let addresses = upstreams.each_ref().map(Upstream::address);
    let server_under_test = TestServer::new(&addresses).await;
    for both in [false, true] {
        server_under_test.send_query("www.example").await;
        let (query_bytes, from) = upstreams[0].datagram().await;
        let mut refusal = query_bytes.clone();
        refusal[2] |= 0x80;
        refusal[3] |= 5;
        upstreams[0].udp.send_to(&refusal, from).await.unwrap();
        let (query_bytes, from) = upstreams[1].datagram().await;
        let mut reply = answer(&query_bytes, 3);
        reply[3] |= if both { 5 } else { 0 };
        upstreams[1].udp.send_to(&reply, from).await.unwrap();
        assert_eq!(code(&server_under_test.answer().await), if both { 5 } else { 0 });
    }
}

#[tokio::test]
async fn more_than_256_forwarded_queries_are_refused_at_once() {
    let upstream = Upstream::new().await;
    let server_under_test = TestServer::new(&[upstream.address()]).await;
    let permits = server_under_test.server.shared.forwarded.clone();
    assert_eq!(permits.available_permits(), MAX_FORWARDED);
    let held = permits.acquire_many_owned(256).await.unwrap();
    server_under_test.send_query("www.example").await;
    assert_eq!(code(&server_under_test.answer().await), 2);
    assert_eq!(server_under_test.server.counts().busy, 1);
    drop(held);
    server_under_test.send_query("www.example").await;
    upstream.datagram().await;
}

#[tokio::test]
async fn failing_socket_hook_prevents_the_query() {
    let upstream = Upstream::new().await;
    let hook: SocketHook = Arc::new(|_| Err(io::ErrorKind::PermissionDenied.into()));
    let names = names(&[upstream.address()]);
    let mesh::magic_dns::Answer::Forward(forward) =
        names.answer(&query(7, "www.example"), mesh::magic_dns::Transport::Udp)
    else {
        panic!("not forwarded");
    };
    let error = Forwarder::new(hook).forward(&forward).await.unwrap_err();
    assert!(matches!(error, ForwardError::Io(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_disconnected() {
    let server_under_test = TestServer::new(&[]).await;
    let mut client = net::TcpStream::connect(server_under_test.tcp).await.unwrap();
    client.write_all(&[0]).await.unwrap();
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
}
