//! Changes of the tunnel during the load: new keys, new addresses, other offloads.

use std::time::Duration;

use netns::{
    Addresses, Family, INTERFACE, Implementation, PORT, Pair, Random, ShowOutput, Side,
    preshared_key,
};

const REKEY_EVERY: Duration = Duration::from_secs(3);
/// After every second rekey: a handshake message that is lost due to a move is sent again after 5
/// s.
const MOVE_AFTER: Duration = Duration::from_millis(1500);
const TOGGLE_EVERY: Duration = Duration::from_secs(5);

/// A run of this length has a period without forced rekeys in its middle, which is longer than the
/// lifetime of a session (180 s).
pub(super) const LONG: Duration = Duration::from_secs(480);

/// The switched offloads are the same in each run.
const SEED: u64 = 3;

/// The changes and their effects.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    /// Peers removed and added again.
    pub rekeys: u64,
    /// Completed handshakes after them.
    pub handshakes: u64,
    /// The longest of these handshakes, by polling.
    pub slowest: Duration,
    /// Handshakes due to a session's age, in the period without forced rekeys.
    pub by_age: u64,
    /// Changes of left's addresses.
    pub moves: u64,
    /// Offloads switched on or off.
    pub toggles: u64,
    /// How often `udp-gro` was switched off.
    pub udp_gro_off: u64,
    /// Drops in the period without forced rekeys, by side and reason.
    pub undisturbed: Vec<(String, u64)>,
}

/// Performs due changes.
pub(super) struct Disturber<'a> {
    pair: &'a Pair,
    length: Duration,
    events: Events,
    random: Random,
    next_rekey: Duration,
    next_move: Option<Duration>,
    next_toggle: Duration,
    /// Start of the awaited forced handshake.
    awaited: Option<Duration>,
    /// Last part of left's address on the cable.
    number: u8,
    /// Drops and last handshake at the start of the period without forced rekeys.
    before: Option<(Vec<(String, u64)>, u64)>,
}

impl<'a> Disturber<'a> {
    pub(super) fn new(pair: &'a Pair, length: Duration) -> Self {
        // When the first address is removed, the others remain.
        pair.left.host.run("echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries");
        Disturber {
            pair,
            length,
            events: Events::default(),
            random: Random::new(SEED),
            next_rekey: REKEY_EVERY,
            next_move: None,
            next_toggle: TOGGLE_EVERY,
            awaited: None,
            number: 1,
            before: None,
        }
    }

    pub(super) fn disturb(&mut self, now: Duration) {
        self.await_handshake(now);
        if now >= self.next_rekey && self.awaited.is_none() {
            self.next_rekey = now + REKEY_EVERY;
            if self.is_without_rekeys(now) {
                let last = self.last_handshake();
                self.before.get_or_insert_with(|| (drops(self.pair), last));
            } else {
                self.end_undisturbed();
                self.rekey();
                self.awaited = Some(now);
            }
            if self.next_move.take().is_none() {
                self.next_move = Some(now + MOVE_AFTER);
            }
        }
        if self.next_move.is_some_and(|due| now >= due) {
            // Only after the next rekey but one.
            self.next_move = Some(Duration::MAX);
            self.roam();
        }
        if now >= self.next_toggle {
            self.next_toggle = now + TOGGLE_EVERY;
            self.toggle();
        }
    }

    /// A peer that was added again has no handshake until the first one completes.
    fn await_handshake(&mut self, now: Duration) {
        let Some(since) = self.awaited else { return };
        if self.last_handshake() != 0 {
            self.events.slowest = self.events.slowest.max(now - since);
            self.events.handshakes += 1;
            self.awaited = None;
        }
    }

    fn last_handshake(&self) -> u64 {
        self.pair.left.peer_status(&self.pair.right).latest_handshake
    }

    /// From four to seven and a half tenths of a long run.
    fn is_without_rekeys(&self, now: Duration) -> bool {
        self.length >= LONG && (0.40..0.75).contains(&now.div_duration_f64(self.length))
    }

