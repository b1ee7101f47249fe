//! A peer with which nothing has happened yet, as most of a large network are: what the map says of
//! it, and no more.

use std::net::SocketAddr;

use super::{Heard, Peer, Relay};
use crate::{
    keys::{DiscoPublic, NodePublic},
    paths::{Path, Shown},
};

/// A peer, in full or at rest.
#[derive(Debug)]
pub enum Known {
    Resting(Box<Resting>),
    Awake(Box<Peer>),
}

/// All of a peer that is at rest.
#[derive(Debug)]
pub struct Resting {
    disco: DiscoPublic,
    home: Option<u16>,
    passes: bool,
    reachable: bool,
    used: Option<Path>,
    candidates: Box<[SocketAddr]>,
}

impl Known {
    pub fn new(key: NodePublic, disco: DiscoPublic) -> Self {
        Self::Awake(Box::new(Peer::new(key, disco)))
    }

    pub fn disco(&self) -> DiscoPublic {
        match self {
            Self::Resting(resting) => resting.disco,
            Self::Awake(peer) => peer.disco,
        }
    }

    pub fn awake(&self) -> Option<&Peer> {
        match self {
            Self::Resting(_) => None,
            Self::Awake(peer) => Some(peer),
        }
    }

    /// Has it in full, until it rests again.
    pub fn wake(&mut self, key: NodePublic) -> &mut Peer {
        if let Self::Resting(resting) = self {
            *self = Self::Awake(Box::new(resting.wake(key)));
        }
        match self {
            Self::Awake(peer) => peer,
            Self::Resting(_) => unreachable!("it was just woken"),
        }
    }

    /// Keeps only what the map says if that is all there is.
    pub fn rest_if_idle(&mut self) {
        if let Self::Awake(peer) = self
            && let Some(resting) = peer.at_rest()
        {
            *self = Self::Resting(Box::new(resting));
        }
    }

    pub fn wants_direct(&self) -> bool {
        self.awake().is_some_and(Peer::wants_direct)
    }

    pub fn has_unknown_home(&self) -> bool {
        match self {
            Self::Resting(resting) => resting.home.is_none(),
            Self::Awake(peer) => peer.has_unknown_home(),
        }
    }

    pub fn has_unproven_path(&self) -> bool {
        self.awake().is_none_or(Peer::has_unproven_path)
    }

    pub fn shown(&self, key: NodePublic) -> Shown {
        match self {
            Self::Resting(resting) => resting.wake(key).shown(),
            Self::Awake(peer) => peer.shown(),
        }
    }
}

impl Resting {
    fn wake(&self, key: NodePublic) -> Peer {
        let mut peer = Peer::new(key, self.disco);
        peer.relay.home = self.home;
        (peer.passes, peer.reachable, peer.used) = (self.passes, self.reachable, self.used);
        peer.candidates.set_map(&self.candidates, None);
        peer
    }
}

impl Peer {
    fn at_rest(&self) -> Option<Resting> {
        let Relay { home, heard: None, gone: None, latency: None } = self.relay else {
            return None;
        };
        let quiet = self.heard == Heard::default()
            && self.search.is_quiet()
            && self.passed.is_quiet()
            && self.meets.is_quiet()
            && self.pings.is_empty()
            && self.seen.is_empty();
        if !quiet || self.direct.is_some() || self.lost.is_some() {
            return None;
        }
        Some(Resting {
            disco: self.disco,
            home,
            passes: self.passes,
            reachable: self.reachable,
            used: self.used,
            candidates: self.candidates.only_of_map()?,
        })
    }
}
