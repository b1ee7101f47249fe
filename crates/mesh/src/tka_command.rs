//! The user's tailnet-lock commands, executed with the node's own key
//! (`ipn/ipnlocal/tailnet-lock.go`).
//!
//! ```text
//!   TkaCommand ──► request ──► coordinator ──► answer ──► PendingCommand ──► next request, or done
//! ```
//!
//! Created updates are verified here as by every node, before they are sent to the coordinator.

use std::{collections::BTreeMap, fmt};

use base64ct::{Base64, Encoding as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tailnet::{
    keys::NodePublic,
    tka::{
        Authority, KeyId, NewKey, TkaKey, UpdateHash, VerifyError, WrappedAuthKey, claim,
        first_checkpoint, sign,
        sync_requests::{Requester, SEND_PATH, SendResponse, base64},
    },
};
use zeroize::Zeroizing;

const BEGIN_PATH: &str = "/machine/tka/init/begin";
const FINISH_PATH: &str = "/machine/tka/init/finish";
const DISABLE_PATH: &str = "/machine/tka/disable";
const SIGN_PATH: &str = "/machine/tka/sign";
const AFFECTED_PATH: &str = "/machine/tka/affected-sigs";

/// A command.
#[derive(Clone)]
pub enum TkaCommand {
    /// Turns tailnet lock on with these trusted keys and hashes of disablement secrets.
    Init {
        /// The keys. One is the node's own.
        keys: Vec<NewKey>,
        /// The hashes.
        disablement_hashes: Vec<[u8; 32]>,
    },
    /// Signs a node key.
    Sign {
        /// The node key.
        node: NodePublic,
        /// The key with which the node renews the signature; may be empty.
        wrapping: Vec<u8>,
    },
    /// Changes the trusted keys.
    Modify {
        /// Keys to add.
        add: Vec<NewKey>,
        /// Keys to remove.
        remove: Vec<NewKey>,
    },
    /// Turns tailnet lock off with a secret.
    Disable(Zeroizing<Vec<u8>>),
    /// Shows the valid signatures by a key.
    Affected(KeyId),
    /// Creates an auth key with a credential by a trusted key.
    Wrap {
        /// The auth key.
        auth_key: Zeroizing<String>,
        /// The trusted key.
        by: TkaKey,
    },
    /// Shows the last updates, up to this number.
    Log(usize),
}

/// The context of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandContext<'a> {
    /// The node's own key.
    pub own: &'a TkaKey,
    /// The authority, if tailnet lock is on.
    pub known: Option<&'a Authority>,
    /// Creates the requests.
    pub requester: Requester,
}

/// The next step of a command.
#[derive(Debug)]
pub enum CommandStep {
    /// A request to the coordinator: path, body, and the command that processes the answer.
    Request(&'static str, Vec<u8>, PendingCommand),
    /// The result of the command.
    Done(Value),
}

/// A command that waits for an answer of the coordinator.
#[derive(Clone, Debug)]
pub struct PendingCommand(Waiting);

#[derive(Clone, Debug)]
enum Waiting {
    /// The nodes to sign.
    Nodes,
    /// The coordinator's head, which must be this one.
    Head(UpdateHash),
    /// The signatures by this key.
    Signatures(KeyId),
    /// A confirmation.
    Consent,
}

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TkaCommandError {
    /// The node is not registered.
    LoggedOut,
    /// Tailnet lock is off.
    IsOff,
    /// Tailnet lock is on.
    IsOn,
    /// The node's key is not trusted.
    NotTrusted,
    /// The secret is wrong.
    WrongSecret,
    /// The command is rejected.
    Refused(VerifyError),
    /// The coordinator's answer is unreadable.
    BadAnswer,
    /// The coordinator listed an invalid signature, or one by another key.
    BadSignature,
    /// Another node made an update at the same time.
    Conflict,
}

impl fmt::Display for TkaCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoggedOut => f.write_str("the node is not logged in"),
            Self::IsOff => f.write_str("tailnet lock is not on"),
            Self::IsOn => f.write_str("tailnet lock is already on"),
            // The command `tailscale lock` looks for these words.
            Self::NotTrusted => f.write_str("this node is not trusted by Tailnet Lock"),
            Self::WrongSecret => f.write_str("incorrect disablement secret"),
            Self::Refused(why) => why.fmt(f),
            Self::BadAnswer => f.write_str("the coordinator's answer cannot be read"),
            Self::BadSignature => f.write_str(
                "the coordinator listed a signature that is not valid, or by another key",
            ),
            Self::Conflict => {
                f.write_str("another node changed tailnet lock at the same time: try again")
            }
        }
    }
}

