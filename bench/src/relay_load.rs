//! The generator of datagrams through a relay: pairs of clients, all in this process. One client
//! of a pair sends as fast as the relay reads, and the other counts the datagrams that arrive.
//!
//! ```text
//!   senders ──TLS── relay ──TLS── receivers
//! ```
//!
//! A relay drops datagrams if a receiver lacks room, so only received datagrams are counted.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::BytesMut;
use member::agent::control::Settings;
use member::agent::control::connection::Connection;
use member::agent::control::dial::{Dialer, Stream, Target};
use mesh::dialing::ControlUrl;
use mesh::registration::{Login, Registration, Step};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::json;
use tailnet::derp::{Decoder, FromRelay, kind, seal_login, write_frame, write_packet};
use tailnet::keys::{MachineKey, MachinePublic};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

use crate::lifetime::end_with_stdin;
use crate::swarm::{dialer, node_key, public_key};

/// Bytes of one write and of one read.
const BLOCK: usize = 64 << 10;

/// Time before counting starts, so that all clients are sending.
const WARM: Duration = Duration::from_millis(500);

/// Time in which each client receives a datagram.
const REACHED: Duration = Duration::from_secs(10);

/// Parameters of the load.
#[derive(Clone, Debug)]
pub struct RelayLoad {
    /// The relay.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Certificates of the trusted authority, in PEM.
    pub authority: Vec<u8>,
    /// The coordinator and the key by which clients register first.
    pub network: Option<(ControlUrl, String)>,
    /// Number of pairs.
    pub pairs: usize,
    /// Length of a datagram; 0 to keep the connections idle first.
    pub size: usize,
    /// How long datagrams are counted or the connections are idle.
    pub time: Duration,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl RelayLoad {
    /// Connects all clients. Then sends, and prints how many datagrams arrived a second; or keeps the
    /// connections idle, and prints how many of them receive a datagram afterwards.
    ///
    /// # Errors
    /// A client cannot connect.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        end_with_stdin()?;
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let dialer = dialer(&self.authority)?;
        runtime.block_on(Arc::new(self).carry(dialer)).map_err(|failed| failed as Box<dyn Error>)
    }

    async fn carry(self: Arc<Self>, dialer: Dialer) -> Result<(), BoxError> {
        let mut clients = Vec::new();
        for number in 0..2 * self.pairs {
            self.register(&dialer, number).await?;
            clients.push(split(self.connect(&dialer, number).await?));
        }
        if self.size == 0 {
            println!("held {}", clients.len());
            sleep(self.time).await;
            println!("{}", count_reached(clients).await);
            return Ok(());
        }
        let counted = Arc::new(AtomicU64::new(0));
        let mut clients = clients.into_iter();
        for pair in 0..self.pairs {
            let (Some(sender), Some(receiver)) = (clients.next(), clients.next()) else { break };
            tokio::spawn(send_datagrams(sender, 2 * pair + 1, self.size));
            tokio::spawn(count_datagrams(receiver, Arc::clone(&counted)));
        }
        sleep(WARM).await;
        let before = counted.load(Relaxed);
        sleep(self.time).await;
        let arrived = counted.load(Relaxed) - before;
        println!("{}", arrived as f64 / self.time.as_secs_f64());
        Ok(())
    }

    /// Registers a client's key with the relay's network.
    async fn register(&self, dialer: &Dialer, number: usize) -> Result<(), BoxError> {
        let Some((url, auth_key)) = &self.network else { return Ok(()) };
        let settings = Settings {
            url: url.clone(),
            server_key: MachinePublic::default(),
            machine_key: MachineKey::new(node_key(number)),
            dialer: dialer.clone(),
        };
        let (connection, _) = Connection::open(&settings, &[]).await?;
        let key = public_key(number);
        let auth_key = Some(Zeroizing::new(auth_key.clone()));
        let mut registration = Registration::new(Login { auth_key, ..Login::new(key) });
        let hostinfo = json!({ "Hostname": format!("client-{number}"), "OS": "linux" });
        let request = registration.request(&hostinfo);
        let answer = connection.register(&key, &request, false).await?;
        match registration.handle_response(answer) {
            Step::Registered(_) => Ok(()),
            other => Err(format!("not registered: {other:?}").into()),
        }
    }

