//! Connects to one of a region's relays and prepares it for a login (tailscale
//! `derp/derphttp/derphttp_client.go`).
//!
//! ```text
//!   each node: addresses or proxy, 1.5 s ──► TLS ──► GET /derp, Upgrade: DERP ──► the relay's key
//!                                             └─ fast start: the key is in a certificate
//! ```

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use rustls::{ProtocolVersion, pki_types::ServerName};
use tailnet::{
    derp::{Decoder, FromRelay},
    map_messages::{DerpNode, DerpRegion, RelayAddress},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::tls;
use crate::agent::control::dial::{Dialer, Stream, Target, connect_to, look_up, race};

/// The time limit of a TCP connection, as in Tailscale. One through a proxy needs more round trips.
const CONNECT: Duration = Duration::from_millis(1500);
const CONNECT_BY_PROXY: Duration = Duration::from_secs(5);
/// The time limit of TLS, and of the upgrade.
const UPGRADE: Duration = Duration::from_secs(6);
/// The delay of IPv4 after IPv6 (as in Tailscale).
const V4_DELAY: Duration = Duration::from_millis(200);
/// The longest answer to the upgrade, in bytes.
const MAX_ANSWER: usize = 16 << 10;
/// The read buffer of the socket, in bytes. TLS alone would read 4 KiB at once.
const READ_BUFFER: usize = 64 << 10;

type Tls = TlsStream<BufReader<Box<dyn Stream>>>;

/// A connection that is ready for a login.
pub(super) struct Connection {
    /// The TLS stream.
    pub stream: Tls,
    /// Data that was received after the upgrade.
    pub buffer: BytesMut,
    /// Splits `buffer` into frames.
    pub decoder: Decoder,
    /// The local address, unless a proxy is used.
    pub local: Option<SocketAddr>,
    /// The relay's key.
    pub server: [u8; 32],
    /// The round-trip time of the upgrade, unless it was a fast start.
    pub latency: Option<Duration>,
}

/// Connects to the first reachable relay of a region.
///
/// # Errors
/// The first error.
pub(super) async fn connect(dialer: &Dialer, region: &DerpRegion) -> anyhow::Result<Connection> {
    let ideal = region.nodes.first().map_or("", |node| &node.name);
    let mut first_error = None;
    for (number, node) in region.nodes.iter().enumerate().filter(|(_, node)| !node.stun_only) {
        let (stream, local) = match reach(dialer, node).await {
            Ok(reached) => reached,
            Err(error) => {
                first_error = first_error.or(Some(error));
                continue;
            }
        };
        let ideal = Some(ideal).filter(|_| number != 0);
        let upgraded = timeout(UPGRADE, upgrade(stream, node, ideal, local)).await;
        match upgraded.context("no answer in time").flatten() {
            Ok(connection) => return Ok(connection),
            Err(error) => first_error = first_error.or(Some(error.context(node.host_name.clone()))),
        }
    }
    Err(first_error.unwrap_or_else(|| anyhow::anyhow!("no relays in this region")))
}

/// Measures the latency of a region by an HTTP request.
///
/// # Errors
/// No relay of it can be reached.
pub(super) async fn measure(dialer: &Dialer, region: &DerpRegion) -> anyhow::Result<Duration> {
    let nodes = region.nodes.iter().filter(|node| !node.stun_only);
    let mut first_error = anyhow::anyhow!("no relays in this region");
    for node in nodes {
        let request_sent = async {
            let (mut stream, _) = reach(dialer, node).await?;
            let request =
                format!("GET /derp/latency-check HTTP/1.1\r\nHost: {}\r\n\r\n", host(node)?);
            let begun = Instant::now();
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            let head = read_head(&mut stream, &mut BytesMut::new()).await?;
            let latency = begun.elapsed();
            ensure!(status(&head).is_some_and(|status| status < 300), "{}", first_line(&head));
            Ok(latency)
        };
        match timeout(UPGRADE, request_sent).await.context("no answer in time").flatten() {
            Ok(latency) => return Ok(latency),
            Err(error) => first_error = error,
        }
    }
    Err(first_error)
}

/// Opens a TLS connection to a relay.
async fn reach(dialer: &Dialer, node: &DerpNode) -> anyhow::Result<(Tls, Option<SocketAddr>)> {
    let target =
        Target { host: node.host_name.clone(), port: node.derp_port(), tls: true, address: None };
    let (stream, local): (Box<dyn Stream>, _) = match dialer.proxy(&target)? {
        Some(proxy) => {
            let through = timeout(CONNECT_BY_PROXY, dialer.connect_through(proxy, &target)).await;
            (through.with_context(|| format!("{proxy}: no answer in time"))??, None)
        }
        None => {
            let direct = timeout(CONNECT, direct(dialer, node)).await;
            let stream = direct.with_context(|| format!("{}: no answer", node.host_name))??;
            let local = stream.local_addr().ok();
            (Box::new(stream), local)
        }
    };
    let config = tls::config(node, &dialer.tls(), || dialer.roots().store())?;
    let name = server_name(node)?;
    let connecting =
        TlsConnector::from(config).connect(name, BufReader::with_capacity(READ_BUFFER, stream));
    let stream = timeout(UPGRADE, connecting).await.context("TLS: no answer in time")?;
    Ok((stream.with_context(|| format!("TLS with {}", node.host_name))?, local))
}

async fn direct(dialer: &Dialer, node: &DerpNode) -> anyhow::Result<tokio::net::TcpStream> {
    let port = node.derp_port();
    let mut addresses: Vec<SocketAddr> =
        node.addresses().map(|ip| SocketAddr::new(ip, port)).collect();
    // Look-ups are needed only without addresses, so that a dead name server does no harm
    // otherwise.
    if addresses.is_empty() {
        addresses = look_up(&node.host_name, port).await?;
        let (has_v4, has_v6) =
            (node.ipv4() != RelayAddress::Nowhere, node.ipv6() != RelayAddress::Nowhere);
        addresses.retain(|address| if address.is_ipv4() { has_v4 } else { has_v6 });
    }
    let mut addresses = dialer.admit(&node.host_name, addresses)?;
    // IPv6 first; otherwise in the order of the name server.
    addresses.sort_by_key(SocketAddr::is_ipv4);
    let first_v4 = addresses.iter().position(SocketAddr::is_ipv4).unwrap_or(0);
    let attempts = addresses.into_iter().enumerate().map(|(number, to)| {
        let later = if first_v4 > 0 && to.is_ipv4() { V4_DELAY } else { Duration::ZERO };
        // Addresses of one family start with a delay between them.
        let of_family = if to.is_ipv4() { number - first_v4 } else { number };
        let turn = V4_DELAY * u32::try_from(of_family).unwrap_or(u32::MAX);
        (later.saturating_add(turn), connect_to(to, dialer.hook()))
    });
    let mut attempts: Vec<_> = attempts.collect();
    attempts.sort_by_key(|(after, _)| *after);
    Ok(race(attempts).await?)
}

fn server_name(node: &DerpNode) -> anyhow::Result<ServerName<'static>> {
    let name = ServerName::try_from(node.host_name.clone());
    name.with_context(|| format!("{:?} is not a host name", node.host_name))
}

