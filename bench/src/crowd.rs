//! Thousands of peers: their keys and addresses by number, and a generator that acts as all of
//! them, with the protocol of the crate `wg`.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, SystemTime};

use netns::{Host, INTERFACE, Stopwatch};
use packet::Endpoint;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use wg::config::{AllowedIpChange, DeviceChange, PeerChange};
use wg::message::{Handshake, Initiation, Kind, Response};
use wg::{Control, Now, PrivateKey, PublicKey, Time};

/// Initiations without an answer at a time; too few for a daemon to send cookies.
const WINDOW: usize = 32;

/// The port that all peers share. A hub that learns no endpoints gets it from the configuration.
pub const CROWD_PORT: u16 = 51830;

/// An answer that takes longer counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// Wait for an answer before the next check for due initiations.
const LOOK: Duration = Duration::from_millis(1);

/// Time between two handshakes of a peer. A hub rejects a second initiation within 20 ms, and one
/// with the same timestamp, which is rounded to 17 ms.
const APART: Duration = Duration::from_millis(50);

/// A number of peers with fixed keys and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    count: usize,
}

impl Crowd {
    /// The first `count` peers.
    pub fn new(count: usize) -> Self {
        Self { count }
    }

    fn key(number: usize) -> PrivateKey {
        let mut bytes = [0; 32];
        ChaCha20Rng::seed_from_u64(number as u64).fill_bytes(&mut bytes);
        PrivateKey::from_bytes(&bytes)
    }

    /// Address in the tunnel, from 10.64.0.0 on.
    fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 0, 0).to_bits() + number as u32)
    }

    /// Adds all as peers of a host's interface, with an endpoint at this address if given.
    pub fn join(self, host: &Host, at: Option<&str>) {
        let endpoint = at.map_or(String::new(), |at| format!("Endpoint = {at}:{CROWD_PORT}\n"));
        let section = |number: usize| {
            let (key, address) = (Self::key(number).public_key(), Self::address(number));
            let key = key.to_base64();
            format!("[Peer]\nPublicKey = {key}\nAllowedIPs = {address}/32\n{endpoint}")
        };
        let path = host.write("crowd.conf", &(0..self.count).map(section).collect::<String>());
        host.run(format!("wg addconf {INTERFACE} {path}"));
    }

    /// Performs a handshake of each peer with a hub, and then a second one: during the first, a hub
    /// may compute values that it stores for a peer.
    pub fn shake_hands(
        self,
        hub: PublicKey,
        at: SocketAddr,
    ) -> Result<[CrowdResult; 2], Box<dyn Error>> {
        let watch = Stopwatch::start();
        let exchange = || self.exchange(hub, at, Pace::Window, &watch);
        let first = exchange()?;
        thread::sleep(APART);
        Ok([first, exchange()?])
    }

    /// Starts `a_second` handshakes a second with a hub without waiting for answers, as when all
    /// peers reconnect. The socket is opened after all initiations are prepared.
    pub fn storm(
        self,
        hub: PublicKey,
        at: SocketAddr,
        a_second: f64,
    ) -> Result<CrowdResult, Box<dyn Error>> {
        self.exchange(hub, at, Pace::Rate(a_second), &Stopwatch::start())
    }

    fn exchange(
        self,
        hub: PublicKey,
        at: SocketAddr,
        pace: Pace,
        watch: &Stopwatch,
    ) -> Result<CrowdResult, Box<dyn Error>> {
        // The generator's own work is done before and after, so that only the hub is measured.
        let initiators: Option<Vec<Initiator>> =
            (0..self.count).map(|number| Initiator::new(number, hub, at, now(watch))).collect();
        let mut initiators = initiators.ok_or("a peer could not create its initiation")?;
        let by_index: HashMap<u32, usize> =
            initiators.iter().enumerate().map(|(at, one)| (one.index, at)).collect();

        // Not connected: a connected socket would report a closed port and skip datagrams.
        let socket = UdpSocket::bind(("0.0.0.0", CROWD_PORT))?;
        socket.set_read_timeout(Some(LOOK))?;
        let exchange = Stopwatch::start();
        let (mut greeted, mut sent, mut settled) = (CrowdResult::default(), 0, 0);
        let mut buffer = [0; 256];
        let (mut last, mut last_sent) = (Duration::ZERO, Duration::ZERO);
        while settled < initiators.len() {
            let due = match pace {
                Pace::Window => settled + WINDOW,
                Pace::Rate(a_second) => (exchange.elapsed().as_secs_f64() * a_second) as usize,
            };
            while sent < due.min(initiators.len()) {
                socket.send_to(initiators[sent].initiation.as_bytes(), at)?;
                (sent, last_sent) = (sent + 1, exchange.elapsed());
            }
            let len = match socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if exchange.elapsed() > last.max(last_sent) + PATIENCE {
                        settled = sent;
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            settled = (settled + 1).min(sent);
            last = exchange.elapsed();
            match (Kind::of(&buffer[..len]), Response::parse(&buffer[..len])) {
                (_, Some(response)) => {
                    if let Some(at) = by_index.get(&response.receiver) {
                        initiators[*at].response = Handshake::copy_of(&buffer[..len]);
                    }
                }
                (Some(Kind::CookieReply), _) => greeted.cookies += 1,
                _ => {}
            }
        }
        greeted.seconds = last.as_secs_f64();
        let finish = |one: Initiator| u64::from(one.finish(now(watch)));
        greeted.sessions = initiators.into_iter().map(finish).sum();
        Ok(greeted)
    }
}

