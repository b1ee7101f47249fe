//! Tailnet lock (TKA). The keys that may sign are stored in a file, so a coordinator can withhold
//! updates, but cannot undo them.
//!
//! ```text
//!   map ──► Follower ──► request ──► control::tka ──► response ──► Follower
//!                                                                     `──► lock.json, settings
//! ```

mod pending_commands;

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailnet::{
    control::{CAPABILITY_VERSION, register},
    keys::NodePublic,
    messages::Node,
    settings::{self, key_signature, rejected_by_tka},
    tka::{
        Authority, TkaKey, WrappedAuthKey,
        follow::{Follower, LocalAuthority, SyncInput, SyncRequest},
        signature_json,
        sync::Requester,
    },
};
use zeroize::Zeroizing;

use self::pending_commands::PendingCommands;
use super::{control, core::Agent, state_folder::StateFolder};

const FILE: &str = "lock.json";
/// The version of the file format.
const VERSION: u32 = 1;

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct SavedChain {
    version: u32,
    /// The URL of the coordinator that sent the updates.
    control_url: String,
    /// In base64.
    updates: Vec<String>,
}

/// The state of tailnet lock.
pub(super) struct Tka {
    own: TkaKey,
    /// The public half of `own` as text.
    own_public: String,
    /// The coordinator of the state.
    control_url: String,
    follower: Follower,
    commands: PendingCommands,
}

impl SavedChain {
    fn of(authority: &Authority, control_url: &str) -> Self {
        let updates =
            authority.encoded_updates().iter().map(|text| Base64::encode_string(text)).collect();
        Self { version: VERSION, control_url: control_url.to_owned(), updates }
    }

    fn restored(&self) -> Option<Authority> {
        let texts = self.updates.iter().map(|text| Base64::decode_vec(text));
        let texts: Vec<Vec<u8>> = texts.collect::<Result<_, _>>().ok()?;
        Authority::from_stored(&texts).ok().filter(|_| self.version == VERSION)
    }
}

impl Tka {
    /// Reads the state for the coordinator at this URL.
    ///
    /// # Errors
    /// This node's own key cannot be read or created.
    pub fn new(state: &StateFolder, control_url: &str) -> anyhow::Result<Self> {
        let own = state.tka_key()?;
        let saved: Option<SavedChain> = state.read(FILE);
        let known = match saved {
            // An unreadable file may belong to any coordinator.
            None if state.may_exist(FILE) => LocalAuthority::Damaged,
            None => LocalAuthority::Unknown,
            Some(saved) if saved.control_url != control_url => LocalAuthority::Unknown,
            Some(saved) => match saved.restored() {
                Some(authority) => LocalAuthority::Trusted(Box::new(authority)),
                None => LocalAuthority::Damaged,
            },
        };
        Ok(Self {
            own_public: own.cli_public(),
            own,
            control_url: control_url.to_owned(),
            follower: Follower::new(known),
            commands: PendingCommands::default(),
        })
    }

    /// The trust in peers' signatures.
    pub fn trust(&self) -> settings::TkaStatus<'_> {
        match self.follower.local_authority() {
            LocalAuthority::Unknown => settings::TkaStatus::Unknown,
            LocalAuthority::Damaged => settings::TkaStatus::Damaged,
            LocalAuthority::Trusted(authority) => {
                settings::TkaStatus::On { authority, own_key: &self.own_public }
            }
        }
    }

    /// The hash of the last valid update; empty without one.
    pub fn head(&self) -> String {
        let authority = self.follower.local_authority().authority();
        authority.map(|authority| authority.head().to_string()).unwrap_or_default()
    }

    /// The time at which [`Agent::sync_tka`] has an effect.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.follower.poll_timeout()
    }

    pub fn handle_connected(&mut self) {
        self.commands.handle_connected();
        self.follower.handle_connected();
    }

    pub fn handle_disconnected(&mut self) {
        self.commands.handle_disconnected();
        self.follower.handle_disconnected();
    }

    /// Whether a previous signature can be renewed.
    pub fn renews(&self, previous: &[u8]) -> bool {
        self.own.renew_signature(&NodePublic::default(), previous).is_ok()
    }

    /// A login with a signature, if available: from the signature of the previous node key, or from
    /// the credential in an auth key.
    pub fn login(
        &self,
        node_key: NodePublic,
        auth_key: Option<Zeroizing<String>>,
        previous: Option<&[u8]>,
    ) -> register::Login {
        let renewed =
            previous.and_then(|previous| self.own.renew_signature(&node_key, previous).ok());
        let wrapped = auth_key.as_ref().and_then(|key| WrappedAuthKey::read(key));
        let signature = renewed.or_else(|| Some(wrapped.as_ref()?.sign(&node_key)));
        register::Login {
            auth_key: match wrapped {
                Some(wrapped) => Some(Zeroizing::new(wrapped.auth_key().to_owned())),
                None => auth_key,
            },
            tka_key: Some(self.own.public()),
            signature: signature.map(|signature| Base64::encode_string(&signature)),
            ..register::Login::new(node_key)
        }
    }
}

