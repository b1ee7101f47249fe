//! The state of a peer relay: the pairs of clients and their addresses.
//!
//! ```text
//!   allocate ──► waits ── Bind, Answer of both ──► forwards ── 300 s without a datagram ──► removed
//!                  `──────── 30 s ────────────────────────────────────────────────────────► removed
//! ```
//!
//! No address is stored before a client returned the challenge from it. The challenge is a MAC of
//! the address, so that none is stored.

#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt, net::SocketAddr, time::Duration};

use blake2::{
    Blake2sMac,
    digest::{KeyInit as _, Mac as _, consts::U32},
};
use ipc::relay_process::{AllocateError, Allocation};
use packet::Endpoint;
use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use tailnet::{
    disco::{self, Bind, Disco, Message, NONCE_LEN},
    geneve::{Geneve, Protocol, Vni},
    keys::{DiscoKey, DiscoPublic},
};
use zeroize::Zeroizing;

/// How long an endpoint waits until both clients are bound: three steps of ten seconds each
/// (tailscale `udprelay/server.go`).
const BIND_LIFETIME: Duration = Duration::from_secs(30);
/// How long an endpoint exists without data of both clients.
const STEADY_LIFETIME: Duration = Duration::from_secs(300);
/// The time between two secrets of challenges. The previous secret is still accepted.
const SECRET_LIFETIME: Duration = Duration::from_secs(120);
/// The time between two searches for expired endpoints.
const SWEEP: Duration = Duration::from_secs(5);
/// The maximum number of endpoints, and of those that one client requested: 1 KiB each.
const MAX_ENDPOINTS: usize = 4096;
const MAX_PER_CLIENT: usize = 1024;

/// The endpoints of a relay.
pub struct Server {
    disco: Disco,
    sessions: HashMap<Vni, Session>,
    by_clients: HashMap<[DiscoPublic; 2], Vni>,
    last_vni: u32,
    lamport: u64,
    secrets: Secrets,
    rng: Box<dyn CryptoRng + Send>,
    sweep: Option<Duration>,
}

/// The traffic of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The identifier.
    pub vni: Vni,
    /// The two clients.
    pub clients: [ClientInfo; 2],
}

/// The traffic from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// The client's key.
    pub disco: DiscoPublic,
    /// The bound address.
    pub address: Option<SocketAddr>,
    /// The number of received datagrams.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
}

struct Session {
    lamport: u64,
    requested_by: DiscoPublic,
    began: Duration,
    /// Ordered by key.
    clients: [Client; 2],
}

struct Client {
    disco: DiscoPublic,
    /// The generation of the last handshake, until it is complete.
    binding: Option<u32>,
    bound: Option<Endpoint>,
    last_received: Duration,
    datagrams: u64,
    bytes: u64,
}

/// The secrets of challenges.
struct Secrets {
    now: Box<Zeroizing<[u8; 32]>>,
    before: Box<Zeroizing<[u8; 32]>>,
    since: Duration,
}

impl Server {
    /// Creates a relay without endpoints. `rng` creates the secrets.
    pub fn new(key: DiscoKey, mut rng: Box<dyn CryptoRng + Send>, now: Duration) -> Self {
        let secrets = Secrets { now: secret(&mut *rng), before: secret(&mut *rng), since: now };
        Self {
            disco: Disco::new(key),
            sessions: HashMap::new(),
            by_clients: HashMap::new(),
            last_vni: 0,
            lamport: 0,
            secrets,
            rng,
            sweep: None,
        }
    }

    /// Returns the key.
    pub fn key(&self) -> DiscoPublic {
        self.disco.public()
    }

