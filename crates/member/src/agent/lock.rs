//! Tailnet lock, as the agent has it: the keys that may sign are kept in a file, so that a
//! coordinator can withhold what is new, and take nothing back.
//!
//! ```text
//!   map ──► Follower ──► question ──► control::lock ──► answer ──► Follower
//!                                                                     `──► lock.json, settings
//! ```

mod orders;

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailnet::{
    control::{CAPABILITY_VERSION, register},
    keys::NodePublic,
    messages::Node,
    settings::{self, locked_out, signature},
    tka::{
        Authority, OwnKey, WrappedAuthKey,
        follow::{Follower, Known, Question, Said},
        shown_signature,
        sync::Asking,
    },
};
use zeroize::Zeroizing;

use self::orders::Orders;
use super::{control, core::Agent, state::State};

/// The name of the file.
const FILE: &str = "lock.json";
/// The version of its form.
const VERSION: u32 = 1;

/// What is kept of tailnet lock.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// Whose coordinator passed it on.
    control_url: String,
    /// In base64.
    updates: Vec<String>,
}

/// What this node has of tailnet lock.
pub(super) struct Lock {
    own: OwnKey,
    /// The public half of `own`, as people are told it.
    shown: String,
    /// Of the coordinator at this URL.
    control_url: String,
    follower: Follower,
    orders: Orders,
}

impl Kept {
    fn of(authority: &Authority, control_url: &str) -> Self {
        let updates = authority.texts().iter().map(|text| Base64::encode_string(text)).collect();
        Self { version: VERSION, control_url: control_url.to_owned(), updates }
    }

    fn restored(&self) -> Option<Authority> {
        let texts = self.updates.iter().map(|text| Base64::decode_vec(text));
        let texts: Vec<Vec<u8>> = texts.collect::<Result<_, _>>().ok()?;
        Authority::restored(&texts).ok().filter(|_| self.version == VERSION)
    }
}

impl Lock {
    /// What is kept for the coordinator at this URL.
    ///
    /// # Errors
    /// This node's own key cannot be read or made.
    pub fn new(state: &State, control_url: &str) -> anyhow::Result<Self> {
        let own = state.lock_key()?;
        let kept: Option<Kept> = state.read(FILE);
        let known = match kept {
            // What cannot be read may be of any.
            None if state.has(FILE) => Known::Damaged,
            None => Known::Nothing,
            Some(kept) if kept.control_url != control_url => Known::Nothing,
            Some(kept) => match kept.restored() {
                Some(authority) => Known::Keys(Box::new(authority)),
                None => Known::Damaged,
            },
        };
        Ok(Self {
            shown: own.shown(),
            own,
            control_url: control_url.to_owned(),
            follower: Follower::new(known),
            orders: Orders::default(),
        })
    }

    /// What peers are believed by.
    pub fn around(&self) -> settings::Lock<'_> {
        match self.follower.known() {
            Known::Nothing => settings::Lock::Unknown,
            Known::Damaged => settings::Lock::Damaged,
            Known::Keys(authority) => settings::Lock::On { authority, own_key: &self.shown },
        }
    }

    /// The last update that counts; empty where there is none.
    pub fn head(&self) -> String {
        let authority = self.follower.known().authority();
        authority.map(|authority| authority.head().to_string()).unwrap_or_default()
    }

    /// When [`Agent::follow_lock`] has something to do.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.follower.poll_timeout()
    }

    /// The first map of a stream is here.
    pub fn handle_connected(&mut self) {
        self.orders.handle_connected();
        self.follower.handle_connected();
    }

    pub fn handle_disconnected(&mut self) {
        self.orders.handle_disconnected();
        self.follower.handle_disconnected();
    }

    /// Whether a former signature is one that another can be made of.
    pub fn renews(&self, former: &[u8]) -> bool {
        self.own.renewed(&NodePublic::default(), former).is_ok()
    }

    /// A login that the network accepts under tailnet lock, where that can be had: by the signature
    /// of the former node key, or by what an auth key brings along.
    pub fn login(
        &self,
        node_key: NodePublic,
        auth_key: Option<Zeroizing<String>>,
        former: Option<&[u8]>,
    ) -> register::Login {
        let renewed = former.and_then(|former| self.own.renewed(&node_key, former).ok());
        let wrapped = auth_key.as_ref().and_then(|key| WrappedAuthKey::read(key));
        let signature = renewed.or_else(|| Some(wrapped.as_ref()?.sign(&node_key)));
        register::Login {
            auth_key: match wrapped {
                Some(wrapped) => Some(Zeroizing::new(wrapped.auth_key().to_owned())),
                None => auth_key,
            },
            lock_key: Some(self.own.public()),
            signature: signature.map(|signature| Base64::encode_string(&signature)),
            ..register::Login::new(node_key)
        }
    }
}

impl Agent {
    /// Asks the coordinator for what is missing here.
    pub fn follow_lock(&mut self) {
        let (asking, now) = (self.asking(), self.clock.now);
        let said = Said { lock: self.map.lock(), asking, now };
        let question = self.lock.follower.poll_question(said);
        self.ask_lock(question);
    }

