//! Keys and secrets of tailnet lock in text form, for requests to a running agent. They are created
//! and parsed on the user's side: no agent has a secret that disables tailnet lock, until `lock
//! disable` sends it.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::tka::{claim, disablement_hash, read_public};
use zeroize::Zeroizing;

/// The prefix of a secret.
const SECRET: &str = "disablement-secret:";

/// Parses a trusted key: `tlpub:..`, optionally with a question mark and its votes.
///
/// # Errors
/// It is invalid.
pub fn trusted_key(text: &str) -> anyhow::Result<Value> {
    let (key, votes) = text.split_once('?').unwrap_or((text, "1"));
    let votes: u32 = votes.parse().with_context(|| format!("{text}: the votes"))?;
    let key = public_key(key)?;
    Ok(json!({ "Kind": 1, "Votes": votes, "Public": Base64::encode_string(&key) }))
}

/// Parses the public half of a key: `tlpub:..` or `nlpub:..`.
///
/// # Errors
/// It is invalid.
pub fn public_key(text: &str) -> anyhow::Result<[u8; 32]> {
    read_public(text).map_err(|_| anyhow::anyhow!("{text}: not a key such as tlpub:.."))
}

/// Creates a secret that disables tailnet lock, and its hash.
///
/// # Errors
/// Randomness is not available.
pub fn new_secret() -> anyhow::Result<(Zeroizing<String>, [u8; 32])> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *secret).context("randomness")?;
    let hash = disablement_hash(&*secret).context("the secret cannot be hashed")?;
    let mut text = Zeroizing::new(String::from(SECRET));
    for byte in secret.iter() {
        write!(text, "{byte:02X}")?;
    }
    Ok((text, hash))
}

/// Parses a secret.
///
/// # Errors
/// It is invalid.
pub fn read_secret(text: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let Some(hex) = text.strip_prefix(SECRET).or_else(|| text.strip_prefix("disablement:")) else {
        bail!("a secret begins with {SECRET}");
    };
    let bytes = base16ct::mixed::decode_vec(hex);
    bytes.map(Zeroizing::new).map_err(|_| anyhow::anyhow!("the secret is not hexadecimal"))
}

/// The node key of a signature, and the key that may renew it, which may be empty.
///
/// # Errors
/// The signature is invalid.
pub fn signed_node(signature: &[u8]) -> anyhow::Result<(String, Vec<u8>)> {
    let claimed = claim(signature).context("a signature")?;
    Ok((claimed.node.to_string(), claimed.wrapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_keys_round_trip_in_tailscales_format() {
        let (text, hash) = new_secret().unwrap();
        assert_eq!(disablement_hash(&read_secret(&text).unwrap()), Some(hash));
        assert!(read_secret("x").is_err() && read_secret("disablement-secret:0").is_err());
        let key = format!("tlpub:{}", "07".repeat(32));
        assert_eq!(public_key(&key).unwrap(), [7; 32]);
        assert_eq!(trusted_key(&format!("{key}?3")).unwrap()["Votes"], 3);
        assert!(trusted_key(&format!("{key}?x")).is_err() && trusted_key("nodekey:00").is_err());
    }
}
