use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use packet::Endpoint;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use wg::{
    Control, Now, PrivateKey, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
    constants::REJECT_AFTER_TIME,
    message::Handshake,
};

use crate::measure::{Times, Work, now, table};

/// Complete handshakes through the control half, as the slow path drives it. Each step is timed
/// separately.
pub(crate) fn handshake() {
    let names = [
        "initiation made",
        "initiation handled, response made",
        "response handled",
        "all, both sides",
    ];
    let times = Times::of([
        step(|[made, ..]| made),
        step(|[_, taken, _]| taken),
        step(|[.., finished]| finished),
        step(|all| all.iter().sum()),
    ]);
    let rows = std::array::from_fn::<_, 4, _>(|at| {
        let ns = times.ns(at);
        [names[at].to_owned(), format!("{:.1}", ns / 1e3), format!("{:.0}", 1e9 / ns)]
    });
    table("handshake", ["step", "us", "a second"], &rows);
}

fn step(of: fn([Duration; 3]) -> Duration) -> Work<'static> {
    let mut pair = Pair::new();
    Box::new(move |times| (0..times).map(|_| of(pair.handshake())).sum())
}

/// Two devices that are peers of each other.
struct Pair {
    controls: [Control<ChaCha20Rng>; 2],
    now: Now,
}

impl Pair {
    fn new() -> Self {
        let keys = [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]));
        let controls = [0, 1].map(|id: usize| {
            let mut control = Control::new(ChaCha20Rng::seed_from_u64(id as u64));
            let net = IpNet::from(inner(1 - id));
            let peer = PeerChange {
                endpoint: Some(address(1 - id)),
                allowed_ips: vec![AllowedIpChange { net, remove: false }],
                ..PeerChange::new(keys[1 - id].public_key())
            };
            let private_key = Some(Some(keys[id].clone()));
            let change = DeviceChange { private_key, replace_peers: false, peers: vec![peer] };
            control.apply(change).expect("one peer is not too many");
            control.up();
            control
        });
        let time = Time::from_nanos(1_000_000_000);
        Self { controls, now: Now { time, wall: Duration::from_secs(1_800_000_000) } }
    }

    /// Runs a handshake from the first to the second device. Returns the durations of its steps.
    fn handshake(&mut self) -> [Duration; 3] {
        // Late enough that no session remains and no initiation is too early.
        self.now.time = self.now.time + 2 * REJECT_AFTER_TIME;
        self.now.wall += 2 * REJECT_AFTER_TIME;
        let now = self.now;
        let [first, second] = &mut self.controls;
        let peer = first.device().route(inner(1)).expect("there is a peer");
        assert!(first.device().reserve(&peer, 1, now.time).is_err(), "there is no session");

        let (initiation, made) = timed(first, |first| first.handle_notices(now));
        let initiation = initiation.expect("an initiation is due");
        let from = |id| Endpoint::new(address(id));
        let (response, taken) = timed(second, |second| {
            second.handle_datagram(initiation.as_bytes(), from(0), now);
        });
        let response = response.expect("an initiation is answered");
        let (_, finished) = timed(first, |first| {
            first.handle_datagram(response.as_bytes(), from(1), now);
        });
        assert!(first.device().reserve(&peer, 1, now.time).is_ok(), "there is a session");
        for control in &self.controls {
            control.device().outbound_mailbox.take().for_each(drop);
        }
        [made, taken, finished]
    }
}

/// Runs a step. Returns the message to send, and the step's duration.
fn timed(
    control: &mut Control<ChaCha20Rng>,
    step: impl FnOnce(&mut Control<ChaCha20Rng>),
) -> (Option<Handshake>, Duration) {
    let start = now();
    step(control);
    let message = control.poll_transmit().map(|(message, _)| message);
    (message, start.elapsed())
}

fn address(id: usize) -> SocketAddr {
    ([192, 0, 2, id as u8], 51820).into()
}

fn inner(id: usize) -> IpAddr {
    [10, 0, 0, id as u8].into()
}
