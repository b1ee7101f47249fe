//! From a region's relays to one that is ready for a login (tailscale
//! `derp/derphttp/derphttp_client.go`).
//!
//! ```text
//!   each node: addresses or proxy, 1.5 s ──► TLS ──► GET /derp, Upgrade: DERP ──► the relay's key
//!                                             └─ the key in a certificate: no answer to wait for
//! ```

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use rustls::{ProtocolVersion, pki_types::ServerName};
use tailnet::{
    derp::{Decoder, FromRelay},
    messages::{DerpNode, DerpRegion, RelayAddress},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::tls;
use crate::agent::control::dial::{Dialer, Stream, Target, connect_to, look_up, race};

/// How long an address has, and how long a proxy, which takes a round trip more (stock: 1.5 s).
const CONNECT: Duration = Duration::from_millis(1500);
const CONNECT_BY_PROXY: Duration = Duration::from_secs(5);
/// How long TLS and the upgrade may take.
const UPGRADE: Duration = Duration::from_secs(6);
/// IPv4 begins so much later (stock).
const V4_DELAY: Duration = Duration::from_millis(200);
/// The longest answer to the upgrade.
const MAX_ANSWER: usize = 16 << 10;
/// Read at once from the socket; TLS alone would read 4 KiB.
const READ_BUFFER: usize = 64 << 10;

type Tls = TlsStream<BufReader<Box<dyn Stream>>>;

/// A relay that waits for a login.
pub struct Connection {
    /// TLS.
    pub stream: Tls,
    /// What was read already.
    pub buffer: BytesMut,
    /// What takes frames out of it.
    pub decoder: Decoder,
    /// This machine's end, unless a proxy is between.
    pub local: Option<SocketAddr>,
    /// The relay's key.
    pub server: [u8; 32],
    /// The round trip of the upgrade, where there was one.
    pub latency: Option<Duration>,
}

/// Connects to the first relay of a region that can be reached.
///
/// # Errors
/// What was in the way to the first of them.
pub async fn connect(dialer: &Dialer, region: &DerpRegion) -> anyhow::Result<Connection> {
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
    Err(first_error.unwrap_or_else(|| anyhow::anyhow!("the region has no relays")))
}

/// How far a region is, by a request of HTTP.
///
/// # Errors
/// No relay of it can be reached.
pub async fn measure(dialer: &Dialer, region: &DerpRegion) -> anyhow::Result<Duration> {
    let nodes = region.nodes.iter().filter(|node| !node.stun_only);
    let mut first_error = anyhow::anyhow!("the region has no relays");
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

/// TLS with a relay.
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
    // A name is looked up where no address is said: a dead name server does not matter otherwise.
    if addresses.is_empty() {
        addresses = look_up(&node.host_name, port).await?;
        let (has_v4, has_v6) =
            (node.ipv4() != RelayAddress::Nowhere, node.ipv6() != RelayAddress::Nowhere);
        addresses.retain(|address| if address.is_ipv4() { has_v4 } else { has_v6 });
    }
    let mut addresses = dialer.admit(&node.host_name, addresses)?;
    // IPv6 first, in the order of the name server otherwise.
    addresses.sort_by_key(SocketAddr::is_ipv4);
    let first_v4 = addresses.iter().position(SocketAddr::is_ipv4).unwrap_or(0);
    let attempts = addresses.into_iter().enumerate().map(|(number, to)| {
        let later = if first_v4 > 0 && to.is_ipv4() { V4_DELAY } else { Duration::ZERO };
        // Others of its family have a little time each.
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
    name.with_context(|| format!("{:?} is no name of a host", node.host_name))
}

/// What stands for a relay in a request. Its name was a valid one for TLS.
fn host(node: &DerpNode) -> anyhow::Result<String> {
    let name = server_name(node)?.to_str().into_owned();
    let name = if name.contains(':') { format!("[{name}]") } else { name };
    Ok(if node.derp_port() == 443 { name } else { format!("{name}:{}", node.derp_port()) })
}

/// Has a stream of HTTP become one of frames. `ideal`: the node that would have been better.
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
                bail!("the relay does not begin with its key");
            };
            return Ok(Connection { stream, buffer, decoder, local, server, latency });
        }
        ensure!(stream.read_buf(&mut buffer).await? != 0, "the connection ended");
    }
}

/// Reads the head of an answer. What follows it stays in `buffer`.
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

/// The first line, as far as it can be shown.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned()
}