/// The `Host` header for a relay. Its name is valid for TLS.
fn host(node: &DerpNode) -> anyhow::Result<String> {
    let name = server_name(node)?.to_str().into_owned();
    let name = if name.contains(':') { format!("[{name}]") } else { name };
    Ok(if node.derp_port() == 443 { name } else { format!("{name}:{}", node.derp_port()) })
}

/// Upgrades an HTTP stream to frames. `ideal` is the name of the preferred node, if this is
/// another.
async fn upgrade(
    mut stream: Tls,
    node: &DerpNode,
    ideal: Option<&str>,
    local: Option<SocketAddr>,
) -> anyhow::Result<Connection> {
    let (_, session) = stream.get_ref();
    let is_modern = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    let key = session.peer_certificates().filter(|_| is_modern).and_then(tls::meta_key);
    let mut request = format!(
        "GET /derp HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: DERP\r\n",
        host(node)?
    );
    let is_word = |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
    if let Some(ideal) = ideal.filter(is_word) {
        request.push_str(&format!("Ideal-Node: {ideal}\r\n"));
    }
    if key.is_some() {
        request.push_str("Derp-Fast-Start: 1\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut buffer, mut decoder) = (BytesMut::with_capacity(READ_BUFFER), Decoder::default());
    if let Some(server) = key {
        return Ok(Connection { stream, buffer, decoder, local, server, latency: None });
    }
    stream.flush().await?;
    let request_sent = Instant::now();
    let head = read_head(&mut stream, &mut buffer).await?;
    let latency = Some(request_sent.elapsed());
    ensure!(status(&head) == Some(101), "it answers {:?}", first_line(&head));
    loop {
        if let Some((kind, contents)) = decoder.poll_frame(&mut buffer)? {
            let Some(FromRelay::ServerKey(server)) = FromRelay::read(kind, contents)? else {
                bail!("the relay's first frame is not its key");
            };
            return Ok(Connection { stream, buffer, decoder, local, server, latency });
        }
        ensure!(stream.read_buf(&mut buffer).await? != 0, "the connection ended");
    }
}

/// Reads the head of an answer. The rest remains in `buffer`.
async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> anyhow::Result<BytesMut> {
    loop {
        let end = buffer.windows(4).position(|some| some == b"\r\n\r\n");
        if let Some(end) = end {
            return Ok(buffer.split_to(end + 4));
        }
        ensure!(buffer.len() < MAX_ANSWER, "the answer is too long");
        ensure!(stream.read_buf(buffer).await? != 0, "the connection ended");
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(rest).ok()?.parse().ok()
}

/// The first line, limited to 100 bytes.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned()
}
