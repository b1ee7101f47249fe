//! One node: it registers by key, follows its map, and tells where it may be reached.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use member::agent::control::connection::Connection;
use member::agent::control::trouble::Trouble;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use tailnet::control::messages::{Announced, EndpointKind, MapRequest};
use tailnet::control::register::{Login, Registration, Step};
use tailnet::keys::{DiscoPublic, MachineKey, NodePublic};
use tokio::sync::SemaphorePermit;
use tokio::time::sleep;
use zeroize::Zeroizing;

use super::Shared;
use super::known::{BadFrame, Known};

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Always the same one of a number, in its network.
struct Node {
    shared: Arc<Shared>,
    machine: MachineKey,
    key: NodePublic,
    announced: Announced,
    is_registered: bool,
    has_map: bool,
    is_whole: bool,
    /// The last question about rules that it answered.
    answered: u64,
}

/// Why a connection ended.
enum Ended {
    Trouble(Trouble),
    Refused(String),
    Unread(BadFrame),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Trouble(trouble) => write!(f, "{trouble}"),
            Ended::Refused(why) => write!(f, "refused: {why}"),
            Ended::Unread(why) => write!(f, "{why}"),
        }
    }
}

impl From<Trouble> for Ended {
    fn from(trouble: Trouble) -> Ended {
        Ended::Trouble(trouble)
    }
}

impl From<BadFrame> for Ended {
    fn from(frame: BadFrame) -> Ended {
        Ended::Unread(frame)
    }
}

/// Lives as long as the process.
pub(super) async fn live(shared: Arc<Shared>, number: usize) {
    let mut node = Node::new(shared, number);
    loop {
        let Err(ended) = node.connect().await;
        node.shared.note_trouble(&ended);
        node.set_whole(false);
        sleep(PAUSE).await;
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
    fn new(shared: Arc<Shared>, number: usize) -> Node {
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
        let announced = Announced { hostinfo, endpoints, disco_key, lock_head: String::new() };
        Node {
            shared,
            machine,
            key: public_key(number),
            announced,
            is_registered: false,
            has_map: false,
            is_whole: false,
            answered: 0,
        }
    }

    /// One connection, to its end.
    async fn connect(&mut self) -> Result<Infallible, Ended> {
        let shared = Arc::clone(&self.shared);
        let permit = shared.entrance.acquire().await.ok();
        let url = &shared.swarm.url;
        let connection = Connection::open(&shared.dialer, url, &[], &self.machine).await?;
        if !self.is_registered {
            self.register(&connection).await?;
        }
        let (announced, key) = (self.announced.clone(), self.key);
        let update = async {
            connection.update(key, &MapRequest::update(key, &announced)).await?;
            std::future::pending::<Result<Infallible, Trouble>>().await
        };
        tokio::select! {
            ended = self.follow(&connection, permit) => ended,
            Err(trouble) = update => Err(Ended::Trouble(trouble)),
        }
    }

    async fn register(&mut self, connection: &Connection) -> Result<(), Ended> {
        let auth_key = Some(Zeroizing::new(self.shared.swarm.auth_key.clone()));
        let mut registration = Registration::new(Login { auth_key, ..Login::new(self.key) });
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
            while let Some(heard) = known.poll_frame()? {
                self.shared.unpacked.fetch_add(heard.unpacked as u64, Relaxed);
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
            self.set_whole(known.count() + 1 == self.shared.swarm.count);
        }
    }

    /// The first map has rules.
    fn note_map(&mut self) {
        if !std::mem::replace(&mut self.has_map, true) {
            self.shared.first.fetch_add(1, Relaxed);
        }
    }

    fn set_whole(&mut self, is_whole: bool) {
        if self.is_whole != is_whole {
            self.is_whole = is_whole;
            self.shared.note_whole(is_whole);
        }
    }
}