impl std::error::Error for TkaCommandError {}

impl From<VerifyError> for TkaCommandError {
    fn from(why: VerifyError) -> Self {
        Self::Refused(why)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Nodes {
    need_signatures: Option<Vec<Unsigned>>,
}

#[derive(Deserialize)]
struct Unsigned {
    #[serde(rename = "NodeID")]
    id: i64,
    #[serde(rename = "NodePublic")]
    key: NodePublic,
    #[serde(rename = "RotationPubkey", default, deserialize_with = "base64")]
    wrapping: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Affected {
    signatures: Option<Vec<String>>,
}

/// Omits the secrets.
impl fmt::Debug for TkaCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init { .. } => "Init",
            Self::Sign { .. } => "Sign",
            Self::Modify { .. } => "Modify",
            Self::Disable(_) => "Disable",
            Self::Affected(_) => "Affected",
            Self::Wrap { .. } => "Wrap",
            Self::Log(_) => "Log",
        })
    }
}

impl TkaCommand {
    /// Starts the command. `random` must be unpredictable.
    ///
    /// # Errors
    /// The command failed.
    pub fn begin(
        self,
        by: CommandContext<'_>,
        random: &[u8; 32],
    ) -> Result<CommandStep, TkaCommandError> {
        if by.requester.node_key.is_zero() {
            return Err(TkaCommandError::LoggedOut);
        }
        match self {
            Self::Init { .. } if by.known.is_some() => Err(TkaCommandError::IsOn),
            Self::Init { keys, disablement_hashes } => {
                let (one, other) = random.split_at(8);
                let number = |bytes: &[u8]| bytes[..8].try_into().map_or(1, u64::from_le_bytes);
                let numbers = (number(one), number(other));
                let text = first_checkpoint(&keys, &disablement_hashes, numbers, by.own)?;
                let body = json!({ "GenesisAUM": Base64::encode_string(&text) });
                Ok(by.request(BEGIN_PATH, body, Waiting::Nodes))
            }
            Self::Sign { node, wrapping } => {
                let signature = by.trusted()?.sign(by.own, &node, &wrapping)?;
                let body = json!({ "Signature": Base64::encode_string(&signature) });
                Ok(by.request(SIGN_PATH, body, Waiting::Consent))
            }
            Self::Modify { add, remove } => by.modify(&add, &remove),
            Self::Disable(secret) => {
                let known = by.known.ok_or(TkaCommandError::IsOff)?;
                if !known.is_disabled_by(&secret) {
                    return Err(TkaCommandError::WrongSecret);
                }
                let body = json!({
                    "Head": known.head().to_string(),
                    "DisablementSecret": Base64::encode_string(&secret),
                });
                Ok(by.request(DISABLE_PATH, body, Waiting::Consent))
            }
            Self::Affected(key) => {
                by.known.ok_or(TkaCommandError::IsOff)?;
                let body = json!({ "KeyID": Base64::encode_string(&key) });
                Ok(by.request(AFFECTED_PATH, body, Waiting::Signatures(key)))
            }
            Self::Wrap { auth_key, by: signer } => {
                by.known.ok_or(TkaCommandError::IsOff)?;
                let wrapped = WrappedAuthKey::wrap(&auth_key, &signer, random);
                Ok(CommandStep::Done(json!(*wrapped)))
            }
            Self::Log(most) => {
                let log = by.known.ok_or(TkaCommandError::IsOff)?.log(most);
                let shown = log.iter().map(|(hash, change, text)| {
                    json!({
                        "Hash": hash.0, "Change": change, "Raw": Base64::encode_string(text),
                    })
                });
                Ok(CommandStep::Done(shown.collect()))
            }
        }
    }
}