/// When the next initiation is sent.
#[derive(Clone, Copy)]
enum Pace {
    /// When an earlier one was answered or is lost.
    Window,
    /// At this rate, initiations a second.
    Rate(f64),
}

/// The timestamps of a peer must increase from one generator process to the next; otherwise the hub
/// answers only the first.
fn now(watch: &Stopwatch) -> Now {
    let time = Time::from_nanos(watch.elapsed().as_nanos() as u64);
    Now { time, wall: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default() }
}

/// Result of the handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrowdResult {
    /// Sessions that were established.
    pub sessions: u64,
    /// Cookies received instead of a response.
    pub cookies: u64,
    /// Seconds from the first initiation to the last answer.
    pub seconds: f64,
}

impl CrowdResult {
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let sessions = words.next()?.parse().ok()?;
        let cookies = words.next()?.parse().ok()?;
        Some(Self { sessions, cookies, seconds: words.next()?.parse().ok()? })
    }
}

impl fmt::Display for CrowdResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.sessions, self.cookies, self.seconds)
    }
}

/// One peer of the crowd.
struct Initiator {
    control: Control<ChaCha20Rng>,
    hub: SocketAddr,
    index: u32,
    initiation: Handshake,
    response: Option<Handshake>,
}

impl Initiator {
    /// Prepares the initiation.
    fn new(number: usize, hub: PublicKey, at: SocketAddr, now: Now) -> Option<Self> {
        let mut control = Control::new(ChaCha20Rng::seed_from_u64(!(number as u64)));
        let everything = AllowedIpChange { net: "0.0.0.0/0".parse().ok()?, remove: false };
        let peer = PeerChange {
            endpoint: Some(at),
            allowed_ips: vec![everything],
            ..PeerChange::new(hub)
        };
        let private_key = Some(Some(Crowd::key(number)));
        let change = DeviceChange { private_key, peers: vec![peer], ..DeviceChange::default() };
        control.apply(change).ok()?;
        control.up();
        let peer = control.device().route(at.ip())?;
        // Sending needs a session, so this requests one.
        control.device().reserve(&peer, 1, now.time).err()?;
        control.handle_notices(now);
        let (initiation, _) = control.poll_transmit()?;
        let index = Initiation::parse(initiation.as_bytes())?.sender;
        Some(Self { control, hub: at, index, initiation, response: None })
    }

    /// Whether the response establishes a session.
    fn finish(mut self, now: Now) -> bool {
        let Some(response) = self.response else { return false };
        self.control.handle_datagram(response.as_bytes(), Endpoint::new(self.hub), now);
        let device = self.control.device();
        let any: IpAddr = self.hub.ip();
        device.route(any).is_some_and(|peer| device.reserve(&peer, 1, now.time).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use packet::Endpoint;
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;
    use wg::Control;
    use wg::config::{DeviceChange, PeerChange};

    use super::{Crowd, CrowdResult, Stopwatch, now};

    #[test]
    fn only_known_peers_with_a_valid_response_get_sessions() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let key = Crowd::key(1 << 20);
        let public_key = key.public_key();
        let known = (0..5).map(|number| PeerChange::new(Crowd::key(number).public_key())).collect();
        let hub = move || {
            let mut control = Control::new(ChaCha20Rng::seed_from_u64(0));
            let private_key = Some(Some(key));
            let change = DeviceChange { private_key, peers: known, ..DeviceChange::default() };
            control.apply(change).unwrap();
            control.up();
            let watch = Stopwatch::start();
            let (mut buffer, mut answered) = ([0; 256], 0);
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                control.handle_datagram(&buffer[..len], Endpoint::new(from), now(&watch));
                while let Some((message, to)) = control.poll_transmit() {
                    let mut bytes = message.as_bytes().to_vec();
                    // One answer is corrupted.
                    bytes[20] ^= u8::from(answered == 2);
                    socket.send_to(&bytes, to.remote.direct().unwrap()).unwrap();
                    answered += 1;
                }
            }
        };
        thread::Builder::new().spawn(hub).unwrap();
        let [first, again] = Crowd::new(7).shake_hands(public_key, at).unwrap();
        assert_eq!((first.sessions, first.cookies), (4, 0));
        assert_eq!((again.sessions, again.cookies), (5, 0));
        let stormed = Crowd::new(7).storm(public_key, at, 100.0).unwrap();
        assert_eq!((stormed.sessions, stormed.cookies), (5, 0));
        assert!(stormed.seconds > 0.04, "the fifth was sent too early: {stormed:?}");
        assert_eq!(CrowdResult::parse(&first.to_string()), Some(first));
    }
}
