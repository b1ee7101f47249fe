//! Adapts the announced window to the data that the application reads in a few round trips (as in
//! Linux `tcp_rcv_space_adjust`). A fast path gets a large window, and an application that does not
//! read does not.

use std::time::Duration;

use crate::time::Time;

/// The initial window in bytes: that of Linux, larger than any initial congestion window.
const INITIAL: u32 = 64 * 1024;
/// Window for each byte that was read in a round trip. The sender may double its window in one
/// round trip, and its data is acknowledged one round trip later.
const AHEAD: u32 = 4;

#[derive(Debug)]
pub(super) struct Tuning {
    limit: u32,
    most: u32,
    rtt: Duration,
    /// Start of the measured round trip.
    since: Option<Time>,
    read: u32,
}

impl Tuning {
    pub(super) fn new(most: u32) -> Self {
        Self { limit: INITIAL.min(most), most, rtt: Duration::ZERO, since: None, read: 0 }
    }

    /// Capacity for unread data, in bytes.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn limit_to(&mut self, most: u32) {
        self.most = self.most.min(most);
        self.limit = self.limit.min(most);
    }

    pub(super) fn note_rtt(&mut self, sample: Duration) {
        self.rtt = if self.rtt.is_zero() { sample } else { (self.rtt * 7 + sample) / 8 };
    }

    /// Records that the application read `len` bytes. Windows may grow by at most `room` bytes.
    pub(super) fn read(&mut self, len: u32, room: u32, now: Time) {
        self.read = self.read.saturating_add(len);
        if now.since(*self.since.get_or_insert(now)) < self.rtt {
            return;
        }
        let wanted = self.read.saturating_mul(AHEAD).min(self.most);
        if wanted > self.limit && wanted - self.limit <= room {
            self.limit = wanted;
        }
        (self.since, self.read) = (Some(now), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_window_grows_with_the_read_rate_up_to_its_limits() {
        let mut tuning = Tuning::new(1 << 20);
        tuning.note_rtt(10 * MS);
        let mut now = Time::new(MS);
        for _ in 0..10 {
            tuning.read(10_000, u32::MAX, now);
            now = now + MS;
        }
        assert_eq!(tuning.limit(), INITIAL, "not within the first round trip");
        now = now + 10 * MS;
        tuning.read(10_000, u32::MAX, now);
        assert_eq!(tuning.limit(), 440_000);
        tuning.read(1 << 19, 1000, now + 10 * MS);
        assert_eq!(tuning.limit(), 440_000, "there is no room");
        tuning.read(1 << 19, u32::MAX, now + 20 * MS);
        assert_eq!(tuning.limit(), 1 << 20, "not more than the maximum");
    }
}
