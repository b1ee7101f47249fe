//! Loss-based congestion control: slow start, CUBIC (RFC 9438), and proportional rate reduction in
//! recovery.

mod reduction;

use std::time::Duration;

use reduction::Reduction;

use super::{AckEvent, INITIAL_SEGMENTS, SendEvent};
use crate::time::Time;

/// Factor of the window after congestion (RFC 9438 section 4.6).
const BETA: f64 = 0.7;
/// Growth of the window, in segments per cubic second (RFC 9438 section 5.1).
const C: f64 = 0.4;
/// Growth per window in the Reno-friendly region: 3 (1 - beta) / (1 + beta).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The smallest threshold, in segments.
const MIN_SEGMENTS: u32 = 2;

#[derive(Debug)]
pub(crate) struct Cubic {
    mss: u32,
    /// In bytes, like all windows in this file.
    window: u32,
    threshold: u32,
    /// The window at the last congestion event.
    max: f64,
    epoch: Option<Epoch>,
    /// Whether the window was the only limit.
    limited: bool,
    /// Set during recovery.
    reduction: Option<Reduction>,
    /// `window`, `threshold` and `max` before the last recovery.
    before: (u32, u32, f64),
}

/// The time between two congestion events.
#[derive(Debug)]
struct Epoch {
    begin: Time,
    /// Seconds until the window reaches `origin`.
    k: f64,
    origin: f64,
    /// The window that Reno would have.
    reno: f64,
    /// The fraction of a byte that is left over.
    credit: f64,
}

