//! Traffic between two hosts, through sockets of this process in their namespaces.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use sys::clock::boottime;

use super::host::Host;

/// The tunnel must be up within this; a lost handshake is retried after 5 s.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes of one read or write.
const CHUNK: usize = 128 << 10;

/// The time between two echoes.
const INTERVAL: Duration = Duration::from_millis(3);

/// An echo that takes longer counts as lost.
const ECHO_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a receiver checks whether the measurement is over.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn now() -> Duration {
    boottime()
}

/// An open TCP stream.
pub(super) struct Load {
    from: TcpStream,
    to: TcpStream,
}

impl Load {
    /// Connects to an address of the other host, once the host has it.
    pub(super) fn start(from: &Host, to: &Host, address: &str) -> anyhow::Result<Self> {
        let begin = now();
        let any = || format!("{address}:0");
        let listener = loop {
            match to.inside(|| TcpListener::bind(any()))? {
                Ok(listener) => break listener,
                Err(error) if now() - begin > TIMEOUT => {
                    return Err(error).context("the tunnel does not come up");
                }
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        };
        let at = listener.local_addr()?;
        let from = from.inside(|| TcpStream::connect_timeout(&at, TIMEOUT))?;
        let from = from.context("cannot connect through the tunnel")?;
        Ok(Self { from, to: listener.accept()?.0 })
    }

    /// Runs for this time. Returns the received gigabits per second.
    pub(super) fn run(self, time: Duration) -> anyhow::Result<f64> {
        let Self { mut from, mut to } = self;
        to.set_read_timeout(Some(TIMEOUT))?;
        thread::scope(|scope| {
            let write = move || {
                let zeros = vec![0; CHUNK];
                // Until the other end closes.
                while from.write_all(&zeros).is_ok() {}
            };
            thread::Builder::new().spawn_scoped(scope, write)?;
            let (begin, mut bytes, mut buffer) = (now(), 0, vec![0; CHUNK]);
            let mut elapsed = Duration::ZERO;
            while elapsed < time {
                let len = to.read(&mut buffer).context("the stream broke")?;
                ensure!(len > 0, "the stream ended");
                bytes += len;
                elapsed = now() - begin;
            }
            drop(to);
            Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9)
        })
    }
}

/// The round-trip times of single datagrams, sorted.
pub(super) fn echoes(
    from: &Host,
    to: &Host,
    address: &str,
    time: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let (client, server) = sockets(from, to, address)?;
    client.set_read_timeout(Some(ECHO_TIMEOUT))?;
    server.set_read_timeout(Some(POLL_INTERVAL))?;
    let over = AtomicBool::new(false);
    let mut times = thread::scope(|scope| -> anyhow::Result<Vec<Duration>> {
        let answer = || {
            let mut byte = [0; 8];
            while !over.load(Ordering::Relaxed) {
                if let Ok((len, caller)) = server.recv_from(&mut byte) {
                    // The other end detects a lost answer.
                    let _ = server.send_to(&byte[..len], caller);
                }
            }
        };
        thread::Builder::new().spawn_scoped(scope, answer)?;
        let times = send_echoes(&client, time);
        over.store(true, Ordering::Relaxed);
        times
    })?;
    ensure!(!times.is_empty(), "no datagram came back");
    times.sort();
    Ok(times)
}

fn send_echoes(client: &UdpSocket, time: Duration) -> anyhow::Result<Vec<Duration>> {
    let (begin, mut times, mut number) = (now(), Vec::new(), 0u64);
    while now() - begin < time {
        number += 1;
        let sent = now();
        client.send(&number.to_be_bytes())?;
        let mut answer = [0; 8];
        // Skip late answers to earlier datagrams.
        while answer != number.to_be_bytes() {
            match client.recv(&mut answer) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if answer == number.to_be_bytes() {
            times.push(now() - sent);
        }
        thread::sleep(INTERVAL);
    }
    Ok(times)
}

/// The time that this fraction of the times stays below.
pub(super) fn percentile(times: &[Duration], part: f64) -> Duration {
    let index = (times.len() as f64 * part) as usize;
    times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Single datagrams, as fast as one thread can send them.
pub(super) struct Flood {
    from: UdpSocket,
    to: UdpSocket,
    payload: usize,
}

/// The rates of a flood, in thousands per second.
pub(super) struct Flooded {
    pub sent: f64,
    pub received: f64,
}

impl Flood {
    pub(super) fn start(
        from: &Host,
        to: &Host,
        address: &str,
        payload: usize,
    ) -> anyhow::Result<Self> {
        let (from, to) = sockets(from, to, address)?;
        Ok(Self { from, to, payload })
    }

    pub(super) fn run(self, time: Duration) -> anyhow::Result<Flooded> {
        let Self { from, to, payload } = self;
        to.set_read_timeout(Some(POLL_INTERVAL))?;
        let (over, received) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let receive = || {
                let mut buffer = vec![0; payload];
                while !over.load(Ordering::Relaxed) {
                    let got = to.recv(&mut buffer).is_ok();
                    received.fetch_add(got.into(), Ordering::Relaxed);
                }
            };
            thread::Builder::new().spawn_scoped(scope, receive)?;
            let (begin, mut sent, datagram) = (now(), 0u64, vec![0; payload]);
            let mut elapsed = Duration::ZERO;
            while elapsed < time {
                sent += u64::from(from.send(&datagram).is_ok());
                elapsed = now() - begin;
            }
            over.store(true, Ordering::Relaxed);
            let rate = |count: u64| count as f64 / elapsed.as_secs_f64() / 1e3;
            Ok(Flooded { sent: rate(sent), received: rate(received.load(Ordering::Relaxed)) })
        })
    }
}

/// A socket in each host, the first connected to the second.
fn sockets(from: &Host, to: &Host, address: &str) -> anyhow::Result<(UdpSocket, UdpSocket)> {
    let server = to.inside(|| UdpSocket::bind(format!("{address}:0")))??;
    let at: SocketAddr = server.local_addr()?;
    let client = from.inside(|| UdpSocket::bind("0.0.0.0:0"))??;
    client.connect(at)?;
    Ok((client, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_one_of_the_times() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(51));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(100));
        assert_eq!(percentile(&times[..1], 0.99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
