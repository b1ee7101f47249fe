//! Publication of a peer's path to the data plane, and of its state to users.

use ipc::Path;

use super::Peer;
use crate::peer_paths::{Context, Event, PathView, timing::SESSION};

impl Peer {
    /// Publishes the path if it changed.
    pub(crate) fn publish_path(&mut self, cx: &mut Context<'_>) {
        let is_up = |region: &u16| !cx.own.relays_down.contains(region);
        let direct = self.direct.map(|direct| Path::Direct(direct.addr));
        let known = self.confirmed_region(cx.now).filter(is_up).map(Path::Relay);
        let guess = self.region(cx).filter(is_up).map(Path::Relay);
        // Without a relay, an unproven address is better than no path: data sent there shows that a
        // path is needed.
        let lost = self.lost.map(|lost| lost.addr);
        let unproven = lost.or_else(|| self.candidates.first_of_map()).map(Path::Direct);
        let down = self.region(cx).map(Path::Relay);
        let direct = direct.or(self.birthday.path());
        let known = direct.or(self.relayed.path()).or(known);
        let path = known.or(guess).or(unproven).or(down);
        let first = known.is_some() && !self.published.is_reachable && self.is_active(cx.now);
        self.published.is_reachable = known.is_some();
        let differs = path != self.published.path;
        if differs {
            self.published.path = path;
            cx.emit(Event::UsePath { peer: self.key, path });
        }
        // An initiation that was lost on the previous path would only be repeated after seconds.
        let has_session = self.activity.handshake.is_some_and(|at| cx.now < at + SESSION);
        let proven = differs && direct.is_some() && !has_session && self.is_active(cx.now);
        if first || proven {
            cx.emit(Event::HandshakeNow(self.key));
        }
    }

    pub(crate) fn view(&self) -> PathView {
        PathView {
            path: self.published.path,
            latency: self
                .direct
                .map(|direct| direct.latency)
                .or(self.birthday.latency())
                .or(self.relayed.latency())
                .or(self.relay.latency),
            alive: self.direct.map(|direct| direct.alive),
            relay: self.relay.home.or(self.relay.received),
            relay_gone: self.relay.gone,
            sent: self.activity.sent,
            received: self.activity.received,
            called: self.activity.called,
            rounds: self.search.rounds(),
            birthday: self.birthday.view(),
            candidates: self.candidates.view(),
        }
    }
}
