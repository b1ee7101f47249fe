//! What users are told of paths.

use std::{net::SocketAddr, time::Duration};

use super::Path;

/// What is known of the way to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Where its datagrams go.
    pub path: Option<Path>,
    /// Of the direct path, where there is one, else of the relay.
    pub latency: Option<Duration>,
    /// The last proof that the direct path works.
    pub alive: Option<Duration>,
    /// The region through which it is reached.
    pub relay: Option<u16>,
    /// When that relay said that the peer is not there.
    pub relay_gone: Option<Duration>,
    /// When something was last sent to it.
    pub sent: Option<Duration>,
    /// When something was last received from it.
    pub received: Option<Duration>,
    /// When it last sent its addresses.
    pub called: Option<Duration>,
    /// Rounds without success since a direct path was last wanted or lost.
    pub rounds: u8,
    /// Where it may be.
    pub candidates: Vec<Candidate>,
    /// What came of meeting it by chance.
    pub birthday: BirthdayOutcome,
}

/// What came of the last try to meet a peer by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BirthdayOutcome {
    /// There was none.
    #[default]
    NotTried,
    /// The peer, which perhaps knows nothing of that, did not answer.
    NotAnswered(Duration),
    /// No call met a port.
    Failed(Duration),
    /// One did.
    Succeeded(Duration),
    /// One did, and that path is lost.
    Lost(Duration),
}

/// An address where a peer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub addr: SocketAddr,
    /// Who said so.
    pub origins: Origins,
    /// What became of it.
    pub outcome: ProbeOutcome,
}

/// Who said that a peer is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// The map.
    pub map: bool,
    /// The peer, by its last call.
    pub call: bool,
    /// A ping or data that came from there.
    pub received: bool,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It was not pinged.
    NotTried,
    /// No ping was answered.
    NeverAnswered {
        /// When it was last pinged.
        last: Duration,
    },
    /// A ping was answered.
    Answered {
        /// When, the last time.
        at: Duration,
        /// How fast.
        latency: Duration,
    },
}
