//! A program that is a node of a Tailscale-compatible network, such as one of headscale.
//!
//! ```text
//!   Member ---- Tunnel                    sockets, as of any tunnel
//!     |           `--> node::Node         peers, paths, packet filter: by the agent's word
//!     |                    ^ line
//!     `- requests --> the agent           a thread: coordinator, relays, paths, names
//! ```
//!
//! ```no_run
//! use tunnel::tailnet::{Member, Options};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::new("https://headscale.example", "/var/lib/my-program")
//!     .auth_key(std::env::var("TS_AUTHKEY")?)
//!     .hostname("my-program");
//! let member = Member::join(options).await?;
//!
//! let listener = member.tunnel().listen("[::]:80".parse()?)?;
//! let stream = member.tunnel().connect_host("desk", 22).await?;
//! let (stream, from) = listener.accept().await?;
//! let who = member.status().await?.node_at(from.ip()).map(|peer| peer.name.clone());
//! # drop((stream, who));
//!
//! member.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//!
//! The folder of the state has this node's keys, settings and the last map, so that the program
//! is the same node at its next start, which needs no coordinator. It belongs to one program at a
//! time, and is as that of `linerate join --state-dir`.
//!
//! The agent parses what the network says. `linerate join` runs it as a process of its own, which
//! has no key and no rights; here it is a thread of the program, so that the parser and the keys
//! share a process. Where that is too little, have `linerate join --userspace` serve a proxy.
//!
//! As in Go, `SSL_CERT_FILE` and `SSL_CERT_DIR` say whom TLS trusts beside the system's, and
//! `HTTPS_PROXY` how the coordinator is reached.
//!
//! # Names
//!
//! [`Tunnel::connect_host`] and [`Tunnel::resolve`] know the network's names, short and long,
//! without asking anybody. Other names are not found.

mod error;
mod options;
mod start;
mod status;

use std::{net::IpAddr, thread::JoinHandle};

use ::tailnet::local::{AuthKey, Notify, StartOptions, State, WatchMask};
use member::{
    agent::local_api::{Reply, Request, watcher},
    client::read_server_key,
    plane::PlaneHandle,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};

pub use self::{
    error::{JoinError, RequestError},
    options::Options,
    status::{Path, Peer, Status},
};
use crate::Tunnel;

/// A node of a tailnet. Clones are the same one, which ends with the last clone of it and of its
/// [`Tunnel`].
#[derive(Clone, Debug)]
pub struct Member {
    tunnel: Tunnel,
    addresses: watch::Receiver<Vec<IpAddr>>,
}

/// The thread of the agent, and what serves it.
pub(crate) struct Agent {
    /// Until the agent is to end.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    plane_handle: Option<PlaneHandle>,
}

impl Member {
    /// Joins, and returns once the node is connected: sockets of its [`Tunnel`] reach the network
    /// then. A node that joined before goes on with the last map, and needs no coordinator for
    /// that. Dropping the future gives it up; what was agreed with the coordinator stays.
    ///
    /// It needs a runtime of tokio with its clock switched on.
    ///
    /// # Errors
    /// The state cannot be used, the coordinator refuses, somebody has to log in, or it takes
    /// longer than [`Options::timeout`].
    pub async fn join(options: Options) -> Result<Self, JoinError> {
        let end = Instant::now() + options.timeout;
        let (tunnel, addresses) = start::start(&options.state_dir).await?;
        let mut member = Self { tunnel, addresses };
        member.log_in(options, end).await?;
        // The data plane hears it last, after the peers.
        let assigned = member.addresses.wait_for(|addresses| !addresses.is_empty());
        match timeout_at(end, assigned).await.map(|assigned| assigned.map(drop)) {
            Ok(Ok(())) => Ok(member),
            Ok(Err(_)) => Err(JoinError::Ended),
            Err(_) => Err(member.timeout_error().await),
        }
    }