    fn end_undisturbed(&mut self) {
        let Some((before, handshake)) = self.before.take() else { return };
        self.events.by_age = u64::from(self.last_handshake() != handshake);
        let grown = drops(self.pair).into_iter().map(|(name, count)| {
            let was = before.iter().find(|(other, _)| *other == name).map_or(0, |(_, was)| *was);
            (name, count - was)
        });
        self.events.undisturbed = grown.filter(|(_, count)| *count > 0).collect();
    }

    /// Gives both a new preshared key; left deletes its session. The outer family changes.
    fn rekey(&mut self) {
        let (left, right) = (&self.pair.left, &self.pair.right);
        let (ours, theirs) = (&left.key.public, &right.key.public);
        let key = preshared_key();
        let path = right.host.write("preshared.key", &key);
        right.host.run(format!("wg set {INTERFACE} peer {ours} preshared-key {path}"));
        let path = left.host.write("preshared.key", &key);
        let family = Family::ALL[(self.events.rekeys % 2) as usize];
        let endpoint = right.outer.endpoint(family, PORT);
        let ips = right.inner.allowed_ips();
        left.host.run(format!(
            "wg set {INTERFACE} peer {theirs} remove peer {theirs} preshared-key {path} \
             endpoint {endpoint} allowed-ips {ips}"
        ));
        self.events.rekeys += 1;
    }

    /// Gives left another address of each family, and every third time another port.
    fn roam(&mut self) {
        let (left, right) = (&self.pair.left, &self.pair.right);
        let old = Addresses::new(1, self.number);
        self.number = if self.number == 1 { 11 } else { self.number % 90 + 11 };
        let new = Addresses::new(1, self.number);
        new.assign(&left.host, "eth0");
        for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
            left.host.run(format!("ip address del {}/{length} dev eth0", old.of(family)));
            // While the kernel resolves a neighbour, it drops all but the last packets to it,
            // without counting them for an interface: a response to a handshake would be lost.
            right.host.run(format!("ping -n -c 1 -w 5 {}", new.of(family)));
        }
        self.events.moves += 1;
        if self.events.moves.is_multiple_of(3) {
            let port = PORT + u16::from(self.number);
            left.host.run(format!("wg set {INTERFACE} listen-port {port}"));
        }
    }

    /// Switches one offload of one side.
    fn toggle(&mut self) {
        let side: &Side = [&self.pair.left, &self.pair.right][self.random.below(2)];
        let offloads = ShowOutput::of(&side.host, INTERFACE).offloads;
        let (name, on) = offloads.into_iter().nth(self.random.below(6)).expect("there are six");
        let wanted = if on { "off" } else { "on" };
        let program = Implementation::Linerate.path();
        side.host.run(format!("{} set {INTERFACE} offload {name} {wanted}", program.display()));
        self.events.toggles += 1;
        self.events.udp_gro_off += u64::from(name == "udp-gro" && on);
    }

    pub(super) fn finish(mut self) -> Events {
        self.end_undisturbed();
        self.events
    }
}

/// Drops of both sides, such as `left: in forged`, including the kernel's queues in front of the
/// tunnel and in the cable.
pub(super) fn drops(pair: &Pair) -> Vec<(String, u64)> {
    let of = |side: &Side| {
        let mut drops = ShowOutput::of(&side.host, INTERFACE).drops;
        drops.insert("tun queue".to_owned(), side.host.device_count(INTERFACE, "tx_dropped"));
        let cable = ["tx_dropped", "rx_dropped"].map(|name| side.host.device_count("eth0", name));
        drops.insert("cable".to_owned(), cable.iter().sum());
        let name = side.host.name().to_owned();
        drops.into_iter().map(move |(reason, count)| (format!("{name}: {reason}"), count))
    };
    of(&pair.left).chain(of(&pair.right)).filter(|(_, count)| *count > 0).collect()
}
