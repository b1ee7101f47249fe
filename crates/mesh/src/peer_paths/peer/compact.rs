//! A compact form for unused peers, which most of a large network are: only the map entry.

use std::net::SocketAddr;

use tailnet::keys::{DiscoPublic, NodePublic};

use super::{Activity, Peer, Published, Relay};
use crate::peer_paths::PathView;

/// A peer in full or compact form.
#[derive(Debug)]
pub(crate) enum PeerEntry {
    Compact(Box<Compact>),
    Full(Box<Peer>),
}

/// The state of an unused peer.
#[derive(Debug)]
pub(crate) struct Compact {
    disco: DiscoPublic,
    home: Option<u16>,
    supports_peer_relays: bool,
    published: Published,
    candidates: Box<[SocketAddr]>,
}

impl PeerEntry {
    pub(crate) fn new(key: NodePublic, disco: DiscoPublic) -> Self {
        Self::Full(Box::new(Peer::new(key, disco)))
    }

    pub(crate) fn disco(&self) -> DiscoPublic {
        match self {
            Self::Compact(compact) => compact.disco,
            Self::Full(peer) => peer.disco,
        }
    }

    pub(crate) fn full(&self) -> Option<&Peer> {
        match self {
            Self::Compact(_) => None,
            Self::Full(peer) => Some(peer),
        }
    }

    /// Converts the peer to the full form.
    pub(crate) fn expand(&mut self, key: NodePublic) -> &mut Peer {
        if let Self::Compact(compact) = self {
            *self = Self::Full(Box::new(compact.expand(key)));
        }
        match self {
            Self::Full(peer) => peer,
            Self::Compact(_) => unreachable!("it was just woken"),
        }
    }

    /// Converts the peer to the compact form, if that form can represent its state.
    pub(crate) fn compact_if_idle(&mut self) {
        if let Self::Full(peer) = self
            && let Some(compact) = peer.to_compact()
        {
            *self = Self::Compact(Box::new(compact));
        }
    }

    pub(crate) fn wants_direct(&self) -> bool {
        self.full().is_some_and(Peer::wants_direct)
    }

    pub(crate) fn has_unknown_home(&self) -> bool {
        match self {
            Self::Compact(compact) => compact.home.is_none(),
            Self::Full(peer) => peer.has_unknown_home(),
        }
    }

    pub(crate) fn has_unproven_path(&self) -> bool {
        self.full().is_none_or(Peer::has_unproven_path)
    }

    pub(crate) fn view(&self, key: NodePublic) -> PathView {
        match self {
            Self::Compact(compact) => compact.expand(key).view(),
            Self::Full(peer) => peer.view(),
        }
    }
}

impl Compact {
    fn expand(&self, key: NodePublic) -> Peer {
        let mut peer = Peer::new(key, self.disco);
        peer.relay.home = self.home;
        (peer.supports_peer_relays, peer.published) = (self.supports_peer_relays, self.published);
        peer.candidates.set_map(&self.candidates, None);
        peer
    }
}

impl Peer {
    fn to_compact(&self) -> Option<Compact> {
        let Relay { home, received: None, gone: None, latency: None } = self.relay else {
            return None;
        };
        let quiet = self.activity == Activity::default()
            && self.search.is_quiet()
            && self.relayed.is_quiet()
            && self.birthday.is_quiet()
            && self.pings.is_empty()
            && self.seen.is_empty();
        if !quiet || self.direct.is_some() || self.lost.is_some() {
            return None;
        }
        Some(Compact {
            disco: self.disco,
            home,
            supports_peer_relays: self.supports_peer_relays,
            published: self.published,
            candidates: self.candidates.only_of_map()?,
        })
    }
}