    /// Returns the endpoint of two clients, or creates one.
    ///
    /// # Errors
    /// No endpoint can be allocated.
    pub fn allocate(
        &mut self,
        requested_by: DiscoPublic,
        mut clients: [DiscoPublic; 2],
        now: Duration,
    ) -> Result<Allocation, AllocateError> {
        clients.sort();
        let is_bad = |client: &DiscoPublic| client.is_zero() || *client == self.key();
        if clients[0] == clients[1] || clients.iter().any(is_bad) {
            return Err(AllocateError::BadClients);
        }
        if self.sweep.is_some_and(|at| at <= now) || self.sessions.len() >= MAX_ENDPOINTS {
            self.remove_ended(now);
        }
        let there = self.by_clients.get(&clients).copied();
        let vni = match there.filter(|vni| self.sessions.get(vni).is_some_and(|s| !s.ended(now))) {
            Some(vni) => vni,
            None => self.add(requested_by, clients, now)?,
        };
        Ok(Allocation {
            server: self.key(),
            clients,
            lamport: self.sessions.get(&vni).map_or(0, |session| session.lamport),
            vni,
            bind_lifetime: BIND_LIFETIME,
            steady_lifetime: STEADY_LIFETIME,
        })
    }

    fn add(
        &mut self,
        requested_by: DiscoPublic,
        clients: [DiscoPublic; 2],
        now: Duration,
    ) -> Result<Vni, AllocateError> {
        if let Some(ended) = self.by_clients.remove(&clients) {
            self.sessions.remove(&ended);
        }
        let of_one =
            self.sessions.values().filter(|session| session.requested_by == requested_by).count();
        if self.sessions.len() >= MAX_ENDPOINTS || of_one >= MAX_PER_CLIENT {
            return Err(AllocateError::Full);
        }
        // Numbers are used in turn, so that each is reused late (RFC 6056 section 3.3.1).
        let mut next = self.last_vni;
        let vni = loop {
            next = if next >= Vni::MAX { 1 } else { next + 1 };
            let vni = Vni::new(next).expect("it is at most the largest");
            if !self.sessions.contains_key(&vni) {
                break vni;
            }
        };
        (self.last_vni, self.lamport) = (next, self.lamport + 1);
        let session = Session {
            lamport: self.lamport,
            requested_by,
            began: now,
            clients: clients.map(Client::new),
        };
        self.sessions.insert(vni, session);
        self.by_clients.insert(clients, vni);
        self.sweep.get_or_insert(now + SWEEP);
        Ok(vni)
    }

    /// Processes the payload of a control datagram. Returns the answer with its header.
    pub fn handle_control(
        &mut self,
        header: Geneve,
        datagram: &[u8],
        from: Endpoint,
        now: Duration,
    ) -> Option<Vec<u8>> {
        let remote = from.remote.direct()?;
        let session = self.sessions.get_mut(&header.vni).filter(|session| !session.ended(now))?;
        // Checked before the datagram is opened, because a stranger's would cost the computation of
        // a shared key.
        let sender = disco::sender(datagram).filter(|_| header.protocol == Protocol::Disco)?;
        let client = session.clients.iter().position(|client| client.disco == sender)?;
        let other = session.clients[1 - client].disco;
        let (_, message) = self.disco.open(datagram).ok()?;
        let is_ours = |bind: &Bind| bind.vni == header.vni && bind.other == other;
        let client = &mut session.clients[client];
        match message {
            Message::Bind(bind) if is_ours(&bind) && bind.generation != 0 => {
                client.binding = Some(bind.generation);
                self.secrets.renew(&mut *self.rng, now);
                let challenge = challenge(&self.secrets.now, &bind, remote);
                let challenge = challenge.finalize().into_bytes().into();
                let answer = Message::BindChallenge(Bind { challenge, ..bind });
                let mut nonce = [0; NONCE_LEN];
                self.rng.fill_bytes(&mut nonce);
                let header = Geneve { control: true, protocol: Protocol::Disco, ..header };
                Some([&header.bytes()[..], &self.disco.seal(sender, &answer, nonce)].concat())
            }
            Message::BindAnswer(bind)
                if is_ours(&bind) && client.binding == Some(bind.generation) =>
            {
                self.secrets.renew(&mut *self.rng, now);
                if self.secrets.made(&bind, remote) {
                    (client.bound, client.binding, client.last_received) = (Some(from), None, now);
                }
                None
            }
            _ => None,
        }
    }