    async fn connect(&self, dialer: &Dialer, number: usize) -> Result<Box<dyn Stream>, BoxError> {
        let (host, port) = (self.host.clone(), self.port);
        let mut stream =
            dialer.dial(&Target { host: host.clone(), port, tls: true, address: None }).await?;
        let request = format!(
            "GET /derp HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: DERP\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        if !head.starts_with(b"HTTP/1.1 101") {
            return Err(format!("the relay answered {:?}", String::from_utf8_lossy(&head)).into());
        }
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        loop {
            while let Some((kind, contents)) = decoder.poll_frame(&mut buffer)? {
                match FromRelay::read(kind, contents)? {
                    Some(FromRelay::ServerKey(key)) => log_in(&mut stream, number, &key).await?,
                    Some(FromRelay::ServerInfo) => return Ok(stream),
                    _ => {}
                }
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err("the relay closed the connection".into());
            }
        }
    }
}

async fn log_in(
    stream: &mut Box<dyn Stream>,
    number: usize,
    server: &[u8; 32],
) -> Result<(), BoxError> {
    let mut rng = ChaCha20Rng::seed_from_u64(number as u64);
    let mut login = BytesMut::new();
    write_frame(&mut login, kind::CLIENT_INFO, &seal_login(&node_key(number), server, &mut rng));
    stream.write_all(&login).await?;
    Ok(stream.flush().await?)
}

/// Sends each client one datagram from its neighbour. Returns how many clients received one.
async fn count_reached(clients: Vec<Halves>) -> usize {
    let (mut waiting, mut sending) = (JoinSet::new(), JoinSet::new());
    for (number, (from, mut to)) in clients.into_iter().enumerate() {
        waiting.spawn(timeout(REACHED, receives_packet(from)));
        let mut words = BytesMut::new();
        write_packet(&mut words, &public_key(number ^ 1), b"are you there");
        sending.spawn(async move {
            let _ = to.write_all(&words).await;
            let _ = to.flush().await;
            // Keeps the connection open until all have received.
            to
        });
    }
    let _open = sending.join_all().await;
    waiting.join_all().await.into_iter().filter(|received| *received == Ok(true)).count()
}

/// Whether a datagram arrives before the connection ends.
async fn receives_packet(mut from: ReadHalf<Box<dyn Stream>>) -> bool {
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
    loop {
        while let Ok(Some((kind, _))) = decoder.poll_frame(&mut buffer) {
            if kind == kind::RECV_PACKET {
                return true;
            }
        }
        if !from.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
            return false;
        }
    }
}

type Halves = (ReadHalf<Box<dyn Stream>>, WriteHalf<Box<dyn Stream>>);

/// Sends datagrams to a client until the connection ends.
async fn send_datagrams((mut from, mut to): Halves, receiver: usize, size: usize) {
    let (mut block, datagram, key) = (BytesMut::new(), vec![4; size], public_key(receiver));
    while block.len() < BLOCK {
        write_packet(&mut block, &key, &datagram);
    }
    let mut received = [0; 256];
    let silence = async { while from.read(&mut received).await.is_ok_and(|read| read > 0) {} };
    let sending = async { while to.write_all(&block).await.is_ok() {} };
    // Both end when the relay closes the connection.
    tokio::join!(silence, sending);
}

/// Counts received datagrams.
async fn count_datagrams((mut from, _to): Halves, counted: Arc<AtomicU64>) {
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::with_capacity(2 * BLOCK));
    loop {
        let mut arrived = 0;
        while let Ok(Some((kind, _))) = decoder.poll_frame(&mut buffer) {
            arrived += u64::from(kind == kind::RECV_PACKET);
        }
        counted.fetch_add(arrived, Relaxed);
        buffer.reserve(BLOCK);
        match from.read_buf(&mut buffer).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
    }
}