impl Cubic {
    pub(crate) fn new(mss: u32) -> Self {
        let (window, threshold) = (INITIAL_SEGMENTS * mss, u32::MAX);
        Self {
            mss,
            window,
            threshold,
            max: 0.0,
            epoch: None,
            limited: false,
            reduction: None,
            before: (window, threshold, 0.0),
        }
    }

    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Changes the segment payload.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.window = self.window.max(mss);
    }

    /// Records that the window was the only limit.
    pub(crate) fn note_limited(&mut self) {
        self.limited = true;
    }

    /// Handles data that is about to be sent. After a long idle time the window is no longer valid
    /// for the path (RFC 9293 section 3.8.1, RFC 5681 section 4.1).
    pub(crate) fn handle_send(&mut self, event: &SendEvent) {
        if event.first && event.idle {
            self.window = self.window.min(INITIAL_SEGMENTS * self.mss);
            self.epoch = None;
        }
        if let Some(reduction) = &mut self.reduction {
            reduction.note_out(event.bytes);
        }
    }

    pub(crate) fn enter_recovery(&mut self, prior_in_flight: u32) {
        self.before = (self.window, self.threshold, self.max);
        self.congested();
        self.reduction = Some(Reduction::new(prior_in_flight.max(self.mss)));
    }

    pub(crate) fn leave_recovery(&mut self) {
        if self.reduction.take().is_some() {
            self.set_window(self.threshold);
        }
    }

    /// Undoes the last reduction. Growth since then remains.
    pub(crate) fn undo(&mut self) {
        let (window, threshold, max) = self.before;
        self.window = self.window.max(window);
        self.threshold = self.threshold.max(threshold);
        self.max = max;
        self.epoch = None;
        self.reduction = None;
    }

    /// RFC 5681 section 3.1, RFC 6298 section 5.
    pub(crate) fn handle_timeout(&mut self, first: bool) {
        if first {
            self.congested();
        }
        self.reduction = None;
        self.set_window(self.mss);
    }

    /// Handles a tail loss that a probe has repaired. It counts as congestion.
    pub(crate) fn note_repaired(&mut self) {
        self.congested();
        self.set_window(self.threshold);
    }

    pub(crate) fn handle_ack(&mut self, event: &AckEvent) {
        if let Some(reduction) = &mut self.reduction {
            let to = (event.in_flight, self.threshold);
            let more = reduction.allow(event.bytes, to, event.safe, self.mss);
            self.set_window(event.in_flight + more);
            return;
        }
        // An unused window does not show the capacity of the path (RFC 9438 section 5.8).
        let used = self.limited
            || self.is_slow_start() && self.window < event.prior_in_flight.saturating_mul(2);
        if event.bytes > 0 && used {
            self.grow(event.bytes, event.now, event.smoothed.unwrap_or_default());
            self.limited = false;
        }
    }

    /// Grows the window after `acked` bytes, if it was used.
    fn grow(&mut self, acked: u32, now: Time, rtt: Duration) {
        if self.is_slow_start() {
            let room = self.threshold - self.window;
            self.window = self.window.saturating_add(acked.min(room));
            if acked > room {
                self.grow_cubic(acked - room, now, rtt);
            }
        } else {
            self.grow_cubic(acked, now, rtt);
        }
    }

    /// RFC 9438 sections 4.2 to 4.5.
    fn grow_cubic(&mut self, acked: u32, now: Time, rtt: Duration) {
        let (mss, window) = (f64::from(self.mss), f64::from(self.window));
        let max = self.max;
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            begin: now,
            k: ((max - window).max(0.0) / mss / C).cbrt(),
            origin: max.max(window),
            reno: window,
            credit: 0.0,
        });
        let cubic = |time: f64| epoch.origin + C * (time - epoch.k).powi(3) * mss;
        let time = now.since(epoch.begin).as_secs_f64();
        let target = cubic(time + rtt.as_secs_f64()).clamp(window, 1.5 * window);
        let friendly = cubic(time);
        let alpha = if epoch.reno >= max { 1.0 } else { ALPHA };
        epoch.reno += alpha * mss * f64::from(acked) / window;
        let grown = if friendly < epoch.reno {
            epoch.reno.max(window)
        } else {
            epoch.credit += (target - window) / window * f64::from(acked);
            let whole = epoch.credit.floor();
            epoch.credit -= whole;
            window + whole
        };
        self.window = grown.min(f64::from(u32::MAX / 4)) as u32;
    }

    /// Handles a congestion event: reduces the threshold and records the window.
    fn congested(&mut self) {
        let window = f64::from(self.window);
        self.max = if window < self.max { window * (1.0 + BETA) / 2.0 } else { window };
        self.threshold = ((window * BETA) as u32).max(MIN_SEGMENTS * self.mss);
        self.epoch = None;
    }

    fn set_window(&mut self, window: u32) {
        self.window = window.max(self.mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    /// Acknowledges `rounds` full windows.
    fn rounds(cubic: &mut Cubic, begin: u64, rounds: u64) {
        for round in 0..rounds {
            let now = Time::new(RTT * (begin + round) as u32);
            let window = cubic.window();
            for _ in 0..window / MSS {
                cubic.grow(MSS, now, RTT);
            }
        }
    }

    #[test]
    fn slow_start_doubles_each_round_from_ten_segments() {
        let mut cubic = Cubic::new(MSS);
        assert_eq!(cubic.window(), 10 * MSS);
        rounds(&mut cubic, 0, 3);
        assert_eq!(cubic.window(), 80 * MSS);
    }

    #[test]
    fn after_congestion_the_window_returns_to_its_maximum_in_k_seconds() {
        let mut cubic = Cubic::new(MSS);
        cubic.set_window(1000 * MSS);
        cubic.congested();
        assert_eq!(cubic.threshold, 700 * MSS);
        cubic.set_window(cubic.threshold);
        // K = cbrt(300 / 0.4) = 9.09 s.
        rounds(&mut cubic, 0, 80);
        assert!((985 * MSS..1000 * MSS).contains(&cubic.window()), "{}", cubic.window());
        rounds(&mut cubic, 80, 20);
        assert!((999 * MSS..1010 * MSS).contains(&cubic.window()), "{}", cubic.window());
        rounds(&mut cubic, 100, 80);
        assert!(cubic.window() > 1150 * MSS, "{}", cubic.window());
    }

    #[test]
    fn growth_on_a_short_path_is_at_least_that_of_reno() {
        let mut cubic = Cubic::new(MSS);
        cubic.set_window(20 * MSS);
        cubic.congested();
        cubic.set_window(cubic.threshold);
        let rtt = Duration::from_millis(1);
        for round in 0..40 {
            for _ in 0..cubic.window() / MSS {
                cubic.grow(MSS, Time::new(rtt * round), rtt);
            }
        }
        // 14 segments, 0.53 a round up to 20 after 11, then one a round.
        assert!((45 * MSS..50 * MSS).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn a_second_congestion_below_the_first_leaves_room_for_others() {
        let mut cubic = Cubic::new(MSS);
        cubic.set_window(100 * MSS);
        cubic.congested();
        cubic.set_window(80 * MSS);
        cubic.congested();
        assert!((cubic.max - 0.85 * f64::from(80 * MSS)).abs() < 1.0);
    }
}