impl Agent {
    /// Requests missing updates from the coordinator.
    pub fn sync_tka(&mut self) {
        let (asking, now) = (self.requester(), self.clock.now);
        let input = SyncInput { tka: self.node.map().tka(), requester: asking, now };
        let request = self.tka.follower.poll_request(input);
        self.send_tka_request(request);
    }

    /// Handles a response of the coordinator, or its absence.
    pub fn handle_tka_response(
        &mut self,
        number: u32,
        answer: Result<&[u8], &control::error::ControlError>,
    ) {
        let answer = answer.map_err(ToString::to_string);
        if let Some(request) = self.tka.commands.handle_answered(number) {
            self.request_tka(request);
        }
        if PendingCommands::owns(number) {
            return self.handle_command_response(number, answer);
        }
        let (asking, now) = (self.requester(), self.clock.now);
        let input = SyncInput { tka: self.node.map().tka(), requester: asking, now };
        let (changed, request) =
            self.tka.follower.handle_answer(number, answer, input, control::random());
        if changed {
            self.save_tka();
            self.apply_settings();
        }
        self.send_tka_request(request);
    }

    fn requester(&self) -> Requester {
        Requester { version: CAPABILITY_VERSION, node_key: self.node.key() }
    }

    fn send_tka_request(&mut self, request: Option<SyncRequest>) {
        if let Some(request) = request.and_then(|request| self.tka.commands.send_or_queue(request))
        {
            self.request_tka(request);
        }
        match self.tka.follower.failure() {
            Some(failure) => {
                self.problems.set("lock", format!("tailnet lock: {failure}"));
            }
            None if matches!(self.tka.follower.local_authority(), LocalAuthority::Damaged) => {
                let problem = format!(
                    "tailnet lock: {FILE} in the state folder cannot be read, so no peer is \
                     trusted; log out and join again"
                );
                self.problems.set("lock", problem);
            }
            None => self.problems.clear("lock"),
        }
    }

    fn save_tka(&mut self) {
        let saved = match self.tka.follower.local_authority() {
            LocalAuthority::Trusted(authority) => {
                self.state.save(FILE, &SavedChain::of(authority, &self.tka.control_url))
            }
            _ => self.state.remove(FILE),
        };
        match saved {
            Ok(()) => self.problems.clear("disk of tailnet lock"),
            Err(error) => {
                self.problems.set("disk of tailnet lock", format!("{FILE}: {error}"));
            }
        }
    }

    /// Removes the trusted keys, because this node has left the network.
    pub fn clear_tka(&mut self) {
        self.tka.follower = Follower::new(LocalAuthority::Unknown);
        self.problems.clear("lock");
        self.save_tka();
    }

    /// Switches to another coordinator, for which the present keys do not count.
    pub fn set_tka_coordinator(&mut self, control_url: &str) {
        if self.tka.control_url != control_url {
            control_url.clone_into(&mut self.tka.control_url);
            self.clear_tka();
        }
    }

    /// Whether tailnet lock admits a peer, with a message; `None` if it is off.
    pub fn tka_verdict(&self, peer: &Node) -> Option<(bool, String)> {
        match (self.tka.follower.local_authority(), self.node.map().tka()) {
            (LocalAuthority::Trusted(authority), _) => {
                let refused = rejected_by_tka(self.node.map(), authority);
                Some(match refused.get(&peer.key) {
                    Some(why) => (false, format!("tailnet lock: its key's signature: {why}")),
                    None => (true, "tailnet lock: its key is signed".to_owned()),
                })
            }
            (LocalAuthority::Unknown, None) => None,
            _ => Some((false, "tailnet lock: this node does not have its keys".to_owned())),
        }
    }

    /// The answer to `tailscale lock status` (`ipnstate.TailnetLockStatus`).
    pub fn tka_status(&self) -> Value {
        let node_key = Some(self.node.key()).filter(|key| !key.is_zero());
        let Some(authority) = self.tka.follower.local_authority().authority() else {
            return json!({
                "Enabled": matches!(self.tka.follower.local_authority(), LocalAuthority::Damaged),
                "PublicKey": self.tka.own.public(),
                "NodeKey": node_key,
                "NodeKeySigned": false,
            });
        };
        let own = self.node.map().node().map(key_signature).unwrap_or_default();
        let refused = rejected_by_tka(self.node.map(), authority);
        let shown = |is_refused: bool| -> Vec<Value> {
            let peers = self.node.map().peers();
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
            "NodeKeySigned": authority.check(&self.node.key(), &own).is_ok(),
            "NodeKeySignature": signature_json(&own).ok(),
            "TrustedKeys": authority.keys_json(),
            "VisiblePeers": shown(false),
            "FilteredPeers": shown(true),
            "StateID": authority.state_id(),
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
        "NodeKeySignature": signature_json(&key_signature(peer)).unwrap_or_else(|_| json!({})),
    })
}
