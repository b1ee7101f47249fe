//! Measures the delivery rate of the path: one sample for each acknowledgement of new data
//! (draft-ietf-ccwg-bbr, "Delivery Rate Samples"; draft-cheng-iccrg-delivery-rate-estimation).
//!
//! ```text
//!   sent: Snapshot of the data        ....  acknowledged: data that arrived since,
//!         that had arrived, and time        divided by the longer of the two times
//! ```
//!
//! A range that was sent as one super-packet has one snapshot.

use std::time::Duration;

use super::{
    scoreboard::{Delivered, SentRange},
    seq::Seq,
};
use crate::time::Time;

/// The data of a connection that has arrived. Bytes are counted modulo 2^32, like sequence numbers.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    arrived: Seq,
    /// Time of the last arrival.
    at: Time,
    /// Time at which the last arrived data was sent.
    sent: Time,
    lost: u32,
    /// Samples are application-limited until this much has arrived.
    limited: Option<Seq>,
}

/// The state when a range was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    arrived: Seq,
    at: Time,
    sent: Time,
    lost: u32,
    /// Bytes in flight, including the range.
    pub in_flight: u32,
    /// Whether the application limited the rate.
    pub limited: bool,
}

/// The measurement of one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Bytes per second; 0 if the time was too short for a measurement.
    pub rate: f64,
    /// Bytes that arrived in this time.
    pub arrived: u32,
    /// The data that had arrived when the newest of them was sent.
    pub prior: Seq,
    /// Bytes lost since then.
    pub lost: u32,
    /// Bytes in flight at that time.
    pub in_flight: u32,
    /// Whether the application limited the rate.
    pub limited: bool,
}

impl Delivery {
    /// The data that has arrived.
    pub(super) fn arrived(&self) -> Seq {
        self.arrived
    }

    /// The state at `now`, when a range is sent. `in_flight` includes the range. `first` is set if
    /// no other data is in flight.
    pub(super) fn snapshot(&mut self, in_flight: u32, first: bool, now: Time) -> Snapshot {
        if first {
            (self.sent, self.at) = (now, now);
        }
        let Self { arrived, at, sent, lost, limited } = *self;
        Snapshot { arrived, at, sent, lost, in_flight, limited: limited.is_some() }
    }

    /// Records that the application has no more data, although more than `in_flight` bytes would be
    /// allowed.
    pub(super) fn note_limited(&mut self, in_flight: u32) {
        self.limited = Some(self.arrived + in_flight);
    }

    /// Records bytes that are considered lost.
    pub(super) fn note_lost(&mut self, bytes: u32) {
        self.lost = self.lost.wrapping_add(bytes);
    }

    /// Bytes that were lost since a range was sent.
    pub(super) fn lost_since(&self, snapshot: &Snapshot) -> u32 {
        self.lost.wrapping_sub(snapshot.lost)
    }

    /// Records newly acknowledged data.
    pub(super) fn note_arrived(&mut self, delivered: &Delivered, now: Time) {
        let Some(newest) = &delivered.newest else { return };
        self.arrived = self.arrived + delivered.bytes;
        self.at = now;
        self.sent = newest.sent;
        if self.limited.is_some_and(|until| self.arrived.after(until)) {
            self.limited = None;
        }
    }

    /// Computes the sample. `least` is the minimum round trip time, if known.
    pub(super) fn sample(&self, newest: &SentRange, least: Option<Duration>) -> Sample {
        let then = &newest.then;
        let arrived = self.arrived.since(then.arrived);
        let took = self.at.since(then.at).max(newest.sent.since(then.sent));
        let tells = !took.is_zero() && least.is_none_or(|least| took >= least);
        Sample {
            rate: if tells { f64::from(arrived) / took.as_secs_f64() } else { 0.0 },
            arrived,
            prior: then.arrived,
            lost: self.lost_since(then),
            in_flight: then.in_flight,
            limited: then.limited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::RangeState;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Time {
        Time::new(MS * ms)
    }

    fn send(delivery: &mut Delivery, piece: u32) -> SentRange {
        let then = delivery.snapshot(1000 * (piece + 1), piece == 0, at(piece));
        let (start, end) = (Seq(1000 * piece), Seq(1000 * (piece + 1)));
        SentRange { start, end, sent: at(piece), then, again: false, state: RangeState::InFlight }
    }

    fn arrive(delivery: &mut Delivery, newest: SentRange, bytes: u32, now: Time) {
        let delivered = Delivered { bytes, newest: Some(newest), ..Delivered::default() };
        delivery.note_arrived(&delivered, now);
    }

    /// A sender sends 22 pieces of 1000 bytes, one per millisecond. The first one is acknowledged
    /// late, and all others are acknowledged with the last one.
    #[test]
    fn batched_acknowledgements_do_not_exceed_the_send_rate() {
        let mut delivery = Delivery::default();
        let pieces: Vec<_> = (0..21).map(|piece| send(&mut delivery, piece)).collect();
        arrive(&mut delivery, pieces[0], 1000, at(20));
        let last = send(&mut delivery, 21);
        arrive(&mut delivery, last, 21_000, at(25));
        let sample = delivery.sample(&last, Some(4 * MS));
        assert_eq!((sample.arrived, sample.prior), (21_000, Seq(1000)));
        assert!((sample.rate - 1e6).abs() < 1.0, "{}", sample.rate);
        assert_eq!(delivery.sample(&last, Some(30 * MS)).rate, 0.0, "faster than possible");
    }

    #[test]
    fn samples_are_application_limited_until_the_limited_data_arrives() {
        let mut delivery = Delivery::default();
        let first = send(&mut delivery, 0);
        delivery.note_limited(1000);
        let [second, third] = [1, 2].map(|piece| send(&mut delivery, piece));
        arrive(&mut delivery, second, 2000, at(9));
        let fourth = send(&mut delivery, 3);
        let limited = [first, second, third, fourth].map(|range| range.then.limited);
        assert_eq!(limited, [false, true, true, false]);
    }
}