impl CommandContext<'_> {
    fn trusted(&self) -> Result<&Authority, TkaCommandError> {
        let known = self.known.ok_or(TkaCommandError::IsOff)?;
        if known.trusts(&self.own.id()) { Ok(known) } else { Err(TkaCommandError::NotTrusted) }
    }

    fn modify(&self, add: &[NewKey], remove: &[NewKey]) -> Result<CommandStep, TkaCommandError> {
        let known = self.trusted()?;
        let remove = remove.iter().map(NewKey::id).collect::<Result<Vec<_>, _>>();
        let updates = known.edit_keys(self.own, add, &remove.map_err(VerifyError::from)?)?;
        if updates.is_empty() {
            return Ok(CommandStep::Done(Value::Null));
        }
        let mut changed = known.clone();
        changed.inform(&updates)?;
        let request = self.requester.send(known, &updates, true);
        let body = serde_json::to_vec(&request).map_err(|_| TkaCommandError::BadAnswer)?;
        Ok(CommandStep::Request(SEND_PATH, body, PendingCommand(Waiting::Head(changed.head()))))
    }

    fn request(&self, path: &'static str, mut body: Value, waiting: Waiting) -> CommandStep {
        body["Version"] = json!(self.requester.version);
        body["NodeKey"] = json!(self.requester.node_key);
        CommandStep::Request(path, body.to_string().into_bytes(), PendingCommand(waiting))
    }
}

impl PendingCommand {
    /// Processes the coordinator's answer.
    ///
    /// # Errors
    /// The command failed.
    pub fn handle_answer(
        self,
        by: CommandContext<'_>,
        text: &[u8],
    ) -> Result<CommandStep, TkaCommandError> {
        match self.0 {
            Waiting::Consent => Ok(CommandStep::Done(Value::Null)),
            Waiting::Head(head) => {
                let answer: SendResponse = read(text)?;
                match answer.head == head.to_string() {
                    true => Ok(CommandStep::Done(Value::Null)),
                    false => Err(TkaCommandError::Conflict),
                }
            }
            Waiting::Nodes => {
                let nodes: Nodes = read(text)?;
                let mut signatures = BTreeMap::new();
                for Unsigned { id, key, wrapping } in nodes.need_signatures.unwrap_or_default() {
                    if !matches!(wrapping.len(), 0 | 32) {
                        return Err(TkaCommandError::BadAnswer);
                    }
                    let signature = sign(by.own, &key, &wrapping);
                    signatures.insert(id.to_string(), Base64::encode_string(&signature));
                }
                let body = json!({ "Signatures": signatures });
                Ok(by.request(FINISH_PATH, body, Waiting::Consent))
            }
            Waiting::Signatures(key) => {
                let known = by.known.ok_or(TkaCommandError::IsOff)?;
                let signatures = read::<Affected>(text)?.signatures.unwrap_or_default();
                for text in &signatures {
                    let bad = || TkaCommandError::BadSignature;
                    let signature = Base64::decode_vec(text).map_err(|_| bad())?;
                    let claimed = claim(&signature).map_err(|_| bad())?;
                    let is_valid = known.check(&claimed.node, &signature).is_ok();
                    if claimed.signer != key || !is_valid {
                        return Err(bad());
                    }
                }
                Ok(CommandStep::Done(json!(signatures)))
            }
        }
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, TkaCommandError> {
    serde_json::from_slice(text).map_err(|_| TkaCommandError::BadAnswer)
}
