//! Offloads: each is wanted or not, and used until the kernel says no. Then the
//! plain path takes over, and after a while the offload is tried again.
//!
//! ```text
//!   use -- refused --> plain for 1 s --> use -- refused --> plain for 2 s ...
//!    ^                                    `- went: the next pause is 1 s again
//! ```

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::clock;

/// How long the first refusal keeps an offload off.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: a device may change, or a route.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One offload: whether it is wanted, and how often the kernel refused it.
#[derive(Debug)]
pub struct Switch {
    wanted: AtomicBool,
    demotions: AtomicU64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { wanted: AtomicBool::new(true), demotions: AtomicU64::new(0) }
    }
}

impl Switch {
    /// Whether it is wanted.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Switches it on or off.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// How often the kernel refused it and the plain path took over.
    pub fn demotions(&self) -> u64 {
        self.demotions.load(Ordering::Relaxed)
    }

    fn count_demotion(&self) {
        self.demotions.fetch_add(1, Ordering::Relaxed);
    }
}

/// The offloads of one peer's two sides.
#[derive(Debug, Default)]
pub struct Offloads {
    /// TCP super-packets read from the TUN.
    pub tun_tso: Switch,
    /// UDP super-packets read from the TUN (Linux 6.2).
    pub tun_uso: Switch,
    /// TCP super-packets written to the TUN.
    pub tun_tcp_gro: Switch,
    /// UDP super-packets written to the TUN (Linux 6.2).
    pub tun_udp_gro: Switch,
    /// `UDP_SEGMENT` on the outer socket.
    pub udp_gso: Switch,
    /// `UDP_GRO` on the outer socket.
    pub udp_gro: Switch,
}

impl Offloads {
    /// Each by its name.
    pub fn all(&self) -> [(&'static str, &Switch); 6] {
        [
            ("tun-tso", &self.tun_tso),
            ("tun-uso", &self.tun_uso),
            ("tun-tcp-gro", &self.tun_tcp_gro),
            ("tun-udp-gro", &self.tun_udp_gro),
            ("udp-gso", &self.udp_gso),
            ("udp-gro", &self.udp_gro),
        ]
    }
}

/// Whether an offload is used on one path.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// When it may be tried again, by [`clock::boottime_nanos`].
    closed_until: Option<u64>,
    pause: Duration,
}

impl Gate {
    /// Whether to use the offload now.
    pub(crate) fn is_open(&self, switch: &Switch) -> bool {
        switch.wanted() && self.closed_until.is_none_or(|until| clock::boottime_nanos() >= until)
    }

    /// The kernel took it.
    pub(crate) fn went(&mut self) {
        if self.closed_until.is_some() {
            *self = Self::default();
        }
    }

    /// The kernel refused it, and took the plain form.
    pub(crate) fn demote(&mut self, switch: &Switch) {
        switch.count_demotion();
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let pause = self.pause.as_nanos() as u64;
        self.closed_until = Some(clock::boottime_nanos() + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_closes_the_gate_for_a_while_and_is_counted() {
        let (switch, mut gate) = (Switch::default(), Gate::default());
        assert!(gate.is_open(&switch));
        gate.demote(&switch);
        assert!(!gate.is_open(&switch));
        gate.closed_until = Some(clock::boottime_nanos());
        assert!(gate.is_open(&switch), "it is tried again");
        gate.demote(&switch);
        assert_eq!((gate.pause, switch.demotions()), (2 * FIRST_PAUSE, 2));
        (0..10).for_each(|_| gate.demote(&switch));
        assert_eq!(gate.pause, LONGEST_PAUSE);
        gate.went();
        assert_eq!(gate.pause, Duration::ZERO);
    }

    #[test]
    fn what_is_not_wanted_is_not_used() {
        let (switch, gate) = (Switch::default(), Gate::default());
        switch.want(false);
        assert!(!gate.is_open(&switch));
    }
}
