//! How fast the path delivers: a sample with each acknowledgement of something new
//! (draft-ietf-ccwg-bbr, "Delivery Rate Samples"; draft-cheng-iccrg-delivery-rate-estimation).
//!
//! ```text
//!   sent: Snapshot of what had arrived by then  ....  acknowledged: what arrived since,
//!         and when                                    over the longer of the two times
//! ```
//!
//! A stretch that left as one super-packet has one snapshot.

use std::time::Duration;

use super::{
    scoreboard::{Delivered, Stretch},
    seq::Seq,
};
use crate::time::Time;

/// What has arrived of a connection's data. Bytes are counted modulo 2^32, as sequence
/// numbers are.
#[derive(Debug, Default)]
pub struct Delivery {
    arrived: Seq,
    /// When the last of it did.
    at: Time,
    /// When that was sent which arrived last.
    sent: Time,
    lost: u32,
    /// Until so much has arrived, samples are of an application that had nothing to say.
    limited: Option<Seq>,
}

/// What was known when a stretch was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    arrived: Seq,
    at: Time,
    sent: Time,
    lost: u32,
    /// Bytes on their way, with the stretch.
    pub flying: u32,
    /// Whether the application, and not the network, held back what was sent.
    pub limited: bool,
}

/// What an acknowledgement says of the path.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes a second; zero where they came too soon to tell.
    pub rate: f64,
    /// Bytes that arrived meanwhile.
    pub arrived: u32,
    /// What had arrived when the newest of them was sent.
    pub prior: Seq,
    /// Bytes that were lost since then.
    pub lost: u32,
    /// Bytes on their way then.
    pub flying: u32,
    /// Whether the application held back.
    pub limited: bool,
}

impl Delivery {
    /// What has arrived.
    pub fn arrived(&self) -> Seq {
        self.arrived
    }

    /// What is known at `now`, when a stretch is sent with which `flying` bytes are on
    /// their way. `first` says that nothing else is.
    pub fn snapshot(&mut self, flying: u32, first: bool, now: Time) -> Snapshot {
        if first {
            (self.sent, self.at) = (now, now);
        }
        let Self { arrived, at, sent, lost, limited } = *self;
        Snapshot { arrived, at, sent, lost, flying, limited: limited.is_some() }
    }

    /// The application has nothing more to say, though more could fly than the `flying`
    /// bytes that do.
    pub fn note_limited(&mut self, flying: u32) {
        self.limited = Some(self.arrived + flying);
    }

    /// So many bytes more are taken for lost.
    pub fn note_lost(&mut self, bytes: u32) {
        self.lost = self.lost.wrapping_add(bytes);
    }

    /// Bytes that were lost since a stretch was sent.
    pub fn lost_since(&self, snapshot: &Snapshot) -> u32 {
        self.lost.wrapping_sub(snapshot.lost)
    }

    /// Something arrived.
    pub fn note_arrived(&mut self, delivered: &Delivered, now: Time) {
        let Some(newest) = &delivered.newest else { return };
        self.arrived = self.arrived + delivered.bytes;
        self.at = now;
        self.sent = newest.sent;
        if self.limited.is_some_and(|until| self.arrived.behind(until)) {
            self.limited = None;
        }
    }

    /// What that says of the path, of which the least round trip time is known.
    pub fn sample(&self, newest: &Stretch, least: Option<Duration>) -> Sample {
        let then = &newest.then;
        let arrived = self.arrived.since(then.arrived);
        let took = self.at.since(then.at).max(newest.sent.since(then.sent));
        let tells = !took.is_zero() && least.is_none_or(|least| took >= least);
        Sample {
            rate: if tells { f64::from(arrived) / took.as_secs_f64() } else { 0.0 },
            arrived,
            prior: then.arrived,
            lost: self.lost_since(then),
            flying: then.flying,
            limited: then.limited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::Fate;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Time {
        Time::new(MS * ms)
    }

    fn send(delivery: &mut Delivery, piece: u32) -> Stretch {
        let then = delivery.snapshot(1000 * (piece + 1), piece == 0, at(piece));
        let (start, end) = (Seq(1000 * piece), Seq(1000 * (piece + 1)));
        Stretch { start, end, sent: at(piece), then, again: false, fate: Fate::Flying }
    }

    fn arrive(delivery: &mut Delivery, newest: Stretch, bytes: u32, now: Time) {
        let delivered = Delivered { bytes, newest: Some(newest), ..Delivered::default() };
        delivery.note_arrived(&delivered, now);
    }

    /// Of 22 pieces of 1000 bytes, one each millisecond, the first is acknowledged late,
    /// and all others with the last.
    #[test]
    fn acknowledgements_that_come_together_show_no_more_than_the_rate_that_was_sent_at() {
        let mut delivery = Delivery::default();
        let pieces: Vec<_> = (0..21).map(|piece| send(&mut delivery, piece)).collect();
        arrive(&mut delivery, pieces[0], 1000, at(20));
        let last = send(&mut delivery, 21);
        arrive(&mut delivery, last, 21_000, at(25));
        let sample = delivery.sample(&last, Some(4 * MS));
        assert_eq!((sample.arrived, sample.prior), (21_000, Seq(1000)));
        assert!((sample.rate - 1e6).abs() < 1.0, "{}", sample.rate);
        assert_eq!(delivery.sample(&last, Some(30 * MS)).rate, 0.0, "sooner than can be");
    }

    #[test]
    fn what_the_application_held_back_is_said_of_what_is_sent_until_that_arrived() {
        let mut delivery = Delivery::default();
        let first = send(&mut delivery, 0);
        delivery.note_limited(1000);
        let [second, third] = [1, 2].map(|piece| send(&mut delivery, piece));
        arrive(&mut delivery, second, 2000, at(9));
        let fourth = send(&mut delivery, 3);
        let limited = [first, second, third, fourth].map(|stretch| stretch.then.limited);
        assert_eq!(limited, [false, true, true, false]);
    }
}
