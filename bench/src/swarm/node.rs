//! One node: registers by key, follows its map, and announces its endpoints.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use member::agent::control::connection::Connection;
use member::agent::control::error::ControlError;
use member::agent::control::{Settings, random};
use mesh::backoff::Backoff;
use mesh::registration::{Login, Registration, Step};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use tailnet::keys::{DiscoPublic, MachineKey, MachinePublic, NodePublic};
use tailnet::ts2021::requests::{Announcement, EndpointKind, MapRequest};
use tokio::sync::{SemaphorePermit, mpsc};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::change::{Order, SeenChanges};
use super::peer_list::{FrameError, MARK, PeerList};
use super::{Group, Shared};

/// A connection that lasted this long resets the backoff.
const STEADY: Duration = Duration::from_secs(60);

/// A node; the same number gives the same node of its network.
struct Node {
    shared: Arc<Shared>,
    group: Group,
    machine: MachineKey,
    key: NodePublic,
    /// The previous key, during a renewal.
    old_key: Option<NodePublic>,
    announced: Announcement,
    is_registered: bool,
    /// The last epoch in which it had a full map.
    epoch: Option<u64>,
    is_whole: bool,
    seen: SeenChanges,
    /// The last `rules` command that it answered.
    answered: u64,
}

/// Why a connection ended.
enum ConnectionEnd {
    /// The node must change its key.
    Renewal,
    Trouble(ControlError),
    Refused(String),
    Unread(FrameError),
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Renewal => f.write_str("another key"),
            Self::Trouble(error) => write!(f, "{error}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Unread(why) => write!(f, "{why}"),
        }
    }
}

impl From<ControlError> for ConnectionEnd {
    fn from(error: ControlError) -> Self {
        Self::Trouble(error)
    }
}

impl From<FrameError> for ConnectionEnd {
    fn from(frame: FrameError) -> Self {
        Self::Unread(frame)
    }
}

/// Runs as long as the process. Reconnects as Tailscale's client does.
pub(super) async fn run(
    shared: Arc<Shared>,
    (number, group): (usize, Group),
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut node = Node::new(shared, number, group);
    let mut failures = Backoff::connections();
    loop {
        let begun = Instant::now();
        let Err(ended) = node.connect(&mut orders).await;
        node.set_whole(false);
        if matches!(ended, ConnectionEnd::Renewal) {
            continue;
        }
        node.shared.note_failure(&ended);
        if begun.elapsed() >= STEADY {
            failures.reset();
        }
        sleep(failures.handle_failure(random())).await;
    }
}

/// The private key of the node with this number.
pub fn node_key(number: usize) -> Box<Zeroizing<[u8; 32]>> {
    secret(&mut ChaCha20Rng::seed_from_u64(number as u64))
}

/// The public half of [`node_key`].
pub fn public_key(number: usize) -> NodePublic {
    NodePublic(*wg::PrivateKey::from_bytes(&node_key(number)).public_key().as_bytes())
}

fn secret(rng: &mut ChaCha20Rng) -> Box<Zeroizing<[u8; 32]>> {
    let mut bytes = Box::new(Zeroizing::new([0; 32]));
    rng.fill_bytes(&mut bytes[..]);
    bytes
}

impl Node {
    fn new(shared: Arc<Shared>, number: usize, group: Group) -> Self {
        // The first secret of the seed is the node's; this is the second.
        let mut rng = ChaCha20Rng::seed_from_u64(number as u64);
        drop(secret(&mut rng));
        let machine = MachineKey::new(secret(&mut rng));
        let mut disco = [0; 32];
        rng.fill_bytes(&mut disco);
        let low = number as u32 % (1 << 16);
        let at = SocketAddr::from(([192, 168, (low >> 8) as u8, low as u8], 41641));
        let seen = SocketAddr::from(([203, 0, 113, low as u8], 1024 + (low >> 8) as u16));
        let hostinfo = json!({
            "BackendLogID": "0".repeat(64), "Hostname": format!("node-{number}"), "OS": "linux",
            "OSVersion": "6.12", "IPNVersion": env!("CARGO_PKG_VERSION"),
            "NetInfo": { "PreferredDERP": 999, "WorkingUDP": true },
        });
        let endpoints = vec![(at, EndpointKind::Local), (seen, EndpointKind::Stun)];
        let disco_key = DiscoPublic(disco);
        let announced = Announcement { hostinfo, endpoints, disco_key, tka_head: String::new() };
        Self {
            shared,
            group,
            machine,
            key: public_key(number),
            old_key: None,
            announced,
            is_registered: false,
            epoch: None,
            is_whole: false,
            seen: SeenChanges::default(),
            answered: 0,
        }
    }

