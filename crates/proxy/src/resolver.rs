//! Resolves names through the tunnel: queries the servers of `DNS` by UDP, and by TCP if the answer is
//! truncated (RFC 1035, RFC 7766).

pub mod dns_message;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use getrandom::{SysRng, rand_core::TryRng};
use sys::clock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use self::dns_message::{Answer, Query, Record};
use super::{
    namespace::unspecified,
    reach::Reach,
    stack::{Datagrams, Stack},
};
use config::conf::Dns;

/// The port of name servers.
const PORT: u16 = 53;
/// The time limits for an answer of one server, in the first and in the second round. glibc and
/// others double it, too.
const TIME_LIMITS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];
/// The longest answer by UDP (RFC 1035, section 2.3.4).
const DATAGRAM: usize = 512;
/// The maximum number of cached answers, of some hundred bytes each.
const CACHE_CAPACITY: usize = 1024;
/// The maximum time that an answer is cached, in seconds.
const MAX_TTL: u32 = 3600;

/// Resolves names through a stack, and caches the answers.
pub(super) struct Resolver<S> {
    stack: Arc<S>,
    reach: Arc<Reach>,
    dns: Dns,
    cache: Mutex<HashMap<(String, Record), CacheEntry>>,
}

struct CacheEntry {
    addresses: Vec<IpAddr>,
    /// The end of its validity, in nanoseconds since boot.
    until: u64,
}

impl<S: Stack> Resolver<S> {
    pub(crate) fn new(stack: Arc<S>, reach: Arc<Reach>, dns: Dns) -> Self {
        Self { stack, reach, dns, cache: Mutex::default() }
    }

    /// The addresses of a name, of one record type.
    ///
    /// # Errors
    /// `NotFound` if the name does not exist; otherwise the last error of a server.
    pub(crate) async fn addresses(&self, name: &str, record: Record) -> io::Result<Vec<IpAddr>> {
        if let Some(mut addresses) = self.reach.addresses_of(name) {
            addresses.retain(|address| address.is_ipv6() == (record == Record::Aaaa));
            return if addresses.is_empty() { Err(no_such_name(name)) } else { Ok(addresses) };
        }
        if self.dns.servers.is_empty() {
            let reason = "names cannot be resolved: DNS is missing in [Interface]";
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        }
        let mut last = Err(no_such_name(name));
        for name in self.candidates(name) {
            last = self.query(&name, record).await;
            match &last {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        last
    }

    /// The names to query: a name of one label is first tried in each search domain.
    fn candidates(&self, name: &str) -> Vec<String> {
        let is_short = !name.contains('.');
        let domains = self.dns.search_domains.iter().filter(|_| is_short);
        let domains = domains.map(|domain| domain.trim_start_matches(['~', '.']));
        let longer = domains.filter(|domain| !domain.is_empty());
        longer.map(|domain| format!("{name}.{domain}")).chain([name.to_owned()]).collect()
    }

    async fn query(&self, name: &str, record: Record) -> io::Result<Vec<IpAddr>> {
        let key = (name.to_ascii_lowercase(), record);
        if let Some(addresses) = self.cached(&key) {
            return Ok(addresses);
        }
        let mut failure = no_such_name(name);
        for time_limit in TIME_LIMITS {
            for server in self.dns.servers.iter().map(|server| server.address) {
                let querying = self.query_server((server, PORT).into(), name, record);
                let answer = match timeout(time_limit, querying).await {
                    Ok(answer) => answer,
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                };
                match answer {
                    Ok(Answer::Addresses(addresses, seconds)) => {
                        self.store(key, &addresses, seconds);
                        return Ok(addresses);
                    }
                    Ok(Answer::NoSuchName) => return Err(no_such_name(name)),
                    Ok(_) => failure = io::Error::other(format!("{server} cannot resolve {name}")),
                    Err(error) => failure = server_error(server, &error),
                }
            }
        }
        Err(failure)
    }

    async fn query_server(
        &self,
        server: SocketAddr,
        name: &str,
        record: Record,
    ) -> io::Result<Answer> {
        self.reach.check(server.ip())?;
        let mut id = [0; 2];
        SysRng.try_fill_bytes(&mut id).map_err(io::Error::other)?;
        let query = Query::new(u16::from_ne_bytes(id), name, record);
        let query = query.ok_or_else(|| no_such_name(name))?;
        // A new port for each query: a forged answer must guess it, too.
        let socket = self.stack.bind(unspecified(server.is_ipv4())).await?;
        socket.connect(server).await?;
        socket.send_to(query.as_bytes(), server).await?;
        let mut message = [0; DATAGRAM];
        loop {
            let (len, from) = socket.recv_from(&mut message).await?;
            if from != server {
                continue;
            }
            match query.answer(&message[..len]) {
                Some(Answer::Truncated) => return self.query_by_tcp(server, &query).await,
                Some(answer) => return Ok(answer),
                None => {}
            }
        }
    }

    async fn query_by_tcp(&self, server: SocketAddr, query: &Query) -> io::Result<Answer> {
        let mut stream = self.stack.connect(server).await?;
        let len = query.as_bytes().len() as u16;
        let whole = [&len.to_be_bytes()[..], query.as_bytes()].concat();
        stream.write_all(&whole).await?;
        let len = stream.read_u16().await?;
        let mut message = vec![0; len.into()];
        stream.read_exact(&mut message).await?;
        match query.answer(&message) {
            None | Some(Answer::Truncated) => Err(io::ErrorKind::InvalidData.into()),
            Some(answer) => Ok(answer),
        }
    }

    fn cached(&self, key: &(String, Record)) -> Option<Vec<IpAddr>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = cache.get(key)?;
        (clock::boottime_nanos() < entry.until).then(|| entry.addresses.clone())
    }

    fn store(&self, key: (String, Record), addresses: &[IpAddr], seconds: u32) {
        if seconds == 0 {
            return;
        }
        let now = clock::boottime_nanos();
        let until = now + u64::from(seconds.min(MAX_TTL)) * 1_000_000_000;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHE_CAPACITY {
            cache.retain(|_, entry| now < entry.until);
        }
        if cache.len() < CACHE_CAPACITY {
            cache.insert(key, CacheEntry { addresses: addresses.to_vec(), until });
        }
    }
}

/// An error of a name server, which must not look like one of the host to connect to.
fn server_error(server: IpAddr, error: &io::Error) -> io::Error {
    let kind = match error.kind() {
        io::ErrorKind::ConnectionRefused => io::ErrorKind::HostUnreachable,
        kind => kind,
    };
    io::Error::new(kind, format!("name server {server}: {error}"))
}

fn no_such_name(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name}: no such name"))
}
