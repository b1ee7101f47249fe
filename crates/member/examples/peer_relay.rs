//! A peer relay alone, and a load generator for any peer relay: two clients that are bound to one
//! endpoint exchange datagrams.
//!
//! ```text
//!   peer_relay serve PORT                             relays for the load's clients
//!   peer_relay load ADDRESS KEY VNI [SIZE [SECONDS]]  with the line that `serve` prints
//!   peer_relay bare ADDRESS [SIZE [SECONDS]]          without a relay: see below
//! ```
//!
//! One client sends runs by GSO as fast as the relay forwards them, and the other counts received
//! datagrams. The same load drives Tailscale's relay (`bench/testcontrol/udprelay`). Run relay and
//! load in separate network namespaces: over loopback, the sender's core would do the relay's
//! receiving.
//!
//! `bare` measures the upper bound for a relay. The kernel rewrites addresses instead, from port
//! 41001 to port 41002 of the load's host (here 10.9.0.2) through 10.9.0.1:41000:
//!
//! ```text
//!   nft add table ip n; sysctl net.ipv4.ip_forward=1
//!   nft 'add chain ip n pre { type nat hook prerouting priority -100; }'
//!   nft 'add chain ip n post { type nat hook postrouting priority 100; }'
//!   nft add rule ip n pre udp dport 41000 dnat to 10.9.0.2:41002
//!   nft add rule ip n post udp dport 41002 snat to 10.9.0.1:41000
//! ```

use std::{
    env,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use ipc::{
    self, PART, Reader,
    relay_process::{FromRelayServer, ToRelayServer},
};
use member::relay_server::Bound;
use packet::{ControlSend as _, Ecn, Endpoint, RecvBatch, SendBatch, UdpRecv, UdpSend};
use sys::{Channel, Offloads, UdpReceiver, UdpSocket, clock};
use tailnet::{
    disco::{Bind, Disco, Message},
    geneve::{GENEVE_LEN, Geneve, Protocol, Vni},
    keys::{DiscoKey, DiscoPublic},
};

/// The datagrams in one batch of the sender.
const BATCH_SIZE: usize = 256;
/// The most datagrams in flight: the capacity of a relay's socket. More would be dropped there, at
/// the cost of the cores that relay and load share.
const MAX_IN_FLIGHT: u64 = 2048;
/// The age at which a datagram counts as lost.
const LOSS_AGE: Duration = Duration::from_millis(5);
/// The time limit of an answer of the relay.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["keys"] => {
            let [one, other] = clients();
            println!("{} {}", hex(one.public()), hex(other.public()));
            Ok(())
        }
        ["serve", port] => serve(port.parse().context("port")?),
        ["load", address, key, vni, ref rest @ ..] => {
            let key: DiscoPublic = format!("{}{key}", DiscoPublic::PREFIX).parse()?;
            let vni = Vni::new(vni.parse().context("vni")?).context("vni")?;
            let (size, time) = shape(rest)?;
            load(address.parse().context("address")?, key, vni, size, time)
        }
        ["bare", address, ref rest @ ..] => {
            let (size, time) = shape(rest)?;
            let offloads = Arc::<Offloads>::default();
            let [source, sink] = [41001, 41002].map(|port| {
                let (socket, receiver) = UdpSocket::unbound(&offloads)?;
                socket.bind(port, 0)?;
                Ok::<_, anyhow::Error>((socket, receiver))
            });
            let vni = Vni::new(1).context("vni")?;
            run(address.parse().context("address")?, vni, (source?.0, sink?), size, time)
        }
        _ => bail!(
            "usage: peer_relay serve PORT | bare ADDRESS [SIZE [SECONDS]] | load ADDRESS KEY VNI [SIZE [SECONDS]] | keys"
        ),
    }
}

/// The length of a datagram, and the duration of the load.
fn shape(words: &[&str]) -> anyhow::Result<(usize, Duration)> {
    let size = words.first().map_or(Ok(1400), |size| size.parse()).context("size")?;
    let seconds = words.get(1).map_or(Ok(5), |time| time.parse()).context("seconds")?;
    ensure!((64..=9000).contains(&size), "SIZE is 64 to 9000");
    Ok((size, Duration::from_secs(seconds)))
}

fn clients() -> [Disco; 2] {
    [1, 2].map(|byte| Disco::new(DiscoKey::new(Box::new([byte; 32].into()))))
}

fn hex(key: DiscoPublic) -> String {
    key.to_string().split_off(DiscoPublic::PREFIX.len())
}

