//! Tailnet lock, as the agent has it: the keys that may sign are kept in a file, so that a
//! coordinator can withhold what is new, and take nothing back.
//!
//! ```text
//!   map ──► Follower ──► question ──► control::lock ──► answer ──► Follower
//!                                                                     `──► lock.json, settings
//! ```

mod operations;

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

use self::operations::Operations;
use super::{control, core::Agent, state_folder::StateFolder};

/// The name of the file.
const FILE: &str = "lock.json";
/// The version of its form.
const VERSION: u32 = 1;

/// What is kept of tailnet lock.
#[derive(Serialize, Deserialize)]
struct SavedChain {
    version: u32,
    /// Whose coordinator passed it on.
    control_url: String,
    /// In base64.
    updates: Vec<String>,
}

/// What this node has of tailnet lock.
pub(super) struct Tka {
    own: OwnKey,
    /// The public half of `own`, as people are told it.
    own_public: String,
    /// Of the coordinator at this URL.
    control_url: String,
    follower: Follower,
    operations: Operations,
}

impl SavedChain {
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

impl Tka {
    /// What is kept for the coordinator at this URL.
    ///
    /// # Errors
    /// This node's own key cannot be read or made.
    pub fn new(state: &StateFolder, control_url: &str) -> anyhow::Result<Self> {
        let own = state.tka_key()?;
        let saved: Option<SavedChain> = state.read(FILE);
        let known = match saved {
            // What cannot be read may be of any.
            None if state.may_exist(FILE) => Known::Damaged,
            None => Known::Nothing,
            Some(saved) if saved.control_url != control_url => Known::Nothing,
            Some(saved) => match saved.restored() {
                Some(authority) => Known::Keys(Box::new(authority)),
                None => Known::Damaged,
            },
        };
        Ok(Self {
            own_public: own.shown(),
            own,
            control_url: control_url.to_owned(),
            follower: Follower::new(known),
            operations: Operations::default(),
        })
    }

    /// What peers are believed by.
    pub fn trust(&self) -> settings::Lock<'_> {
        match self.follower.known() {
            Known::Nothing => settings::Lock::Unknown,
            Known::Damaged => settings::Lock::Damaged,
            Known::Keys(authority) => settings::Lock::On { authority, own_key: &self.own_public },
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
        self.operations.handle_connected();
        self.follower.handle_connected();
    }

    pub fn handle_disconnected(&mut self) {
        self.operations.handle_disconnected();
        self.follower.handle_disconnected();
    }

    /// Whether a former signature is one that another can be made of.
    pub fn renews(&self, previous: &[u8]) -> bool {
        self.own.renewed(&NodePublic::default(), previous).is_ok()
    }

    /// A login that the network accepts under tailnet lock, where that can be had: by the signature
    /// of the former node key, or by what an auth key brings along.
    pub fn login(
        &self,
        node_key: NodePublic,
        auth_key: Option<Zeroizing<String>>,
        previous: Option<&[u8]>,
    ) -> register::Login {
        let renewed = previous.and_then(|previous| self.own.renewed(&node_key, previous).ok());
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
    pub fn sync_tka(&mut self) {
        let (asking, now) = (self.requester(), self.clock.now);
        let said = Said { lock: self.map.lock(), asking, now };
        let question = self.tka.follower.poll_question(said);
        self.send_tka_request(question);
    }

    /// The coordinator answered, or did not.
    pub fn handle_tka_response(
        &mut self,
        number: u32,
        answer: Result<&[u8], &control::error::ControlError>,
    ) {
        let answer = answer.map_err(ToString::to_string);
        if let Some(question) = self.tka.operations.handle_answered(number) {
            self.request_tka(question);
        }
        if Operations::owns(number) {
            return self.handle_operation_response(number, answer);
        }
        let (asking, now) = (self.requester(), self.clock.now);
        let said = Said { lock: self.map.lock(), asking, now };
        let (changed, question) =
            self.tka.follower.handle_answer(number, answer, said, control::random());
        if changed {
            self.save_tka();
            self.apply_settings();
        }
        self.send_tka_request(question);
    }

    fn requester(&self) -> Asking {
        Asking { version: CAPABILITY_VERSION, node_key: self.own.key }
    }

    fn send_tka_request(&mut self, question: Option<Question>) {
        if let Some(question) =
            question.and_then(|question| self.tka.operations.send_or_queue(question))
        {
            self.request_tka(question);
        }
        match self.tka.follower.failure() {
            Some(failure) => {
                self.problems.insert("lock", format!("tailnet lock: {failure}"));
            }
            None if matches!(self.tka.follower.known(), Known::Damaged) => {
                let problem = format!(
                    "tailnet lock: {FILE} in the state folder cannot be read, so no peer is \
                     believed; log out and join again"
                );
                self.problems.insert("lock", problem);
            }
            None => drop(self.problems.remove("lock")),
        }
    }

    fn save_tka(&mut self) {
        let saved = match self.tka.follower.known() {
            Known::Keys(authority) => {
                self.state.save(FILE, &SavedChain::of(authority, &self.tka.control_url))
            }
            _ => self.state.remove(FILE),
        };
        match saved {
            Ok(()) => drop(self.problems.remove("disk of tailnet lock")),
            Err(error) => {
                self.problems.insert("disk of tailnet lock", format!("{FILE}: {error}"));
            }
        }
    }

    /// Forgets whom the network trusts: it was left.
    pub fn clear_tka(&mut self) {
        self.tka.follower = Follower::new(Known::Nothing);
        self.problems.remove("lock");
        self.save_tka();
    }

    /// The coordinator at this URL is spoken to from now on: what another passed on does not count.
    pub fn set_tka_coordinator(&mut self, control_url: &str) {
        if self.tka.control_url != control_url {
            control_url.clone_into(&mut self.tka.control_url);
            self.clear_tka();
        }
    }

    /// Whether tailnet lock lets a peer in; nothing where it is off.
    pub fn tka_verdict(&self, peer: &Node) -> Option<(bool, String)> {
        match (self.tka.follower.known(), self.map.lock()) {
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
    pub fn tka_status(&self) -> Value {
        let node_key = Some(self.own.key).filter(|key| !key.is_zero());
        let Some(authority) = self.tka.follower.known().authority() else {
            return json!({
                "Enabled": matches!(self.tka.follower.known(), Known::Damaged),
                "PublicKey": self.tka.own.public(),
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
                .map(peer_status)
                .collect()
        };
        json!({
            "Enabled": true,
            "Head": authority.head().0,
            "PublicKey": self.tka.own.public(),
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

fn peer_status(peer: &Node) -> Value {
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