    /// Runs one connection to its end.
    async fn connect(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Result<Infallible, ConnectionEnd> {
        let shared = Arc::clone(&self.shared);
        // Registered nodes reconnect without a limit.
        let permit = match self.is_registered {
            true => None,
            false => shared.join_permits.acquire().await.ok(),
        };
        let settings = Settings {
            url: shared.swarm.url.clone(),
            server_key: MachinePublic::default(),
            machine_key: self.machine.clone(),
            dialer: shared.dialer.clone(),
        };
        let (connection, _) = Connection::open(&settings, &[]).await?;
        if !self.is_registered {
            self.register(&connection).await?;
        }
        let (mut announced, key) = (self.announced.clone(), self.key);
        let ended = tokio::select! {
            ended = self.follow(&connection, permit) => return ended,
            ended = send_updates(&connection, key, &mut announced, orders, &shared) => ended,
        };
        self.announced = announced;
        if matches!(ended, ConnectionEnd::Renewal) {
            self.old_key = Some(self.key);
            self.key = NodePublic(renewed(&self.key.0));
            self.is_registered = false;
        }
        Err(ended)
    }

    async fn register(&mut self, connection: &Connection) -> Result<(), ConnectionEnd> {
        let auth_key = Some(Zeroizing::new(self.group.auth_key.clone()));
        let old_node_key = self.old_key;
        let login = Login { auth_key, old_node_key, ..Login::new(self.key) };
        let mut registration = Registration::new(login);
        let request = registration.request(&self.announced.hostinfo);
        let answer = connection.register(&self.key, &request, false).await?;
        match registration.handle_response(answer) {
            Step::Registered(_) => {
                self.is_registered = true;
                Ok(())
            }
            Step::Refused(why) => Err(ConnectionEnd::Refused(why)),
            Step::Visit(_) => {
                Err(ConnectionEnd::Refused("an interactive login is required".to_owned()))
            }
            Step::NewNodeKey(_) => Err(ConnectionEnd::Refused("the key has expired".to_owned())),
        }
    }

    async fn follow(
        &mut self,
        connection: &Connection,
        mut permit: Option<SemaphorePermit<'_>>,
    ) -> Result<Infallible, ConnectionEnd> {
        let request = MapRequest::stream(self.key, &self.announced);
        let mut body = connection.map(self.key, "map", &request).await?.into_body();
        let (mut peers, mut answered) = (PeerList::default(), self.answered);
        loop {
            let piece = connection.next_piece(&mut body).await?;
            self.shared.bytes.fetch_add(piece.len() as u64, Relaxed);
            peers.handle_bytes(&piece);
            while let Some(summary) = peers.poll_frame(&self.shared.memory)? {
                self.shared.unpacked.fetch_add(summary.unpacked as u64, Relaxed);
                if !summary.marks.is_empty()
                    && self.shared.changes.note(&summary.marks, &mut self.seen)
                {
                    self.shared.done.notify_one();
                }
                let question = self.shared.question.load(Relaxed);
                if summary.has_rules {
                    drop(permit.take());
                    self.note_map();
                    if answered != question {
                        (answered, self.answered) = (question, question);
                        self.shared.note_rules();
                    }
                }
            }
            self.set_whole(peers.count() == self.group.sees);
        }
    }

    /// Counts the map: the first map has rules.
    fn note_map(&mut self) {
        let epoch = self.shared.epoch.load(Relaxed);
        if self.epoch.replace(epoch) != Some(epoch) {
            self.shared.note_map();
        }
    }

    fn set_whole(&mut self, is_whole: bool) {
        if self.is_whole != is_whole {
            self.is_whole = is_whole;
            self.shared.note_whole(is_whole);
        }
    }
}

/// Announces the node, now and after each change.
async fn send_updates(
    connection: &Connection,
    key: NodePublic,
    announced: &mut Announcement,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    shared: &Shared,
) -> ConnectionEnd {
    loop {
        if let Err(error) = connection.update(key, &MapRequest::update(key, announced)).await {
            return ConnectionEnd::Trouble(error);
        }
        // Another command may follow as long as the swarm runs.
        let Some(Order { mark, is_renewal }) = orders.recv().await else {
            return std::future::pending().await;
        };
        let [high, low] = mark.to_be_bytes();
        let at = format!("{MARK}{high}.{low}:41641").parse().expect("it is an address");
        if let Some(endpoint) = announced.endpoints.last_mut() {
            endpoint.0 = at;
        }
        shared.changes.begin(mark);
        if is_renewal {
            return ConnectionEnd::Renewal;
        }
    }
}

/// The key that follows this one; its private half is never used.
fn renewed(key: &[u8; 32]) -> [u8; 32] {
    let mut rng = ChaCha20Rng::from_seed(*key);
    let mut next = [0; 32];
    rng.fill_bytes(&mut next);
    next
}
