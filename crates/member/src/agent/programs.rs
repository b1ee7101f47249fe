//! Programs of this machine that wait for notifications or for the answer to a ping.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ipc::Path;
use mesh::{
    local_json::{Empty, Notify, PingResult, State, WatchMask},
    prefs::Prefs,
};
use tailnet::{keys::NodePublic, map_messages::Node, raw_json::Json};

use super::local_api::{Reply, Watcher, Writers};

/// The time limit of a ping (`ipn/localapi`).
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The most pending pings.
const MAX_PINGS: usize = 64;

/// The programs of this machine.
pub(super) struct Programs {
    /// The users with write access.
    writers: Arc<Writers>,
    watchers: Vec<Watcher>,
    pings: HashMap<u32, PendingPing>,
    /// Pings to peers without a path.
    unsent: Vec<(NodePublic, PendingPing)>,
    state: Option<State>,
}

/// A ping without an answer.
struct PendingPing {
    result: PingResult,
    /// The code of each region.
    regions: HashMap<u16, String>,
    reply: Reply<PingResult>,
    until: Duration,
}

impl Programs {
    pub(super) fn new(writers: Arc<Writers>) -> Self {
        let (pings, unsent) = (HashMap::new(), Vec::new());
        Self { writers, watchers: Vec::new(), pings, unsent, state: None }
    }

    /// Grants the operator write access, in addition to root. Returns the problem, if the operator
    /// is unknown.
    pub(super) fn set_operator(&self, name: &str) -> Option<String> {
        let number = (!name.is_empty()).then(|| sys::process::user_id(name)).flatten();
        self.writers.set_operator(number);
        let is_unknown = number.is_none() && !name.is_empty();
        is_unknown.then(|| format!("the operator {name:?} is not a user of this machine"))
    }

    /// Subscribes a program to notifications.
    pub(super) fn watch(&mut self, watcher: Watcher, first: &Notify, mask: WatchMask) {
        self.watchers.retain(|other| !other.is_gone());
        if mask == WatchMask::default() || watcher.notify(first) {
            self.watchers.push(watcher);
        }
    }

    fn notify(&mut self, notification: &Notify) {
        let notification = Arc::new(notification.clone());
        self.watchers.retain(|watcher| watcher.share(&notification));
    }

    /// Notifies of the state, if it changed.
    pub(super) fn set_state(&mut self, state: State) {
        if self.state.replace(state) != Some(state) {
            self.notify(&Notify { state: Some(state), ..Notify::default() });
        }
    }

    /// Notifies of a login page.
    pub(super) fn login_page(&mut self, page: &str) {
        self.notify(&Notify { browse_to_url: Some(page.to_owned()), ..Notify::default() });
    }

    /// Notifies of a failed login.
    pub(super) fn login_failed(&mut self, why: &str) {
        self.notify(&Notify { err_message: Some(why.to_owned()), ..Notify::default() });
    }

    /// Notifies of a finished login.
    pub(super) fn login_finished(&mut self, prefs: &Prefs) {
        self.notify(&Notify {
            login_finished: Some(Empty {}),
            prefs: Some(Box::new(prefs.clone())),
            ..Notify::default()
        });
    }

    /// Notifies of changed preferences.
    pub(super) fn prefs_changed(&mut self, prefs: &Prefs) {
        self.notify(&Notify { prefs: Some(Box::new(prefs.clone())), ..Notify::default() });
    }

    /// Notifies of changes to this node.
    pub(super) fn node_changed(&mut self, node: &Node) {
        self.notify(&Notify { self_change: Json::of(node).ok(), ..Notify::default() });
    }

    /// Adds a ping to a peer, which is sent when there is a path.
    pub(super) fn add_ping(
        &mut self,
        peer: NodePublic,
        result: PingResult,
        regions: HashMap<u16, String>,
        reply: Reply<PingResult>,
        now: Duration,
    ) {
        // Removes pings of programs that are gone.
        self.unsent.retain(|(_, waiting)| !waiting.reply.is_closed());
        self.pings.retain(|_, waiting| !waiting.reply.is_closed());
        if self.pings.len() + self.unsent.len() >= MAX_PINGS {
            let err = "too many pings wait for an answer".to_owned();
            let _ = reply.send(Ok(PingResult { err, ..result }));
            return;
        }
        self.unsent.push((peer, PendingPing { result, regions, reply, until: now + PING_TIMEOUT }));
    }

    /// Sends pings that can be sent. `send` returns the number of the ping.
    pub(super) fn send_pings(&mut self, mut send: impl FnMut(NodePublic) -> Option<u32>) {
        for (peer, waiting) in std::mem::take(&mut self.unsent) {
            match send(peer) {
                Some(number) => drop(self.pings.insert(number, waiting)),
                None => self.unsent.push((peer, waiting)),
            }
        }
    }

    /// A ping was answered.
    pub(super) fn pong(&mut self, number: u32, via: Path, latency: Duration) {
        let Some(PendingPing { mut result, regions, reply, .. }) = self.pings.remove(&number)
        else {
            return;
        };
        result.latency_seconds = latency.as_secs_f64();
        match via {
            Path::Direct(at) | Path::Auxiliary { at, .. } => result.endpoint = at.to_string(),
            Path::PeerRelay { at, vni } => result.peer_relay = format!("{at}:vni:{vni}"),
            Path::Relay(region) => {
                result.derp_region_id = region.into();
                result.derp_region_code = regions.get(&region).cloned().unwrap_or_default();
            }
        }
        let _ = reply.send(Ok(result));
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let unsent = self.unsent.iter().map(|(_, waiting)| waiting.until);
        self.pings.values().map(|waiting| waiting.until).chain(unsent).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        let late: Vec<u32> =
            self.pings.iter().filter(|(_, one)| one.until <= now).map(|(id, _)| *id).collect();
        for number in late {
            if let Some(PendingPing { mut result, reply, .. }) = self.pings.remove(&number) {
                result.err = "no reply".to_owned();
                let _ = reply.send(Ok(result));
            }
        }
        let is_late = |(_, waiting): &mut (NodePublic, PendingPing)| waiting.until <= now;
        for (_, PendingPing { mut result, reply, .. }) in self.unsent.extract_if(.., is_late) {
            result.err = "no path to the peer".to_owned();
            let _ = reply.send(Ok(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::agent::local_api::watcher;

    #[test]
    fn closed_watchers_are_removed_without_a_notification() {
        let mut programs = Programs::new(Arc::new(Writers::new(None)));
        for _ in 0..1000 {
            let (watcher, _) = watcher();
            programs.watch(watcher, &Notify::default(), WatchMask::default());
        }
        assert_eq!(programs.watchers.len(), 1);
    }

    #[test]
    fn pending_pings_are_limited_and_closed_ones_are_removed() {
        let mut programs = Programs::new(Arc::new(Writers::new(None)));
        let mut ping = || {
            let (reply, answer) = oneshot::channel();
            let (result, regions) = (PingResult::default(), HashMap::new());
            programs.add_ping(NodePublic([2; 32]), result, regions, reply, Duration::ZERO);
            answer
        };
        let mut waiting: Vec<_> = (0..MAX_PINGS).map(|_| ping()).collect();
        let refused = ping().try_recv().unwrap().unwrap();
        assert_eq!(refused.err, "too many pings wait for an answer");
        waiting.pop();
        assert!(ping().try_recv().is_err(), "it waits");
    }
}
