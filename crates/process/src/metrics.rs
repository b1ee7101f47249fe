//! Counters for Prometheus, over HTTP on a loopback address or a Unix socket. They reveal which
//! peers communicate, so only this machine may read them.
//!
//! One thread answers clients one by one, without state between requests.

mod text;

use std::{
    fmt, io,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    thread,
    time::Duration,
};

use node::Node;
use sys::{ACCEPT_PAUSE, SocketFile, clock::boottime_nanos, process::Helper};

/// Limit of a request's head in bytes. Scrapers send some hundred.
const MAX_HEAD: usize = 4096;
/// The time in which a client must send its request and read the response.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the thread's stack.
const STACK: usize = 128 * 1024;

/// The address at which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address and a port.
    Loopback(SocketAddr),
    /// A Unix socket, which only its owner may open.
    Unix(PathBuf),
}

/// The reason why metrics cannot be served at an address.
#[derive(Debug, PartialEq, Eq)]
pub enum AddressError {
    /// The text is neither an address with a port nor `unix:` and a path.
    Form,
    /// Other machines might reach the address.
    NotLoopback,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(AddressError::Form),
            None => match text.parse::<SocketAddr>() {
                Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
                Ok(_) => Err(AddressError::NotLoopback),
                Err(_) => Err(AddressError::Form),
            },
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "neither ADDRESS:PORT nor unix:/PATH",
            Self::NotLoopback => {
                "not a loopback address: other machines must not see the activity of peers; use a \
                reverse proxy with a password"
            }
        })
    }
}

impl std::error::Error for AddressError {}

/// A bound listener that is not served yet.
#[derive(Debug)]
pub struct Metrics(Listener);

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Metrics {
    /// Binds the address. A stale Unix socket of a killed process is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(Self(match address {
            Address::Loopback(address) => Listener::Tcp(TcpListener::bind(address)?),
            Address::Unix(path) => {
                let (listener, file) = SocketFile::listen(path)?;
                Listener::Unix(listener, file)
            }
        }))
    }

    /// Leaves the removal of a Unix socket's file to `helper`.
    pub fn delegate_removal(&mut self, helper: Arc<Helper>) {
        if let Listener::Unix(_, file) = &mut self.0 {
            file.delegate_removal(helper);
        }
    }

    /// The file of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Listener::Tcp(_) => None,
            Listener::Unix(_, file) => Some(file.path()),
        }
    }

    /// Serves the counters of `node` in a separate thread until the process exits. The caller owns
    /// the returned file of a Unix socket.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn serve(self, node: Arc<Node>) -> io::Result<Option<SocketFile>> {
        let thread = thread::Builder::new().name("metrics".into()).stack_size(STACK);
        match self.0 {
            Listener::Tcp(listener) => {
                thread.spawn(move || serve_each(&node, listener.incoming()))?;
                Ok(None)
            }
            Listener::Unix(listener, file) => {
                thread.spawn(move || serve_each(&node, listener.incoming()))?;
                Ok(Some(file))
            }
        }
    }
}

/// The connection to a client.
trait Client: Read + Write {
    /// Sets the timeout of a read or a write.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Client for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Client for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

fn serve_each<C: Client>(node: &Node, clients: impl Iterator<Item = io::Result<C>>) {
    for client in clients {
        if let Err(error) = client.and_then(|client| serve_one(node, client)) {
            tracing::debug!(%error, "a client of the metrics was not served");
            if error.raw_os_error().is_some() {
                // For example, all file descriptors are in use. That does not change at once.
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn serve_one(node: &Node, mut client: impl Client) -> io::Result<()> {
    let deadline = boottime_nanos() + PATIENCE.as_nanos() as u64;
    let head = read_head(&mut client, |client| match deadline.saturating_sub(boottime_nanos()) {
        0 => Err(io::ErrorKind::TimedOut.into()),
        left => client.limit(Duration::from_nanos(left)),
    })?;
    client.write_all(answer(&head, || text::write(node)).as_bytes())
}

/// Reads up to the empty line. `before` is called before each read.
fn read_head<C: Read>(
    client: &mut C,
    before: impl Fn(&C) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let mut head = vec![0; MAX_HEAD];
    let mut len = 0;
    while !head[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        before(client)?;
        match client.read(&mut head[len..])? {
            // The client disconnected, or the head is too long.
            0 => break,
            read => len += read,
        }
    }
    head.truncate(len);
    Ok(head)
}

/// The complete response to a request.
fn answer(head: &[u8], counters: impl FnOnce() -> String) -> String {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let (status, body) = match request.parse(head) {
        Ok(httparse::Status::Complete(_)) if !is_local(&request) => {
            ("403 Forbidden", "wrong host name\n".to_owned())
        }
        Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
            (Some("GET"), Some("/metrics")) => ("200 OK", counters()),
            (Some("GET"), _) => ("404 Not Found", "the counters are at /metrics\n".to_owned()),
            _ => ("405 Method Not Allowed", "only GET is allowed\n".to_owned()),
        },
        _ => ("400 Bad Request", "invalid request\n".to_owned()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Whether the Host header of a request names this machine. With DNS rebinding, a foreign web page
/// in a local browser would send its own host name.
fn is_local(request: &httparse::Request<'_, '_>) -> bool {
    let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    let Some(host) = host.and_then(|header| std::str::from_utf8(header.value).ok()) else {
        return true;
    };
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let ip = name.parse::<IpAddr>();
    name.is_empty() || name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_on_this_machine_are_accepted() {
        for (text, address) in [
            ("127.0.0.1:9586", Ok(Address::Loopback(([127, 0, 0, 1], 9586).into()))),
            ("[::1]:1", Ok(Address::Loopback("[::1]:1".parse().unwrap()))),
            ("unix:/run/x", Ok(Address::Unix("/run/x".into()))),
            ("unix:x", Err(AddressError::Form)),
            ("0.0.0.0:9586", Err(AddressError::NotLoopback)),
            ("[::]:9586", Err(AddressError::NotLoopback)),
            ("[::ffff:127.0.0.1]:1", Err(AddressError::NotLoopback)),
            ("192.0.2.1:9586", Err(AddressError::NotLoopback)),
            ("localhost:9586", Err(AddressError::Form)),
            ("9586", Err(AddressError::Form)),
            ("", Err(AddressError::Form)),
        ] {
            assert_eq!(text.parse(), address, "{text}");
        }
    }

    fn status(head: &str) -> String {
        let answer = answer(head.as_bytes(), || "counted 1\n".into());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{answer}");
        assert_eq!(body == "counted 1\n", head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        head.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn counters_are_sent_only_for_local_requests() {
        for (head, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9586\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nhost: [::1]:9586\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example:9586\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "403"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/1.1\r\n", "400"),
            ("\u{16}\u{3}\u{1}", "400"),
            ("", "400"),
        ] {
            assert_eq!(status(head), wanted, "{head:?}");
        }
    }

    #[test]
    fn head_is_read_in_pieces_up_to_its_end_or_its_limit() {
        let whole = b"GET / HTTP/1.1\r\n\r\n";
        let mut pieces = whole[..5].chain(&whole[5..]);
        assert_eq!(read_head(&mut pieces, |_| Ok(())).unwrap(), whole);
        let endless = read_head(&mut io::repeat(b'x'), |_| Ok(())).unwrap();
        assert_eq!(endless.len(), MAX_HEAD);
        let late = |_: &io::Repeat| Err(io::ErrorKind::TimedOut.into());
        assert!(read_head(&mut io::repeat(b'x'), late).is_err());
    }
}