fn serve(port: u16) -> anyhow::Result<()> {
    let bound = Bound::new(port, 0)?;
    let (agent, line) = Channel::pair()?;
    let (_steward, stewards) = Channel::pair()?;
    let relay = start("relay", move || bound.serve(line, &stewards))?;
    let keys = clients().map(|client| client.public());
    let request = ToRelayServer::Allocate { id: 1, requested_by: keys[0], clients: keys };
    ipc::write(&request, |part| agent.send(part))?;
    let (mut buffer, mut reader) = (vec![0; PART], Reader::default());
    loop {
        let len = agent.receive(&mut buffer)?;
        ensure!(len > 0, "the relay has ended");
        if let Some(FromRelayServer::Allocated { endpoint, .. }) =
            reader.handle_part(&buffer[..len])?
        {
            let endpoint = endpoint?;
            println!("{} {} {port}", hex(endpoint.server), endpoint.vni);
            break;
        }
    }
    relay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn load(
    relay: SocketAddr,
    key: DiscoPublic,
    vni: Vni,
    size: usize,
    time: Duration,
) -> anyhow::Result<()> {
    let offloads = Arc::<Offloads>::default();
    let [mut one, mut other] = clients();
    let keys = [one.public(), other.public()];
    let mut sockets = Vec::new();
    for (client, other) in [(&mut one, keys[1]), (&mut other, keys[0])] {
        let (socket, mut receiver) = UdpSocket::unbound(&offloads)?;
        socket.bind(0, 0)?;
        bind(client, other, &socket, &mut receiver, relay, key, vni)?;
        sockets.push((socket, receiver));
    }
    let sink = sockets.pop().context("two")?;
    let (source, _unused) = sockets.pop().context("two")?;
    run(relay, vni, (source, sink), size, time)
}

/// Sends datagrams, and counts the received ones.
fn run(
    relay: SocketAddr,
    vni: Vni,
    (source, (sink, mut receiver)): (UdpSocket, (UdpSocket, UdpReceiver)),
    size: usize,
    time: Duration,
) -> anyhow::Result<()> {
    let (arrived, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let (counted, over) = (arrived.clone(), ended.clone());
    let wake = receiver.waker();
    let counting = start("sink", move || -> anyhow::Result<()> {
        let mut batch = RecvBatch::new(64);
        while !over.load(Ordering::Relaxed) {
            receiver.recv(&mut batch, false, true)?;
            let count: usize = batch.filled().map(|(all, meta)| all.len / meta.stride).sum();
            counted.fetch_add(count as u64, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let header = Geneve { control: false, protocol: Protocol::WireGuard, vni }.bytes();
    let (mut sender, mut batch, mut sent) = (source.sender(), SendBatch::default(), 0_u64);
    let (mut lost, mut last) = (0, (0, now()));
    let mut send_until = |end: Duration| {
        while now() < end {
            let here = arrived.load(Ordering::Relaxed);
            if last.0 != here {
                last = (here, now());
            }
            if sent.saturating_sub(here + lost) >= MAX_IN_FLIGHT {
                if now() < last.1 + LOSS_AGE {
                    thread::yield_now();
                } else {
                    lost = sent.saturating_sub(here);
                }
                continue;
            }
            batch.clear();
            for _ in 0..BATCH_SIZE {
                let datagram = batch.push(size, Endpoint::new(relay), Ecn::NotEct);
                datagram[..GENEVE_LEN].copy_from_slice(&header);
            }
            sender.send(&mut batch);
            let failed: usize = batch.failures().iter().map(|failure| failure.datagrams).sum();
            sent += (BATCH_SIZE - failed) as u64;
        }
        sent
    };
    let warm = send_until(now() + Duration::from_millis(500));
    let (before, began) = (arrived.load(Ordering::Relaxed), now());
    let offered = send_until(began + time) - warm;
    let (took, after) = ((now() - began).as_secs_f64(), arrived.load(Ordering::Relaxed));
    ended.store(true, Ordering::Relaxed);
    wake();
    counting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let rate = |count: u64| count as f64 / took / 1e3;
    println!(
        "{size} B: offered {:.0} kpps, forwarded {:.0} kpps, {:.2} Gbit/s; the sink's socket lost {}",
        rate(offered),
        rate(after - before),
        rate(after - before) * size as f64 * 8.0 / 1e6,
        sink.overflow(),
    );
    Ok(())
}

fn start<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

fn now() -> Duration {
    clock::boottime()
}

/// Binds a client's address to the endpoint.
fn bind(
    client: &mut Disco,
    other: DiscoPublic,
    socket: &UdpSocket,
    receiver: &mut UdpReceiver,
    relay: SocketAddr,
    key: DiscoPublic,
    vni: Vni,
) -> anyhow::Result<()> {
    let header = Geneve { control: true, protocol: Protocol::Disco, vni }.bytes();
    let send = |client: &mut Disco, message: &Message| -> anyhow::Result<()> {
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce)?;
        let datagram = [&header[..], &client.seal(key, message, nonce)].concat();
        let sent = socket.send_control(&datagram, Endpoint::new(relay), None);
        sent.map_err(|error| anyhow::anyhow!("{error:?}"))
    };
    let begin = Bind { vni, generation: 1, other, challenge: [0; 32] };
    send(client, &Message::Bind(begin))?;
    let (mut batch, waker, deadline) =
        (RecvBatch::new(4), receiver.waker(), now() + ANSWER_TIMEOUT);
    start("patience", move || {
        thread::sleep(ANSWER_TIMEOUT);
        waker();
    })?;
    // A new socket ends the first wait.
    while batch.is_empty() && now() < deadline {
        receiver.recv(&mut batch, false, true)?;
    }
    let (answer, _) = batch.filled().next().context("the relay does not answer")?;
    let opened = client.open(batch.get(answer).get(GENEVE_LEN..).context("a short answer")?);
    let Ok((_, Message::BindChallenge(challenge))) = opened else { bail!("{opened:?}") };
    send(client, &Message::BindAnswer(challenge))
}
