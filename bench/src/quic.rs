//! The QUIC generator: one stream each way over quinn, which uses `UDP_SEGMENT` and `UDP_GRO`.
//! Without packet protection, the test measures the tunnel and not the generator's AEAD; with TLS,
//! it is ordinary QUIC.

mod plain;
mod tls;

use std::error::Error;
use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use netns::Stopwatch;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};
use plain::Plain;
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};

/// Largest payload for the tunnel's MTU of 1420 behind IPv4 and UDP headers.
const DATAGRAM: u16 = 1420 - 28;

/// Buffers of the socket, in bytes. 512 KiB would cost a fifth of the rate.
const SOCKET_BUFFER: usize = 8 << 20;

/// Flow-control windows in bytes, large enough never to limit.
const WINDOW: u32 = 64 << 20;

/// Bytes written to a stream at a time.
const CHUNK: usize = 64 << 10;

/// Packets per acknowledgement (draft-ietf-quic-ack-frequency), about one super-packet. With an
/// acknowledgement for every other packet the generator would be half of the cost.
const ACK_EVERY: u32 = 40;

/// Bytes of the request: the direction and the milliseconds.
const REQUEST: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The sender of the bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server.
    Down,
    /// The client.
    Up,
}

/// Protection of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    Plain,
    /// TLS 1.3.
    Tls,
}

impl Protection {
    /// `tls`; any other name is plain.
    pub fn named(name: &str) -> Self {
        if name == "tls" { Self::Tls } else { Self::Plain }
    }

    fn server(self) -> Result<ServerConfig> {
        match self {
            Self::Plain => Ok(ServerConfig::new(Arc::new(Plain), Arc::new(Plain))),
            Self::Tls => tls::server(),
        }
    }

    fn client(self) -> Result<ClientConfig> {
        match self {
            Self::Plain => Ok(ClientConfig::new(Arc::new(Plain))),
            Self::Tls => tls::client(),
        }
    }
}

/// The receiver's count of bulk data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Seconds from the first byte to the last.
    pub seconds: f64,
}

impl Carried {
    /// Gigabits a second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (bytes, seconds) = text.trim().split_once(' ')?;
        Some(Self { bytes: bytes.parse().ok()?, seconds: seconds.parse().ok()? })
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bytes, self.seconds)
    }
}

/// Serves until the process ends.
pub fn serve(at: SocketAddr, protection: Protection) -> Result<()> {
    runtime()?.block_on(async {
        let mut config = protection.server()?;
        config.transport_config(transport());
        let endpoint = endpoint(at, Some(config))?;
        while let Some(incoming) = endpoint.accept().await {
            let connection = incoming.await?;
            if let Err(error) = answer(&connection).await {
                eprintln!("quic: {error}");
            }
        }
        Ok(())
    })
}

/// Transfers bulk data for `seconds` seconds.
pub fn call(
    to: SocketAddr,
    direction: Direction,
    seconds: f64,
    protection: Protection,
) -> Result<Carried> {
    runtime()?.block_on(async {
        let any = SocketAddr::new(
            match to {
                SocketAddr::V4(_) => [0; 4].into(),
                SocketAddr::V6(_) => [0; 16].into(),
            },
            0,
        );
        let endpoint = endpoint(any, None)?;
        let mut config = protection.client()?;
        config.transport_config(transport());
        let connection = endpoint.connect_with(config, to, "bench")?.await?;
        let (mut send, mut recv) = connection.open_bi().await?;
        let mut request = [0; REQUEST];
        request[0] = (direction == Direction::Up).into();
        request[1..].copy_from_slice(&((seconds * 1e3) as u32).to_be_bytes());
        send.write_all(&request).await?;
        let carried = match direction {
            Direction::Down => {
                send.finish()?;
                receive(&mut recv).await?
            }
            Direction::Up => {
                send_for(&mut send, seconds).await?;
                let result = recv.read_to_end(100).await?;
                Carried::parse(std::str::from_utf8(&result)?).ok_or("the server sent no figures")?
            }
        };
        connection.close(VarInt::from_u32(0), b"");
        endpoint.wait_idle().await;
        Ok(carried)
    })
}

async fn answer(connection: &Connection) -> Result<()> {
    let (mut send, mut recv) = connection.accept_bi().await?;
    let mut request = [0; REQUEST];
    recv.read_exact(&mut request).await?;
    let [direction, milliseconds @ ..] = request;
    if direction == 0 {
        send_for(&mut send, f64::from(u32::from_be_bytes(milliseconds)) / 1e3).await?;
    } else {
        let carried = receive(&mut recv).await?;
        send.write_all(carried.to_string().as_bytes()).await?;
        send.finish()?;
    }
    connection.closed().await;
    Ok(())
}

async fn send_for(send: &mut SendStream, seconds: f64) -> Result<()> {
    static ZEROS: [u8; CHUNK] = [0; CHUNK];
    let watch = Stopwatch::start();
    while watch.elapsed().as_secs_f64() < seconds {
        send.write_chunk(Bytes::from_static(&ZEROS)).await?;
    }
    send.finish()?;
    Ok(())
}

async fn receive(recv: &mut RecvStream) -> Result<Carried> {
    let mut bytes = 0;
    let mut watch = None;
    while let Some(chunk) = recv.read_chunk(usize::MAX, true).await? {
        watch.get_or_insert_with(Stopwatch::start);
        bytes += chunk.bytes.len() as u64;
    }
    let seconds = watch.ok_or("nothing came")?.elapsed().as_secs_f64();
    Ok(Carried { bytes, seconds })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn endpoint(at: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = UdpSocket::bind(at)?;
    // Exceeds the system's limit if that is allowed.
    let _ = setsockopt(&socket, RcvBuf, &SOCKET_BUFFER);
    let _ = setsockopt(&socket, RcvBufForce, &SOCKET_BUFFER);
    let _ = setsockopt(&socket, SndBuf, &SOCKET_BUFFER);
    let _ = setsockopt(&socket, SndBufForce, &SOCKET_BUFFER);
    let config = EndpointConfig::new(Arc::new(Plain));
    Ok(Endpoint::new(config, server, socket, Arc::new(TokioRuntime))?)
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    let idle = Duration::from_secs(10).try_into().expect("10 s fit a transport parameter");
    config
        .initial_mtu(DATAGRAM)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .ack_frequency_config(Some(acks))
        .max_idle_timeout(Some(idle));
    Arc::new(config)
}