    async fn log_in(&self, options: Options, end: Instant) -> Result<(), JoinError> {
        let Options {
            coordinator,
            server_key,
            auth_key,
            hostname,
            tags,
            accept_routes,
            on_page,
            ..
        } = options;
        let server_key = server_key.map(|key| read_server_key(&key)).transpose();
        let server_key = server_key.map_err(|why| JoinError::Refused(why.to_owned()))?;
        let (watcher, mut notifications) = watcher();
        let mask = WatchMask::INITIAL_STATE;
        self.requests()?.send(Request::Watch { mask, watcher }).await.map_err(ended)?;
        let mut prefs = self.request(|reply| Request::Prefs { reply }).await?;
        prefs.set_coordinator(coordinator, server_key);
        prefs.want_running = true;
        prefs.hostname = hostname.unwrap_or(prefs.hostname);
        prefs.advertise_tags = tags.unwrap_or(prefs.advertise_tags);
        prefs.route_all = accept_routes.unwrap_or(prefs.route_all);
        let mut has_requested_login = auth_key.is_some();
        let auth_key = auth_key.map(|key| AuthKey::new(String::clone(&key))).unwrap_or_default();
        let options = StartOptions { update_prefs: Some(prefs), auth_key };
        self.request(|reply| Request::Start { options, reply }).await?;
        loop {
            let notification = match timeout_at(end, notifications.recv()).await {
                Ok(notification) => notification.ok_or(JoinError::Ended)?,
                Err(_) => return Err(self.timeout_error().await),
            };
            let Notify { err_message, browse_to_url, state, .. } = &*notification;
            if let Some(why) = err_message {
                return Err(JoinError::Refused(plain(why)));
            }
            match (browse_to_url.as_deref().filter(|page| !page.is_empty()), &on_page) {
                (Some(page), Some(on_page)) => on_page(page),
                (Some(_), None) => return Err(JoinError::NeedsLogin),
                (None, _) => {}
            }
            match state {
                Some(State::Running) => return Ok(()),
                Some(State::NeedsLogin) if !has_requested_login => {
                    if on_page.is_none() {
                        return Err(JoinError::NeedsLogin);
                    }
                    has_requested_login = true;
                    self.request(|reply| Request::LoginInteractive { reply }).await?;
                }
                _ => {}
            }
        }
    }

    /// Why it takes so long.
    async fn timeout_error(&self) -> JoinError {
        match self.status().await {
            Ok(status) => JoinError::TimedOut(status.health),
            Err(_) => JoinError::Ended,
        }
    }

    /// The tunnel to connect, listen and ask for names with. Its peers' allowed IPs are what the
    /// network's map says.
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// This node's addresses in the network.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.borrow().clone()
    }

    /// What is known of this node and of the others.
    ///
    /// # Errors
    /// The agent has ended.
    pub async fn status(&self) -> Result<Status, RequestError> {
        let status = self.request(|reply| Request::Status { peers: true, reply }).await?;
        Ok(Status::from(*status))
    }

    /// Leaves the network: the coordinator forgets this node, whose key is removed. It has to join
    /// again.
    ///
    /// # Errors
    /// The coordinator was not told, or the agent has ended.
    pub async fn logout(&self) -> Result<(), RequestError> {
        self.request(|reply| Request::Logout { reply }).await
    }

    /// Ends the tunnel as [`Tunnel::close`] does, and with the last clone the node. The network
    /// keeps it, as one that is not there.
    pub async fn close(self) {
        self.tunnel.close().await;
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.requests()?.send(request(reply)).await.map_err(ended)?;
        let answer = answer.await.map_err(|_| RequestError::Ended)?;
        answer.map_err(|refusal| RequestError::Refused(plain(&refusal.to_string())))
    }

    /// Nobody keeps a copy: the agent ends with the last one.
    fn requests(&self) -> Result<&mpsc::Sender<Request>, RequestError> {
        let agent = self.tunnel.agent();
        agent.and_then(|agent| agent.requests.as_ref()).ok_or(RequestError::Ended)
    }
}

impl Agent {
    pub fn network_changes(&self) -> impl Fn() + Send + use<> {
        let notify = self.plane_handle.as_ref().map(PlaneHandle::network_changes);
        move || notify.iter().for_each(|notify| notify())
    }

    /// Ends the agent, and waits for all threads that have the node.
    pub fn stop(&mut self) {
        self.requests = None;
        // One that panicked has ended, too.
        self.thread.take().map(JoinHandle::join);
        if let Some(plane_handle) = &mut self.plane_handle {
            plane_handle.wait_for_agent();
        }
    }
}

impl Drop for Agent {
    /// After the data plane.
    fn drop(&mut self) {
        if let Some(plane_handle) = self.plane_handle.take() {
            plane_handle.wait_for_plane();
        }
    }
}

fn ended<T>(_: mpsc::error::SendError<T>) -> RequestError {
    RequestError::Ended
}

/// The words of others, which may be shown on a terminal.
fn plain(text: &str) -> String {
    member::client::plain_text(text)
}
