//! The generator of TCP through proxies: streams to a drain, which counts the bytes that
//! reach it.
//!
//! ```text
//!   sender --SOCKS5--> the proxy  ~~tunnel~~  drain
//! ```
//!
//! Bytes in the buffers of the proxies have not arrived yet, so the drain is read at two
//! instants while all streams run. The sender's count is not used.

use std::io::{self, Read, Write, stdin};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use netns::Stopwatch;

/// Bytes of one call, as iperf3 uses for TCP.
const BLOCK: usize = 128 << 10;

/// A proxy that does not answer fails after this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// SOCKS version 5 (RFC 1928), without authentication; and CONNECT to an IPv4 address.
const GREETING: [u8; 3] = [5, 1, 0];
const GREETED: [u8; 2] = [5, 0];
const CONNECT_V4: [u8; 4] = [5, 1, 0, 1];

/// Bytes of an answer behind its first four, with an IPv4 or an IPv6 address.
const REST_V4: usize = 6;
const REST_V6: usize = 18;

/// Counter of a drain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// Bytes of all streams.
    pub bytes: u64,
    /// Seconds since the start of the drain.
    pub seconds: f64,
}

impl Count {
    /// Parses an answer of a drain.
    pub fn parse(line: &str) -> Option<Self> {
        let (bytes, seconds) = line.trim().split_once(' ')?;
        Some(Self { bytes: bytes.parse().ok()?, seconds: seconds.parse().ok()? })
    }

    /// Gigabits a second since an earlier count.
    pub fn gbps_since(self, before: Self) -> f64 {
        (self.bytes - before.bytes) as f64 * 8.0 / 1e9 / (self.seconds - before.seconds)
    }
}

/// Reads all streams, and answers each line of stdin with a [`Count`]. It ends with its stdin.
pub fn drain(at: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    let watch = Stopwatch::start();
    static BYTES: AtomicU64 = AtomicU64::new(0);
    thread::Builder::new().name("count".to_owned()).spawn(move || {
        for _ in stdin().lines().map_while(Result::ok) {
            println!("{} {}", BYTES.load(Ordering::Relaxed), watch.elapsed().as_secs_f64());
        }
        process::exit(0);
    })?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::Builder::new()
            .name("drain".to_owned())
            .spawn(move || count_bytes(stream, &BYTES))?;
    }
    Ok(())
}

fn count_bytes(mut stream: TcpStream, bytes: &AtomicU64) {
    let mut block = vec![0; BLOCK];
    // Bytes read before an error have been counted.
    while let Ok(len @ 1..) = stream.read(&mut block) {
        bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Sends `streams` streams through a SOCKS5 proxy for `seconds` seconds.
pub fn send_streams(
    to: SocketAddrV4,
    proxy: SocketAddr,
    streams: usize,
    seconds: f64,
) -> io::Result<()> {
    let opened: io::Result<Vec<TcpStream>> = (0..streams).map(|_| connect(to, proxy)).collect();
    let watch = Stopwatch::start();
    for mut stream in opened? {
        thread::Builder::new().name("pour".to_owned()).spawn(move || {
            let block = vec![0; BLOCK];
            let error = loop {
                if let Err(error) = stream.write_all(&block) {
                    break error;
                }
            };
            eprintln!("a stream broke: {error}");
            process::exit(1);
        })?;
    }
    thread::sleep(Duration::from_secs_f64(seconds).saturating_sub(watch.elapsed()));
    Ok(())
}

fn connect(to: SocketAddrV4, proxy: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&GREETING)?;
    let mut greeted = [0; 2];
    stream.read_exact(&mut greeted)?;
    if greeted != GREETED {
        return Err(io::Error::other(format!("the proxy requires authentication: {greeted:?}")));
    }
    stream.write_all(&[&CONNECT_V4[..], &to.ip().octets(), &to.port().to_be_bytes()].concat())?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    if answer[..2] != GREETED {
        return Err(io::Error::other(format!("the proxy refused: {}", answer[1])));
    }
    let rest = if answer[3] == 1 { REST_V4 } else { REST_V6 };
    stream.read_exact(&mut vec![0; rest])?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::thread;

    use super::{Count, connect};

    /// A proxy that sends these bytes and returns the bytes that it received.
    fn proxied(answer: &'static [u8]) -> std::io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let proxy = thread::Builder::new().spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut greeting, mut request) = ([0; 3], [0; 10]);
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&[5, 0]).unwrap();
            stream.read_exact(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            stream.write_all(&request).unwrap();
        });
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), 0x1234);
        let mut stream = connect(to, at)?;
        proxy.unwrap().join().unwrap();
        let mut query = Vec::new();
        stream.read_to_end(&mut query)?;
        Ok(query)
    }

    #[test]
    fn a_stream_starts_after_the_answer_of_the_proxy() {
        let request = [5, 1, 0, 1, 10, 9, 0, 2, 0x12, 0x34];
        assert_eq!(proxied(&[5, 0, 0, 1, 127, 0, 0, 1, 1, 2]).unwrap(), request);
        let v6 = &[5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2];
        assert_eq!(proxied(v6).unwrap(), request);
        let refused = proxied(&[5, 4, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert!(refused.to_string().contains("refused: 4"), "{refused}");
    }

    #[test]
    fn counts_are_printed_and_parsed_and_give_a_rate() {
        let before = Count::parse("1000 0.5\n").unwrap();
        let after = Count::parse("2000001000 2.5").unwrap();
        assert_eq!(after.gbps_since(before), 8.0);
        assert_eq!(Count::parse("x"), None);
    }
}
