//! Congestion control: how much data may be in flight, and how fast it is sent. One of two
//! algorithms is used.

mod bbr;
mod cubic;

use std::time::Duration;

use bbr::Bbr;
use cubic::Cubic;

use super::{
    delivery::{Delivery, Sample},
    scoreboard::SentRange,
    seq::Seq,
};
use crate::time::Time;

/// Segments of the initial window (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;

/// The congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// BBR, version 3 (draft-ietf-ccwg-bbr), based on the path's delivery rate and its minimum
    /// round trip time. Random loss does not slow it down, and queues stay short. If the peer does
    /// not support selective acknowledgements, CUBIC is used instead.
    #[default]
    Bbr,
    /// CUBIC (RFC 9438), based on losses.
    Cubic,
}

/// The algorithm's state. It is created when data is first sent, so connections that only receive
/// do not have one.
#[derive(Debug)]
pub(super) enum Control {
    Unused(Settings),
    Bbr(Box<Bbr>),
    Cubic(Box<Cubic>),
}

/// The initial parameters of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub algorithm: CongestionControl,
    /// Segment payload in bytes.
    pub mss: u32,
    /// An unpredictable number.
    pub seed: u32,
}

/// The pacing parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Bytes per second.
    pub rate: f64,
    /// Bytes that may be sent at once.
    pub quantum: u32,
}

/// Data that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEvent {
    pub bytes: u32,
    /// Whether no other data is in flight.
    pub first: bool,
    /// Whether nothing was sent for a retransmission timeout.
    pub idle: bool,
    /// Whether the application limited the rate before.
    pub limited: bool,
    pub smoothed: Option<Duration>,
    pub now: Time,
}

/// A range that is considered lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss<'a> {
    pub range: &'a SentRange,
    /// Bytes lost since it was sent, including the range.
    pub since: u32,
    /// Bytes that have arrived.
    pub arrived: Seq,
    pub now: Time,
}

/// An acknowledgement, after losses were detected.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckEvent {
    /// Bytes that are newly acknowledged.
    pub bytes: u32,
    /// Delivery rate sample of these bytes.
    pub sample: Option<Sample>,
    /// Round trip time of the last sent of these bytes.
    pub rtt: Option<Duration>,
    pub smoothed: Option<Duration>,
    /// Bytes in flight before and after the acknowledgement.
    pub prior_in_flight: u32,
    pub in_flight: u32,
    /// Whether it advances, and no further loss was detected.
    pub safe: bool,
    pub now: Time,
}

impl Control {
    /// Creates the state before data is sent.
    pub(super) fn new(settings: Settings) -> Self {
        Self::Unused(settings)
    }

    /// The congestion window in bytes.
    pub(super) fn window(&self) -> u32 {
        match self {
            Self::Unused(settings) => INITIAL_SEGMENTS * settings.mss,
            Self::Bbr(bbr) => bbr.window(),
            Self::Cubic(cubic) => cubic.window(),
        }
    }

    /// The pacing parameters; `None` without pacing.
    pub(super) fn pace(&self) -> Option<Pace> {
        match self {
            Self::Bbr(bbr) => Some(bbr.pace()),
            _ => None,
        }
    }

    /// Changes the segment payload.
    pub(super) fn set_mss(&mut self, mss: u32) {
        match self {
            Self::Unused(settings) => settings.mss = mss,
            Self::Bbr(bbr) => bbr.set_mss(mss),
            Self::Cubic(cubic) => cubic.set_mss(mss),
        }
    }

    /// Records that the congestion window was the only limit.
    pub(super) fn note_limited(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.note_limited(),
            Self::Cubic(cubic) => cubic.note_limited(),
        }
    }

    /// Handles data that is about to be sent.
    pub(super) fn handle_send(&mut self, event: &SendEvent) {
        if let Self::Unused(Settings { algorithm, mss, seed }) = *self {
            *self = match algorithm {
                CongestionControl::Bbr => {
                    Self::Bbr(Box::new(Bbr::new(mss, seed, event.smoothed, event.now)))
                }
                CongestionControl::Cubic => Self::Cubic(Box::new(Cubic::new(mss))),
            };
        }
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.handle_send(event),
            Self::Cubic(cubic) => cubic.handle_send(event),
        }
    }

    /// Handles a range that is considered lost.
    pub(super) fn note_lost(&mut self, loss: &Loss<'_>) {
        if let Self::Bbr(bbr) = self {
            bbr.note_lost(loss);
        }
    }

    /// Starts loss recovery. `prior_in_flight` bytes were in flight before the loss.
    pub(super) fn enter_recovery(&mut self, prior_in_flight: u32) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.enter_recovery(),
            Self::Cubic(cubic) => cubic.enter_recovery(prior_in_flight),
        }
    }

    /// Ends loss recovery, after all retransmissions were acknowledged.
    pub(super) fn leave_recovery(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.leave_recovery(),
            Self::Cubic(cubic) => cubic.leave_recovery(),
        }
    }

    /// Undoes a recovery: the data was late, not lost.
    pub(super) fn undo(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.undo(),
            Self::Cubic(cubic) => cubic.undo(),
        }
    }

    /// Handles a retransmission timeout. `first` is set for the first one in a row.
    pub(super) fn handle_timeout(&mut self, first: bool) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.handle_timeout(),
            Self::Cubic(cubic) => cubic.handle_timeout(first),
        }
    }

    /// Handles a tail loss that a probe has repaired (RFC 8985 section 7.4).
    pub(super) fn note_repaired(&mut self, arrived: Seq) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.note_repaired(arrived),
            Self::Cubic(cubic) => cubic.note_repaired(),
        }
    }

    /// Handles an acknowledgement.
    pub(super) fn handle_ack(&mut self, event: &AckEvent, delivery: &mut Delivery) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.handle_ack(event, delivery),
            Self::Cubic(cubic) => cubic.handle_ack(event),
        }
    }
}
