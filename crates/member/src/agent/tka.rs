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
use mesh::{
    network_map::NetworkMap,
    node_settings::{self, key_signature, rejected_by_tka},
    registration,
    tka_command::{CommandContext, TkaCommand},
    tka_follower::{Follower, LocalAuthority, SyncInput, SyncRequest},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailnet::{
    keys::NodePublic,
    map_messages::Node,
    tka::{Authority, TkaKey, WrappedAuthKey, signature_json, sync_requests::Requester},
    ts2021::CAPABILITY_VERSION,
};
use zeroize::Zeroizing;

use self::pending_commands::PendingCommands;
use super::{
    control, local_api::Reply, problems::Problems, state_folder::StateFolder, this_node::ThisNode,
};

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
    folder: StateFolder,
}

/// The result of a response.
pub(super) struct Update {
    /// The next request to send.
    pub request: Option<SyncRequest>,
    /// Whether the trusted keys changed.
    pub has_changed: bool,
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
    pub(super) fn new(folder: StateFolder, control_url: &str) -> anyhow::Result<Self> {
        let own = folder.tka_key()?;
        let saved: Option<SavedChain> = folder.read(FILE);
        let known = match saved {
            // An unreadable file may belong to any coordinator.
            None if folder.may_exist(FILE) => LocalAuthority::Damaged,
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
            folder,
        })
    }

    /// The trust in peers' signatures.
    pub(super) fn trust(&self) -> node_settings::TkaStatus<'_> {
        match self.follower.local_authority() {
            LocalAuthority::Unknown => node_settings::TkaStatus::Unknown,
            LocalAuthority::Damaged => node_settings::TkaStatus::Damaged,
            LocalAuthority::Trusted(authority) => {
                node_settings::TkaStatus::On { authority, own_key: &self.own_public }
            }
        }
    }

    /// The hash of the last valid update; empty without one.
    pub(super) fn head(&self) -> String {
        let authority = self.follower.local_authority().authority();
        authority.map(|authority| authority.head().to_string()).unwrap_or_default()
    }

    /// The time at which [`Self::sync`] has an effect.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.follower.poll_timeout()
    }

    /// Returns the request for missing updates, if one can be sent now.
    pub(super) fn sync(
        &mut self,
        node: &ThisNode,
        now: Duration,
        problems: &mut Problems,
    ) -> Option<SyncRequest> {
        let input = SyncInput { tka: node.map().tka(), requester: requester(node.key()), now };
        let request = self.follower.poll_request(input);
        self.report(problems);
        request.and_then(|request| self.commands.send_or_queue(request))
    }

    /// Handles a response of the coordinator, or its absence.
    pub(super) fn handle_response(
        &mut self,
        number: u32,
        answer: Result<&[u8], String>,
        node: &ThisNode,
        now: Duration,
        problems: &mut Problems,
    ) -> Update {
        let queued = self.commands.handle_answered(number);
        if PendingCommands::owns(number) {
            let context = command_context(&self.own, &self.follower, node.key());
            let request = self.commands.handle_response(number, answer, context);
            return Update { request: queued.or(request), has_changed: false };
        }
        let input = SyncInput { tka: node.map().tka(), requester: requester(node.key()), now };
        let (has_changed, request) =
            self.follower.handle_answer(number, answer, input, control::random());
        if has_changed {
            self.save(problems);
        }
        self.report(problems);
        // If a queued request is sent now, this one waits.
        let request = request.and_then(|request| self.commands.send_or_queue(request));
        Update { request: queued.or(request), has_changed }
    }

    /// Starts a command of a user. Returns the request to send.
    pub(super) fn begin_command(
        &mut self,
        command: TkaCommand,
        reply: Reply<Value>,
        node_key: NodePublic,
    ) -> Option<SyncRequest> {
        let context = match self.follower.local_authority() {
            LocalAuthority::Damaged => None,
            _ => Some(command_context(&self.own, &self.follower, node_key)),
        };
        self.commands.begin(command, reply, context)
    }

    fn report(&self, problems: &mut Problems) {
        let is_damaged = matches!(self.follower.local_authority(), LocalAuthority::Damaged);
        let damage = || {
            format!(
                "tailnet lock: {FILE} in the state folder cannot be read, so no peer is trusted; \
                 log out and join again"
            )
        };
        let failure = self.follower.failure().map(|failure| format!("tailnet lock: {failure}"));
        problems.update("lock", failure.or_else(|| is_damaged.then(damage)));
    }

    fn save(&self, problems: &mut Problems) {
        let saved = match self.follower.local_authority() {
            LocalAuthority::Trusted(authority) => {
                self.folder.save(FILE, &SavedChain::of(authority, &self.control_url))
            }
            _ => self.folder.remove(FILE),
        };
        let problem = saved.err().map(|error| format!("{FILE}: {error}"));
        problems.update("disk of tailnet lock", problem);
    }

    /// Removes the trusted keys, because this node has left the network.
    pub(super) fn clear(&mut self, problems: &mut Problems) {
        self.follower = Follower::new(LocalAuthority::Unknown);
        problems.clear("lock");
        self.save(problems);
    }

    /// Switches to another coordinator, for which the present keys do not count.
    pub(super) fn set_coordinator(&mut self, control_url: &str, problems: &mut Problems) {
        if self.control_url != control_url {
            control_url.clone_into(&mut self.control_url);
            self.clear(problems);
        }
    }

    pub(super) fn handle_connected(&mut self) {
        self.commands.handle_connected();
        self.follower.handle_connected();
    }

    pub(super) fn handle_disconnected(&mut self) {
        self.commands.handle_disconnected();
        self.follower.handle_disconnected();
    }

    /// Whether a previous signature can be renewed.
    pub(super) fn renews(&self, previous: &[u8]) -> bool {
        self.own.renew_signature(&NodePublic::default(), previous).is_ok()
    }

    /// A login with a signature, if available: from the signature of the previous node key, or from
    /// the credential in an auth key.
    pub(super) fn login(
        &self,
        node_key: NodePublic,
        auth_key: Option<Zeroizing<String>>,
        previous: Option<&[u8]>,
    ) -> registration::Login {
        let renewed =
            previous.and_then(|previous| self.own.renew_signature(&node_key, previous).ok());
        let wrapped = auth_key.as_ref().and_then(|key| WrappedAuthKey::read(key));
        let signature = renewed.or_else(|| Some(wrapped.as_ref()?.sign(&node_key)));
        registration::Login {
            auth_key: match wrapped {
                Some(wrapped) => Some(Zeroizing::new(wrapped.auth_key().to_owned())),
                None => auth_key,
            },
            tka_key: Some(self.own.public()),
            signature: signature.map(|signature| Base64::encode_string(&signature)),
            ..registration::Login::new(node_key)
        }
    }

    /// Whether tailnet lock admits a peer, with a message; `None` if it is off.
    pub(super) fn verdict(&self, map: &NetworkMap, peer: &Node) -> Option<(bool, String)> {
        match (self.follower.local_authority(), map.tka()) {
            (LocalAuthority::Trusted(authority), _) => {
                let refused = rejected_by_tka(map, authority);
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
    pub(super) fn status(&self, node: &ThisNode) -> Value {
        let node_key = Some(node.key()).filter(|key| !key.is_zero());
        let Some(authority) = self.follower.local_authority().authority() else {
            return json!({
                "Enabled": matches!(self.follower.local_authority(), LocalAuthority::Damaged),
                "PublicKey": self.own.public(),
                "NodeKey": node_key,
                "NodeKeySigned": false,
            });
        };
        let own = node.map().node().map(key_signature).unwrap_or_default();
        let refused = rejected_by_tka(node.map(), authority);
        let shown = |is_refused: bool| -> Vec<Value> {
            let peers = node.map().peers();
            peers
                .filter(|peer| refused.contains_key(&peer.key) == is_refused)
                .map(peer_status)
                .collect()
        };
        json!({
            "Enabled": true,
            "Head": authority.head().0,
            "PublicKey": self.own.public(),
            "NodeKey": node_key,
            "NodeKeySigned": authority.check(&node.key(), &own).is_ok(),
            "NodeKeySignature": signature_json(&own).ok(),
            "TrustedKeys": authority.keys_json(),
            "VisiblePeers": shown(false),
            "FilteredPeers": shown(true),
            "StateID": authority.state_id(),
        })
    }
}

fn requester(node_key: NodePublic) -> Requester {
    Requester { version: CAPABILITY_VERSION, node_key }
}

fn command_context<'a>(
    own: &'a TkaKey,
    follower: &'a Follower,
    node_key: NodePublic,
) -> CommandContext<'a> {
    let known = follower.local_authority().authority();
    CommandContext { own, known, requester: requester(node_key) }
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
