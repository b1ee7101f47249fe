//! Round trips.

use std::thread;
use std::time::Duration;

use netns::{Ping, ping};

use super::Turn;
use crate::measure::{
    BUSY_LOST, BUSY_P50, BUSY_P99, BUSY_P999, BUSY_TCP, IDLE_P50, IDLE_P99, IDLE_P999, Measure,
    PINGS,
};

/// Echo requests of an idle measurement; the 99.9th percentile needs a thousand.
const IDLE: &str = "-c 1000 -i 0.003";
const IDLE_BRIEF: &str = "-c 20 -i 0.003";

/// Echo requests a second during a full stream, and the additional seconds for them; the 99.9th
/// percentile needs a thousand requests.
const A_SECOND: u32 = 200;
const LONGER: u32 = 2;
const COUNT_BRIEF: u32 = 50;

/// Time of the stream before the first and after the last ping, so that slow start is over.
const ALONE: Duration = Duration::from_millis(500);

impl Turn<'_> {
    pub(super) fn ping(&mut self) {
        let requests = if self.plan.is_brief { IDLE_BRIEF } else { IDLE };
        let idle = ping(&self.client, format!("{requests} {}", self.target));
        let parts: [(&'static Measure, f64); 3] =
            [(&IDLE_P50, 0.5), (&IDLE_P99, 0.99), (&IDLE_P999, 0.999)];
        self.note_percentiles(&idle, &parts);
        self.readings.borrow_mut().push_round_trips(PINGS[0], idle.times);

        let (busy, rate) = self.ping_during_tcp();
        let parts: [(&'static Measure, f64); 3] =
            [(&BUSY_P50, 0.5), (&BUSY_P99, 0.99), (&BUSY_P999, 0.999)];
        self.note_percentiles(&busy, &parts);
        self.note(&BUSY_LOST, 100.0 * f64::from(busy.sent - busy.received) / f64::from(busy.sent));
        self.note(&BUSY_TCP, rate);
        self.readings.borrow_mut().push_round_trips(PINGS[1], busy.times);
    }

    /// Pings while a stream runs, and the stream's Gbit/s. The stream starts before and ends after
    /// the pings.
    fn ping_during_tcp(&self) -> (Ping, f64) {
        let seconds = self.plan.seconds + LONGER;
        let mut iperf = self.iperf("");
        iperf.seconds = seconds + 2 * ALONE.as_millis().div_ceil(1000) as u32;
        let mut count = seconds * A_SECOND;
        if self.plan.is_brief {
            (iperf.seconds, count) = (self.plan.seconds, COUNT_BRIEF);
        }
        let stream = iperf.start();
        thread::sleep(self.plan.edge(ALONE));
        let interval = 1.0 / f64::from(A_SECOND);
        let pings = ping(&self.client, format!("-c {count} -i {interval} -W 1 {}", self.target));
        (pings, stream.finish().gbps())
    }

    fn note_percentiles(&mut self, pings: &Ping, parts: &[(&'static Measure, f64)]) {
        for (measure, part) in parts {
            self.note(measure, pings.percentile(*part));
        }
    }
}
