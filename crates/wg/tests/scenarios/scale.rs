//! Thousands of peers. The cost is counted, not timed: planning a peer's timers draws its jitter
//! once, so the number of draws measures the work.

use std::{cell::Cell, convert::Infallible, rc::Rc};

use packet::Endpoint;
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng, TryCryptoRng, TryRng},
};
use wg::{
    Control, Now, PrivateKey, Time,
    config::{DeviceChange, PeerChange},
};

use crate::support::{millis, secs};

struct CountingRng {
    inner: ChaCha20Rng,
    draws: Rc<Cell<u64>>,
}

impl TryRng for CountingRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.inner.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.draws.set(self.draws.get() + 1);
        Ok(self.inner.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.inner.fill_bytes(bytes);
        Ok(())
    }
}

impl TryCryptoRng for CountingRng {}

const PEERS: u64 = 2000;

struct Crowd {
    control: Control<CountingRng>,
    draws: Rc<Cell<u64>>,
    time: Time,
    timeouts: u64,
}

impl Crowd {
    /// A device with peers that have endpoints and never answer.
    fn new() -> Self {
        let draws = Rc::new(Cell::new(0));
        let inner = ChaCha20Rng::seed_from_u64(1);
        let mut control = Control::new(CountingRng { inner, draws: draws.clone() });
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let peers = (0..PEERS)
            .map(|n| PeerChange {
                endpoint: Some(([198, 18, (n >> 8) as u8, n as u8], 51820).into()),
                persistent_keepalive: Some(25),
                ..PeerChange::new(PrivateKey::generate(&mut rng).public_key())
            })
            .collect();
        let private_key = Some(Some(PrivateKey::generate(&mut rng)));
        control.apply(DeviceChange { private_key, peers, ..Default::default() }).unwrap();
        Self { control, draws, time: Time::from_nanos(1_000_000_000), timeouts: 0 }
    }

    fn now(&self) -> Now {
        Now { time: self.time, wall: secs(1_800_000_000) }
    }

    /// Does the data path's work for each notice: without a session it requests a handshake.
    fn work(&mut self) -> Vec<Endpoint> {
        let now = self.now();
        let device = self.control.device().clone();
        for (peer, _) in device.outbound_mailbox.take() {
            assert!(device.reserve(&peer, 1, now.time).is_err());
        }
        self.control.handle_notices(now);
        std::iter::from_fn(|| self.control.poll_transmit()).map(|(_, to)| to).collect()
    }

    fn run_until(&mut self, end: Time) -> Vec<Endpoint> {
        let mut sent = Vec::new();
        while let Some(deadline) = self.control.poll_timeout().filter(|at| *at <= end) {
            self.time = self.time.max(deadline);
            self.timeouts += 1;
            let now = self.now();
            self.control.handle_timeout(now);
            sent.extend(self.work());
        }
        self.time = end;
        sent
    }
}

#[test]
fn timer_cost_of_two_thousand_peers_is_linear() {
    let mut crowd = Crowd::new();
    crowd.control.up();
    let sent = crowd.work();
    assert_eq!(sent.len() as u64, PEERS);
    let start = crowd.draws.get();
    assert!(start <= 6 * PEERS, "{start} draws to begin");

    let end = crowd.time + secs(60);
    let sent = crowd.run_until(end).len() as u64;
    assert!((11 * PEERS..=12 * PEERS).contains(&sent), "{sent} initiations in a minute");
    let draws = crowd.draws.get() - start;
    assert!(draws <= 8 * sent, "{draws} draws for {sent} initiations");
    assert!(crowd.timeouts <= 2 * sent, "{} time-outs", crowd.timeouts);
}

#[test]
fn event_of_one_peer_does_not_replan_the_others() {
    let mut crowd = Crowd::new();
    crowd.control.up();
    crowd.work();
    let before = crowd.draws.get();
    let name = crowd.control.peers().next().unwrap().public_key;
    let endpoint = Some("203.0.113.1:1".parse().unwrap());
    for _ in 0..10 {
        let peers = vec![PeerChange { endpoint, ..PeerChange::new(name) }];
        crowd.control.apply(DeviceChange { peers, ..Default::default() }).unwrap();
        crowd.work();
    }
    assert!(crowd.draws.get() - before <= 40);
}

#[test]
fn timers_of_many_peers_are_spread_by_jitter() {
    let mut crowd = Crowd::new();
    crowd.control.up();
    crowd.work();
    let end = crowd.time + secs(5);
    crowd.run_until(end);
    let mut most = 0;
    for _ in 0..340 {
        let end = crowd.time + millis(1);
        most = most.max(crowd.run_until(end).len());
    }
    assert!(most < PEERS as usize / 50, "{most} in a millisecond");
}

#[test]
fn removed_peers_leave_no_timer() {
    let mut crowd = Crowd::new();
    crowd.control.up();
    crowd.work();
    assert!(crowd.control.poll_timeout().is_some());
    let change = DeviceChange { replace_peers: true, ..Default::default() };
    crowd.control.apply(change).unwrap();
    crowd.work();
    assert_eq!(crowd.control.poll_timeout(), None);
    assert_eq!(crowd.control.peers().len(), 0);
}