    /// The coordinator answered, or did not.
    pub fn handle_lock_answer(
        &mut self,
        number: u32,
        answer: Result<&[u8], &control::trouble::Trouble>,
    ) {
        let answer = answer.map_err(ToString::to_string);
        if let Some(question) = self.lock.orders.handle_answered(number) {
            self.ask_coordinator(question);
        }
        if Orders::has(number) {
            return self.handle_order_answer(number, answer);
        }
        let (asking, now) = (self.asking(), self.clock.now);
        let said = Said { lock: self.map.lock(), asking, now };
        let (changed, question) =
            self.lock.follower.handle_answer(number, answer, said, control::random());
        if changed {
            self.keep_lock();
            self.apply_settings();
        }
        self.ask_lock(question);
    }

    fn asking(&self) -> Asking {
        Asking { version: CAPABILITY_VERSION, node_key: self.own.key }
    }

    fn ask_lock(&mut self, question: Option<Question>) {
        if let Some(question) = question.and_then(|question| self.lock.orders.ask(question)) {
            self.ask_coordinator(question);
        }
        match self.lock.follower.failure() {
            Some(failure) => {
                self.problems.insert("lock", format!("tailnet lock: {failure}"));
            }
            None if matches!(self.lock.follower.known(), Known::Damaged) => {
                let problem = format!(
                    "tailnet lock: {FILE} in the state folder cannot be read, so no peer is \
                     believed; log out and join again"
                );
                self.problems.insert("lock", problem);
            }
            None => drop(self.problems.remove("lock")),
        }
    }

    fn keep_lock(&mut self) {
        let kept = match self.lock.follower.known() {
            Known::Keys(authority) => {
                self.state.keep(FILE, &Kept::of(authority, &self.lock.control_url))
            }
            _ => self.state.forget(FILE),
        };
        match kept {
            Ok(()) => drop(self.problems.remove("disk of tailnet lock")),
            Err(error) => {
                self.problems.insert("disk of tailnet lock", format!("{FILE}: {error}"));
            }
        }
    }

    /// Forgets whom the network trusts: it was left.
    pub fn forget_lock(&mut self) {
        self.lock.follower = Follower::new(Known::Nothing);
        self.problems.remove("lock");
        self.keep_lock();
    }

    /// The coordinator at this URL is spoken to from now on: what another passed on does not count.
    pub fn lock_of(&mut self, control_url: &str) {
        if self.lock.control_url != control_url {
            control_url.clone_into(&mut self.lock.control_url);
            self.forget_lock();
        }
    }

    /// Whether tailnet lock lets a peer in; nothing where it is off.
    pub fn why_locked(&self, peer: &Node) -> Option<(bool, String)> {
        match (self.lock.follower.known(), self.map.lock()) {
            (Known::Keys(authority), _) => {
                let refused = locked_out(&self.map, authority);
                Some(match refused.get(&peer.key) {
                    Some(why) => (false, format!("tailnet lock: its key's signature: {why}")),
                    None => (true, "tailnet lock: its key is signed".to_owned()),
                })
            }
            (Known::Nothing, None) => None,
            _ => Some((false, "tailnet lock: its keys are not known here".to_owned())),
        }
    }

    /// What `tailscale lock status` reads (`ipnstate.TailnetLockStatus`).
    pub fn lock_status(&self) -> Value {
        let node_key = Some(self.own.key).filter(|key| !key.is_zero());
        let Some(authority) = self.lock.follower.known().authority() else {
            return json!({
                "Enabled": matches!(self.lock.follower.known(), Known::Damaged),
                "PublicKey": self.lock.own.public(),
                "NodeKey": node_key,
                "NodeKeySigned": false,
            });
        };
        let own = self.map.node().map(signature).unwrap_or_default();
        let refused = locked_out(&self.map, authority);
        let shown = |is_refused: bool| -> Vec<Value> {
            let peers = self.map.peers();
            peers
                .filter(|peer| refused.contains_key(&peer.key) == is_refused)
                .map(shown_peer)
                .collect()
        };
        json!({
            "Enabled": true,
            "Head": authority.head().0,
            "PublicKey": self.lock.own.public(),
            "NodeKey": node_key,
            "NodeKeySigned": authority.check(&self.own.key, &own).is_ok(),
            "NodeKeySignature": shown_signature(&own).ok(),
            "TrustedKeys": authority.shown_keys(),
            "VisiblePeers": shown(false),
            "FilteredPeers": shown(true),
            "StateID": authority.number(),
        })
    }
}

fn shown_peer(peer: &Node) -> Value {
    let addresses: Vec<_> = peer.addresses.iter().map(ipnet::IpNet::addr).collect();
    json!({
        "Name": peer.name,
        "ID": peer.id,
        "StableID": peer.stable_id,
        "TailscaleIPs": addresses,
        "NodeKey": peer.key,
        "NodeKeySignature": shown_signature(&signature(peer)).unwrap_or_else(|_| json!({})),
    })
}
