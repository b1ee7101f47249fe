//! A linerate on one host, and this test as its peer on the other, which knows the shared secrets.

use std::fs::File;
use std::io::Read;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use netns::{Daemon, Host, PORT, Pair, Stopwatch, base64};
use x25519_dalek::{PublicKey, StaticSecret};

use super::noise::{Noise, Session};
use super::scan::Secrets;

pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// Closer initiations of one peer than 50 ms are dropped as a flood.
const BETWEEN_INITIATIONS: Duration = Duration::from_millis(100);
/// Time in which a key is erased after its use, once the threads that used it run.
const SOON: Duration = Duration::from_secs(3);
/// Datagrams at a time, more than one batch of the data path.
const BURST: usize = 200;

/// Random bytes.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.expect("/dev/urandom is readable");
    bytes
}

/// A private key from a random source, which is not clamped.
pub(super) struct Private(pub [u8; 32]);

impl Private {
    pub(super) fn new() -> Self {
        let mut bytes = random();
        bytes[0] |= 7;
        bytes[31] |= 0x80;
        Self(bytes)
    }

    /// In the clamped form that is used.
    fn clamped(&self) -> [u8; 32] {
        let mut bytes = self.0;
        bytes[0] &= 0xf8;
        bytes[31] = bytes[31] & 0x7f | 0x40;
        bytes
    }

    pub(super) fn public(&self) -> [u8; 32] {
        PublicKey::from(&StaticSecret::from(self.0)).to_bytes()
    }

    pub(super) fn base64(&self) -> String {
        base64(&self.0)
    }

    /// Its binary forms.
    pub(super) fn secrets(&self) -> Secrets {
        Secrets::new()
            .with("the private key", &self.clamped())
            .with("the private key, not clamped", &self.0)
    }

    /// Its text forms.
    pub(super) fn texts(&self) -> Secrets {
        Secrets::new()
            .with_texts("the private key", &self.clamped())
            .with_texts("the private key, not clamped", &self.0)
    }
}

/// The two hosts and the peer.
pub(super) struct World {
    pub left: Host,
    _right: Host,
    socket: UdpSocket,
    to_tunnel: UdpSocket,
}

impl World {
    pub(super) fn new() -> Self {
        let (left, right) = Pair::hosts(1500);
        let socket = right.inside(|| UdpSocket::bind(("10.1.0.2", PORT))).expect("a free port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let to_tunnel = left.inside(|| UdpSocket::bind("0.0.0.0:0")).expect("a free port");
        Self { left, _right: right, socket, to_tunnel }
    }

    /// Makes linerate start a handshake, and answers it.
    pub(super) fn answer(&self, noise: &Noise) -> Session {
        self.drain();
        self.send_from_left(1);
        let initiation = self.receive(|message| message[0] == 1);
        let (response, session) = noise.answer(&initiation);
        self.send(&response);
        self.carry(session)
    }

    /// Starts a handshake, and sends data in its session.
    pub(super) fn initiate(&self, noise: &Noise) -> Session {
        thread::sleep(BETWEEN_INITIATIONS);
        self.drain();
        let (initiation, initiated) = noise.initiate(1);
        self.send(&initiation);
        let response = self.receive(|message| message[0] == 2);
        let mut session = noise.finish(initiated, &response);
        self.burst(&mut session);
        session
    }

    /// Starts all these handshakes while linerate is stopped, so that it receives them at once.
    pub(super) fn initiate_at_once(&self, daemon: &Daemon, all: &[Noise]) -> Vec<Session> {
        self.drain();
        daemon.signal("STOP");
        let begun = all.iter().zip(1..).map(|(noise, index)| {
            let (initiation, initiated) = noise.initiate(index);
            self.send(&initiation);
            (noise, index, initiated)
        });
        let begun: Vec<_> = begun.collect();
        daemon.signal("CONT");
        let responses: Vec<_> = begun.iter().map(|_| self.receive(|it| it[0] == 2)).collect();
        let finish = |(noise, index, initiated): (&Noise, u32, _)| {
            let is_its = |response: &&Vec<u8>| response[8..12] == index.to_le_bytes();
            noise.finish(initiated, responses.iter().find(is_its).expect("each is answered"))
        };
        begun.into_iter().map(finish).collect()
    }

    /// Starts a handshake, and sends data in both directions.
    pub(super) fn meet(&self, noise: &Noise) -> Session {
        self.carry(self.initiate(noise))
    }

    /// Sends bursts of data in both directions, so that all threads use its keys.
    pub(super) fn carry(&self, mut session: Session) -> Session {
        self.burst(&mut session);
        self.send_from_left(BURST);
        // Earlier packets of left may still arrive in its previous session.
        self.receive(|message| session.open(message).is_some_and(|text| text.len() > 100));
        session
    }

    /// Sends IPv4 packets from our address to left's own discard port.
    fn burst(&self, session: &mut Session) {
        let mut packet = [&[0x45, 0, 0, 228, 0, 0, 0, 0, 64, 17, 0, 0][..], &[0; 216]].concat();
        packet[12..20].copy_from_slice(&[10, 9, 0, 2, 10, 9, 0, 1]);
        for _ in 0..BURST {
            self.send(&session.seal(&packet));
        }
    }

    /// Sends datagrams from left into the tunnel.
    fn send_from_left(&self, count: usize) {
        for _ in 0..count {
            self.to_tunnel.send_to(&[b'.'; 1000], "10.9.0.2:9").expect("the tunnel is up");
        }
    }

    pub(super) fn send(&self, message: &[u8]) {
        self.socket.send_to(message, ("10.1.0.1", PORT)).expect("the cable is there");
    }

    /// Discards all datagrams that have arrived.
    pub(super) fn discard_received(&self) {
        self.socket.set_nonblocking(true).expect("it can be set");
        while self.socket.recv(&mut [0; 2048]).is_ok() {}
        self.socket.set_nonblocking(false).expect("it can be set");
    }

    pub(super) fn receive(&self, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut message = [0; 2048];
        let mut next = || {
            let length = self.socket.recv(&mut message).expect("linerate sends something");
            message[..length].to_vec()
        };
        (0..100 * BURST).map(|_| next()).find(|message| is_it(message)).expect("it is sent in time")
    }

    fn drain(&self) {
        self.socket.set_nonblocking(true).expect("it can be set");
        while self.socket.recv(&mut [0; 2048]).is_ok() {}
        self.socket.set_nonblocking(false).expect("it can be set");
    }

    /// Checks that secrets are found.
    pub(super) fn expect_found(&self, pid: u32, secrets: &Secrets, what: &str) {
        let found = secrets.found_in(&self.left, pid);
        assert!(!found.is_empty(), "the search does not find {what}");
    }

    /// Checks that the secrets are erased soon.
    pub(super) fn expect_erased(&self, name: &str, pid: u32, secrets: &Secrets) {
        let watch = Stopwatch::start();
        loop {
            // A search may take as long itself, so one that started in time is not the last.
            let is_last = watch.elapsed() >= SOON;
            let found = secrets.found_in(&self.left, pid);
            if found.is_empty() {
                return;
            }
            let count = found.len();
            assert!(!is_last, "{name} still has {count} pieces: {found:#?}");
        }
    }
}
