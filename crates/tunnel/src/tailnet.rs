//! Makes a program a node of a Tailscale-compatible network, such as one of headscale.
//!
//! ```text
//!   Member ---- Tunnel                    sockets, like those of any tunnel
//!     |           `--> node::Node         peers, paths, packet filter: set by the agent
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
//! let name = member.status().await?.node_at(from.ip()).map(|peer| peer.name.clone());
//! # drop((stream, name));
//!
//! member.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # State and processes
//!
//! The state folder contains this node's keys, settings and last map. With it the program is the same
//! node at its next start, even if the coordinator cannot be reached. Only one program at a time can
//! use the folder. The format is that of `linerate join --state-dir`.
//!
//! The agent parses messages from the network. `linerate join` runs it as a separate process without
//! keys and privileges. Here it is a thread of the program, so the parser shares a process with the
//! keys. If this isolation does not suffice, use a proxy of `linerate join --userspace`.
//!
//! As in Go, `SSL_CERT_FILE` and `SSL_CERT_DIR` add certificates that TLS trusts, and `HTTPS_PROXY`
//! sets the proxy to the coordinator.
//!
//! # Names
//!
//! [`Tunnel::connect_host`] and [`Tunnel::resolve`] resolve the network's names, short and long, without
//! a query. Other names are not found.

mod error;
mod options;
mod start;
mod status;

use std::{net::IpAddr, thread::JoinHandle};

use member::{
    agent::local_api::{Reply, Request, watcher},
    client::read_server_key,
    data_plane::PlaneHandle,
};
use mesh::local_json::{AuthKey, Notify, StartOptions, State, WatchMask};
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

/// A node of a tailnet. Clones share the node. It ends with the last clone of it and of its [`Tunnel`].
#[derive(Clone, Debug)]
pub struct Member {
    tunnel: Tunnel,
    addresses: watch::Receiver<Vec<IpAddr>>,
}

/// The thread of the agent, and the handle of the data plane that serves it.
pub(crate) struct Agent {
    /// Sends requests to the agent. The agent ends when this is dropped.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    plane_handle: Option<PlaneHandle>,
}

impl Member {
    /// Joins, and returns once the node is connected: then sockets of its [`Tunnel`] reach the network. A
    /// node that joined before continues with the last map, even if the coordinator cannot be reached.
    /// Dropping the future cancels the join, but not a completed login.
    ///
    /// It needs a tokio runtime with time enabled.
    ///
    /// # Errors
    /// The state cannot be used, the coordinator refuses, a login is required, or the join takes longer
    /// than [`Options::timeout`].
    pub async fn join(options: Options) -> Result<Self, JoinError> {
        let end = Instant::now() + options.timeout;
        let (tunnel, addresses) = start::start(&options.state_dir).await?;
        let mut member = Self { tunnel, addresses };
        member.log_in(options, end).await?;
        // The data plane receives the addresses last, after the peers.
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

    /// The error of a join that timed out, with the node's problems.
    async fn timeout_error(&self) -> JoinError {
        match self.status().await {
            Ok(status) => JoinError::TimedOut(status.health),
            Err(_) => JoinError::Ended,
        }
    }

    /// The tunnel, with which to connect, listen and resolve names. The network's map sets the allowed
    /// IPs of its peers.
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// This node's addresses in the network.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.borrow().clone()
    }

    /// The status of this node and of the other nodes.
    ///
    /// # Errors
    /// The agent has ended.
    pub async fn status(&self) -> Result<Status, RequestError> {
        let status = self.request(|reply| Request::Status { peers: true, reply }).await?;
        Ok(Status::from(*status))
    }

    /// Logs out: the coordinator removes this node, and its key is deleted. The node must join again.
    ///
    /// # Errors
    /// The coordinator cannot be reached, or the agent has ended.
    pub async fn logout(&self) -> Result<(), RequestError> {
        self.request(|reply| Request::Logout { reply }).await
    }

    /// Ends the tunnel like [`Tunnel::close`], and the node with its last clone. In the network the node
    /// remains, and is offline.
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

    /// The sender of requests. Callers must not store a clone, because the agent ends with the last one.
    fn requests(&self) -> Result<&mpsc::Sender<Request>, RequestError> {
        let agent = self.tunnel.agent();
        agent.and_then(|agent| agent.requests.as_ref()).ok_or(RequestError::Ended)
    }
}

impl Agent {
    pub(crate) fn network_changes(&self) -> impl Fn() + Send + use<> {
        let notify = self.plane_handle.as_ref().map(PlaneHandle::network_changes);
        move || notify.iter().for_each(|notify| notify())
    }

    /// Ends the agent, and waits for all threads that hold the node.
    pub(crate) fn stop(&mut self) {
        self.requests = None;
        // A thread that panicked has ended, too.
        self.thread.take().map(JoinHandle::join);
        if let Some(plane_handle) = &mut self.plane_handle {
            plane_handle.wait_for_agent();
        }
    }
}

impl Drop for Agent {
    /// Runs after the data plane has ended.
    fn drop(&mut self) {
        if let Some(plane_handle) = self.plane_handle.take() {
            plane_handle.wait_for_plane();
        }
    }
}

fn ended<T>(_: mpsc::error::SendError<T>) -> RequestError {
    RequestError::Ended
}

/// Text from the network, made safe for a terminal.
fn plain(text: &str) -> String {
    member::client::plain_text(text)
}
