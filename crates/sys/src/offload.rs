//! Offloads. An enabled offload is used until the kernel refuses it. Then packets are processed
//! without it, and it is tried again after a pause.
//!
//! ```text
//!   use -- refused --> off for 1 s --> use -- refused --> off for 2 s ...
//!    ^                                    `- succeeded: the next pause is 1 s
//! ```

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::time::Clock;

/// The pause after the first refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. The refusal may end, for example when a route changes.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The state of one offload: whether it is enabled, and how often the kernel refused it.
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

    /// How often the kernel refused it.
    pub fn demotions(&self) -> u64 {
        self.demotions.load(Ordering::Relaxed)
    }

    /// Switches it off because the kernel lacks it.
    pub(crate) fn mark_unsupported(&self) {
        if self.enabled.swap(false, Ordering::Relaxed) {
            self.count_demotion();
        }
    }

    fn count_demotion(&self) {
        self.demotions.fetch_add(1, Ordering::Relaxed);
    }
}

/// The offloads of one peer, of the TUN and the UDP socket.
#[derive(Debug, Default)]
pub struct Offloads {
    /// TCP super-packets read from the TUN.
    pub tun_tso: Switch,
    /// UDP super-packets read from the TUN (Linux 6.2).
    pub tun_uso: Switch,
    /// Super-packets in a UDP tunnel, read from the TUN (Linux 6.17).
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
    /// All offloads, with their names.
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
    /// The time at which it may be tried again, in units of [`Clock::now`].
    closed_until: Option<u64>,
    pause: Duration,
}

impl Gate {
    /// Whether to use the offload.
    pub(crate) fn is_open(&self, switch: &Switch, time: &impl Clock) -> bool {
        switch.is_enabled() && self.closed_until.is_none_or(|until| time.now() >= until)
    }

    /// Records that the kernel accepted it.
    pub(crate) fn succeeded(&mut self) {
        if self.closed_until.is_some() {
            *self = Self::default();
        }
    }

    /// Records that the kernel refused it, but accepted the same data without it.
    pub(crate) fn demote(&mut self, switch: &Switch, time: &impl Clock) {
        switch.count_demotion();
        let now = time.now();
        // The pause had begun already, so this does not lengthen it.
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
    fn pauses_double_up_to_a_minute_and_start_again_after_a_success() {
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
    fn refusal_during_a_pause_is_counted_but_does_not_lengthen_the_pause() {
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
    fn disabled_offload_is_not_used() {
        let (switch, time, gate) = (Switch::default(), VirtualTime::default(), Gate::default());
        switch.set_enabled(false);
        assert!(!gate.is_open(&switch, &time));
    }

    #[test]
    fn unsupported_offload_is_disabled_and_counted_once() {
        let switch = Switch::default();
        switch.mark_unsupported();
        switch.mark_unsupported();
        assert_eq!((switch.is_enabled(), switch.demotions()), (false, 1));
    }
}
