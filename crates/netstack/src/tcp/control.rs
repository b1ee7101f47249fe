//! How much may be in the network, and how fast it is sent: one of two algorithms.

mod bbr;
mod cubic;

use std::time::Duration;

use bbr::Bbr;
use cubic::Cubic;

use super::{
    delivery::{Delivery, Sample},
    scoreboard::Stretch,
    seq::Seq,
};
use crate::time::Time;

/// Segments of the initial window (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;

/// How a connection finds out how much its path carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// BBR, version 3 (draft-ietf-ccwg-bbr): by the rate at which the path delivers and by
    /// its least round trip time. Random loss does not slow it down, and queues stay short.
    /// Where the peer has no selective acknowledgements, CUBIC stands in.
    #[default]
    Bbr,
    /// CUBIC (RFC 9438): by losses.
    Cubic,
}

/// The algorithm of a connection. It is created with the first data that is sent, so a connection
/// that only receives has none.
#[derive(Debug)]
pub enum Control {
    Unused(Settings),
    Bbr(Box<Bbr>),
    Cubic(Box<Cubic>),
}

/// What an algorithm begins with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub algorithm: CongestionControl,
    /// Payload of a segment in bytes.
    pub mss: u32,
    /// What nobody can guess.
    pub seed: u32,
}

/// How fast is sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes a second.
    pub rate: f64,
    /// Bytes that leave at once.
    pub quantum: u32,
}

/// Something is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    pub bytes: u32,
    /// Whether nothing is on its way.
    pub first: bool,
    /// Whether nothing was sent for a time-out.
    pub idle: bool,
    /// Whether the application had nothing to say before.
    pub limited: bool,
    pub smoothed: Option<Duration>,
    pub now: Time,
}

/// A stretch that is taken for lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    pub stretch: &'a Stretch,
    /// Bytes that were lost since it was sent, with it.
    pub since: u32,
    /// What has arrived.
    pub arrived: Seq,
    pub now: Time,
}

/// What an acknowledgement says, when losses were looked for.
#[derive(Clone, Copy, Debug)]
pub struct News {
    /// Bytes that arrived and were not known to.
    pub bytes: u32,
    /// What that says of the path.
    pub sample: Option<Sample>,
    /// The round trip time of what was sent last of them.
    pub rtt: Option<Duration>,
    pub smoothed: Option<Duration>,
    /// Bytes on their way, before and after it.
    pub flew: u32,
    pub flying: u32,
    /// Whether the stream went on, and nothing more is lost.
    pub safe: bool,
    pub now: Time,
}

impl Control {
    /// None yet, of those settings.
    pub fn new(settings: Settings) -> Self {
        Self::Unused(settings)
    }

    /// The congestion window in bytes.
    pub fn window(&self) -> u32 {
        match self {
            Self::Unused(settings) => INITIAL_SEGMENTS * settings.mss,
            Self::Bbr(bbr) => bbr.window(),
            Self::Cubic(cubic) => cubic.window(),
        }
    }

    /// How fast is sent, where that is bounded.
    pub fn pace(&self) -> Option<Pace> {
        match self {
            Self::Bbr(bbr) => Some(bbr.pace()),
            _ => None,
        }
    }

    /// Segments have another length from now on.
    pub fn set_mss(&mut self, mss: u32) {
        match self {
            Self::Unused(settings) => settings.mss = mss,
            Self::Bbr(bbr) => bbr.set_mss(mss),
            Self::Cubic(cubic) => cubic.set_mss(mss),
        }
    }

    /// The window, and nothing else, held something back.
    pub fn note_limited(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.note_limited(),
            Self::Cubic(cubic) => cubic.note_limited(),
        }
    }

    /// Something is about to be sent.
    pub fn note_departure(&mut self, departure: &Departure) {
        if let Self::Unused(Settings { algorithm, mss, seed }) = *self {
            *self = match algorithm {
                CongestionControl::Bbr => {
                    Self::Bbr(Box::new(Bbr::new(mss, seed, departure.smoothed, departure.now)))
                }
                CongestionControl::Cubic => Self::Cubic(Box::new(Cubic::new(mss))),
            };
        }
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.note_departure(departure),
            Self::Cubic(cubic) => cubic.note_departure(departure),
        }
    }

    /// A stretch is taken for lost.
    pub fn note_lost(&mut self, loss: &Loss<'_>) {
        if let Self::Bbr(bbr) = self {
            bbr.note_lost(loss);
        }
    }

    /// What is lost is being sent again from now on. `flew` bytes had been on their way.
    pub fn enter_recovery(&mut self, flew: u32) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.enter_recovery(),
            Self::Cubic(cubic) => cubic.enter_recovery(flew),
        }
    }

    /// All of it arrived.
    pub fn leave_recovery(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.leave_recovery(),
            Self::Cubic(cubic) => cubic.leave_recovery(),
        }
    }

    /// Nothing was lost, all of it was late.
    pub fn undo(&mut self) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.undo(),
            Self::Cubic(cubic) => cubic.undo(),
        }
    }

    /// Nothing was heard for a time-out. `first` says that it is the first in a row.
    pub fn handle_timeout(&mut self, first: bool) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.handle_timeout(),
            Self::Cubic(cubic) => cubic.handle_timeout(first),
        }
    }

    /// A probe repaired a loss at the tail (RFC 8985 section 7.4).
    pub fn note_repaired(&mut self, arrived: Seq) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.note_repaired(arrived),
            Self::Cubic(cubic) => cubic.note_repaired(),
        }
    }

    /// Something was heard.
    pub fn handle_ack(&mut self, news: &News, delivery: &mut Delivery) {
        match self {
            Self::Unused(_) => {}
            Self::Bbr(bbr) => bbr.handle_ack(news, delivery),
            Self::Cubic(cubic) => cubic.handle_ack(news),
        }
    }
}
