//! One node: it registers by key, follows its map, and tells where it may be reached.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use member::agent::control::connection::Connection;
use member::agent::control::error::ControlError;
use member::agent::control::{Settings, random};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use tailnet::control::backoff::Backoff;
use tailnet::control::messages::{Announcement, EndpointKind, MapRequest};
use tailnet::control::register::{Login, Registration, Step};
use tailnet::keys::{DiscoPublic, MachineKey, MachinePublic, NodePublic};
use tokio::sync::{SemaphorePermit, mpsc};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::change::{Order, Told};
use super::known::{BadFrame, Known, MARK};
use super::{Group, Shared};

/// A connection that lasted so long was a good one.
const STEADY: Duration = Duration::from_secs(60);

/// Always the same one of a number, in its network.
struct Node {
    shared: Arc<Shared>,
    group: Group,
    machine: MachineKey,
    key: NodePublic,
    /// The key that another one replaces.
    old_key: Option<NodePublic>,
    announced: Announcement,
    is_registered: bool,
    /// The last epoch in which it had a whole map.
    epoch: Option<u64>,
    is_whole: bool,
    told: Told,
    /// The last question about rules that it answered.
    answered: u64,
}

/// Why a connection ended.
enum Ended {
    /// It is to have another key.
    Renewal,
    Trouble(ControlError),
    Refused(String),
    Unread(BadFrame),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Renewal => f.write_str("another key"),
            Ended::Trouble(error) => write!(f, "{error}"),
            Ended::Refused(why) => write!(f, "refused: {why}"),
            Ended::Unread(why) => write!(f, "{why}"),
        }
    }
}

impl From<ControlError> for Ended {
    fn from(error: ControlError) -> Ended {
        Ended::Trouble(error)
    }
}

impl From<BadFrame> for Ended {
    fn from(frame: BadFrame) -> Ended {
        Ended::Unread(frame)
    }
}

/// Lives as long as the process. It comes again as a client of Tailscale's does.
pub(super) async fn live(
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
        if let Ended::Renewal = ended {
            continue;
        }
        node.shared.note_trouble(&ended);
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

/// Its public half.
pub fn public_key(number: usize) -> NodePublic {
    NodePublic(*wg::PrivateKey::from_bytes(&node_key(number)).public_key().as_bytes())
}

fn secret(rng: &mut ChaCha20Rng) -> Box<Zeroizing<[u8; 32]>> {
    let mut bytes = Box::new(Zeroizing::new([0; 32]));
    rng.fill_bytes(&mut bytes[..]);
    bytes
}

impl Node {
    fn new(shared: Arc<Shared>, number: usize, group: Group) -> Node {
        // The second secret of the number: the first is the node's.
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
        Node {
            shared,
            group,
            machine,
            key: public_key(number),
            old_key: None,
            announced,
            is_registered: false,
            epoch: None,
            is_whole: false,
            told: Told::default(),
            answered: 0,
        }
    }

    /// One connection, to its end.
    async fn connect(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Result<Infallible, Ended> {
        let shared = Arc::clone(&self.shared);
        // Once they are nodes there is no order in which they come again.
        let permit = match self.is_registered {
            true => None,
            false => shared.entrance.acquire().await.ok(),
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
            ended = tell(&connection, key, &mut announced, orders, &shared) => ended,
        };
        self.announced = announced;
        if let Ended::Renewal = ended {
            self.old_key = Some(self.key);
            self.key = NodePublic(renewed(&self.key.0));
            self.is_registered = false;
        }
        Err(ended)
    }

    async fn register(&mut self, connection: &Connection) -> Result<(), Ended> {
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
            Step::Refused(why) => Err(Ended::Refused(why)),
            Step::Visit(_) => Err(Ended::Refused("a person is to log in".to_owned())),
            Step::NewNodeKey(_) => Err(Ended::Refused("the key has expired".to_owned())),
        }
    }

    async fn follow(
        &mut self,
        connection: &Connection,
        mut permit: Option<SemaphorePermit<'_>>,
    ) -> Result<Infallible, Ended> {
        let request = MapRequest::stream(self.key, &self.announced);
        let mut body = connection.map(self.key, "map", &request).await?.into_body();
        let (mut known, mut answered) = (Known::default(), self.answered);
        loop {
            let piece = connection.next_piece(&mut body).await?;
            self.shared.bytes.fetch_add(piece.len() as u64, Relaxed);
            known.handle_bytes(&piece);
            while let Some(heard) = known.poll_frame(&self.shared.memory)? {
                self.shared.unpacked.fetch_add(heard.unpacked as u64, Relaxed);
                if !heard.marks.is_empty() && self.shared.changes.note(&heard.marks, &mut self.told)
                {
                    self.shared.done.notify_one();
                }
                let question = self.shared.question.load(Relaxed);
                if heard.has_rules {
                    drop(permit.take());
                    self.note_map();
                    if answered != question {
                        (answered, self.answered) = (question, question);
                        self.shared.note_rules();
                    }
                }
            }
            self.set_whole(known.count() == self.group.sees);
        }
    }

    /// The first map has rules.
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

/// Tells of the node, now and when it is to change.
async fn tell(
    connection: &Connection,
    key: NodePublic,
    announced: &mut Announcement,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    shared: &Shared,
) -> Ended {
    loop {
        if let Err(error) = connection.update(key, &MapRequest::update(key, announced)).await {
            return Ended::Trouble(error);
        }
        // As long as the swarm lives there may be another.
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
            return Ended::Renewal;
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
