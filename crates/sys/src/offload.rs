//! Offloads: each is enabled or not, and used until the kernel refuses it. Then the plain path takes
//! over, and after a pause the offload is tried again.
//!
//! ```text
//!   use -- refused --> plain for 1 s --> use -- refused --> plain for 2 s ...
//!    ^                                    `- succeeded: the next pause is 1 s again
//! ```

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::time::Clock;

/// The pause after the first refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: a device may change, or a route.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One offload: whether it is enabled, and how often the kernel refused it.
#[derive(Debug)]
pub struct Switch {
    enabled: AtomicBool,
    demotions: AtomicU64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { enabled: AtomicBool::new(true), demotions: AtomicU64::new(0) }
    }
}

impl Switch {
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Switches it on or off.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    /// How often the kernel refused it and the plain path took over.
    pub fn demotions(&self) -> u64 {
        self.demotions.load(Ordering::Relaxed)
    }

    /// Switches it off because the kernel does not have it.
    pub(crate) fn mark_unsupported(&self) {
        if self.enabled.swap(false, Ordering::Relaxed) {
            self.count_demotion();
        }
    }

    fn count_demotion(&self) {
        self.demotions.fetch_add(1, Ordering::Relaxed);
    }
}

/// The offloads of one peer, on both sides.
#[derive(Debug, Default)]
pub struct Offloads {
    /// TCP super-packets read from the TUN.
    pub tun_tso: Switch,
    /// UDP super-packets read from the TUN (Linux 6.2).
    pub tun_uso: Switch,
    /// Super-packets read from the TUN that are in a UDP tunnel (Linux 6.17).
    pub tun_tunnel_gso: Switch,
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
    /// All of them, by name.
    pub fn all(&self) -> [(&'static str, &Switch); 7] {
        [
            ("tun-tso", &self.tun_tso),
            ("tun-uso", &self.tun_uso),
            ("tun-tunnel-gso", &self.tun_tunnel_gso),
            ("tun-tcp-gro", &self.tun_tcp_gro),
            ("tun-udp-gro", &self.tun_udp_gro),
            ("udp-gso", &self.udp_gso),
            ("udp-gro", &self.udp_gro),
        ]
    }
}

/// Whether an offload is used on one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    /// When it may be tried again, by [`Clock::now`].
    closed_until: Option<u64>,
    pause: Duration,
}

impl Gate {
    /// Whether to use the offload.
    pub(crate) fn is_open(&self, switch: &Switch, time: &impl Clock) -> bool {
        switch.is_enabled() && self.closed_until.is_none_or(|until| time.now() >= until)
    }

    /// The kernel accepted it.
    pub(crate) fn succeeded(&mut self) {
        if self.closed_until.is_some() {
            *self = Self::default();
        }
    }

    /// The kernel refused it, and accepted the plain form.
    pub(crate) fn demote(&mut self, switch: &Switch, time: &impl Clock) {
        switch.count_demotion();
        let now = time.now();
        // It was closed before this was sent: do not lengthen the pause.
        if self.closed_until.is_some_and(|until| now < until) {
            return;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.closed_until = Some(now + self.pause.as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::VirtualTime;

    #[test]
    fn a_refused_offload_is_tried_after_pauses_that_double_to_a_minute_and_begin_anew() {
        let (switch, time, mut gate) = (Switch::default(), VirtualTime::default(), Gate::default());
        assert!(gate.is_open(&switch, &time));
        for _ in 0..2 {
            let mut pauses = Vec::new();
            for _ in 0..8 {
                gate.demote(&switch, &time);
                let mut seconds = 0;
                while !gate.is_open(&switch, &time) {
                    time.pass(Duration::from_secs(1));
                    seconds += 1;
                }
                pauses.push(seconds);
            }
            assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
            gate.succeeded();
        }
        assert_eq!(switch.demotions(), 16);
    }

    #[test]
    fn a_pause_ends_to_the_nanosecond_and_a_refusal_within_is_counted_but_no_longer() {
        let (switch, time, mut gate) = (Switch::default(), VirtualTime::default(), Gate::default());
        gate.demote(&switch, &time);
        time.pass(FIRST_PAUSE / 2);
        gate.demote(&switch, &time);
        time.pass(FIRST_PAUSE / 2 - Duration::from_nanos(1));
        assert!(!gate.is_open(&switch, &time));
        time.pass(Duration::from_nanos(1));
        assert!(gate.is_open(&switch, &time));
        assert_eq!((gate.pause, switch.demotions()), (FIRST_PAUSE, 2));
    }

    #[test]
    fn what_is_not_wanted_is_not_used() {
        let (switch, time, gate) = (Switch::default(), VirtualTime::default(), Gate::default());
        switch.set_enabled(false);
        assert!(!gate.is_open(&switch, &time));
    }

    #[test]
    fn what_the_kernel_lacks_is_not_wanted_and_counted_once() {
        let switch = Switch::default();
        switch.mark_unsupported();
        switch.mark_unsupported();
        assert_eq!((switch.is_enabled(), switch.demotions()), (false, 1));
    }
}