    /// Returns the destination of a client's datagrams, and counts them; `None` if the source or
    /// the other client is not bound.
    pub fn forward(
        &mut self,
        vni: Vni,
        from: SocketAddr,
        (datagrams, bytes): (u64, u64),
        now: Duration,
    ) -> Option<Endpoint> {
        let session = self.sessions.get_mut(&vni).filter(|session| !session.ended(now))?;
        let is_from = |client: &Client| client.is_at(from);
        let client = session.clients.iter().position(is_from)?;
        let to = session.clients[1 - client].bound?;
        let client = &mut session.clients[client];
        client.last_received = now;
        client.datagrams += datagrams;
        client.bytes += bytes;
        Some(to)
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.sweep.is_some_and(|at| at <= now) {
            self.remove_ended(now);
        }
    }

    /// Returns the time of the next call of [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.sweep
    }

    fn remove_ended(&mut self, now: Duration) {
        self.sessions.retain(|_, session| !session.ended(now));
        self.by_clients.retain(|_, vni| self.sessions.contains_key(vni));
        self.sweep = (!self.sessions.is_empty()).then_some(now + SWEEP);
    }

    /// Returns all endpoints, in no particular order.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo> {
        let info = |client: &Client| ClientInfo {
            disco: client.disco,
            address: client.bound.and_then(|bound| bound.remote.direct()),
            datagrams: client.datagrams,
            bytes: client.bytes,
        };
        let all = self.sessions.iter();
        all.map(move |(vni, session)| SessionInfo {
            vni: *vni,
            clients: session.clients.each_ref().map(info),
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a peer relay with {} endpoints", self.sessions.len())
    }
}

impl Session {
    fn ended(&self, now: Duration) -> bool {
        if self.clients.iter().all(|client| client.bound.is_some()) {
            self.clients.iter().any(|client| now > client.last_received + STEADY_LIFETIME)
        } else {
            now > self.began + BIND_LIFETIME
        }
    }
}

impl Client {
    fn new(disco: DiscoPublic) -> Self {
        let last_received = Duration::ZERO;
        Self { disco, binding: None, bound: None, last_received, datagrams: 0, bytes: 0 }
    }

    fn is_at(&self, address: SocketAddr) -> bool {
        self.bound.and_then(|bound| bound.remote.direct()) == Some(address)
    }
}

impl Secrets {
    fn renew(&mut self, rng: &mut dyn CryptoRng, now: Duration) {
        if now >= self.since + SECRET_LIFETIME {
            self.before = std::mem::replace(&mut self.now, secret(rng));
            self.since = now;
        }
    }

    /// Returns whether one of the secrets made a challenge for this address.
    fn made(&self, bind: &Bind, from: SocketAddr) -> bool {
        let made = |secret| challenge(secret, bind, from).verify_slice(&bind.challenge).is_ok();
        made(&self.now) || made(&self.before)
    }
}

fn secret(rng: &mut dyn CryptoRng) -> Box<Zeroizing<[u8; 32]>> {
    let mut secret = Box::new(Zeroizing::new([0; 32]));
    rng.fill_bytes(&mut secret[..]);
    secret
}

/// Returns the unfinished MAC of the binding and the address.
fn challenge(secret: &[u8; 32], bind: &Bind, from: SocketAddr) -> Blake2sMac<U32> {
    let mut mac =
        Blake2sMac::<U32>::new_from_slice(secret).expect("keyed BLAKE2s takes a key of 32 bytes");
    mac.update(&bind.vni.get().to_be_bytes());
    mac.update(&bind.generation.to_be_bytes());
    mac.update(&bind.other.0);
    match from {
        SocketAddr::V4(from) => mac.update(&from.ip().to_ipv6_mapped().octets()),
        SocketAddr::V6(from) => {
            mac.update(&from.ip().octets());
            mac.update(&from.scope_id().to_be_bytes());
        }
    }
    mac.update(&from.port().to_be_bytes());
    mac
}
