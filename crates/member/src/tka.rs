//! Keys and secrets of tailnet lock, as people write them, for what is asked of a running agent. They
//! are made and read where the person is: no agent has a secret that turns tailnet lock off, until
//! `lock disable` uses it and posts it to the agent.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::tka::{claim, hash_of_secret, read_public};
use zeroize::Zeroizing;

/// What a secret begins with.
const SECRET: &str = "disablement-secret:";

/// A trusted key, for an agent: `tlpub:..`, and its votes behind a question mark.
///
/// # Errors
/// It is none.
pub fn trusted_key(text: &str) -> anyhow::Result<Value> {
    let (key, votes) = text.split_once('?').unwrap_or((text, "1"));
    let votes: u32 = votes.parse().with_context(|| format!("{text}: the votes"))?;
    let key = public_key(key)?;
    Ok(json!({ "Kind": 1, "Votes": votes, "Public": Base64::encode_string(&key) }))
}

/// The public half of a key: `tlpub:..` or `nlpub:..`.
///
/// # Errors
/// It is none.
pub fn public_key(text: &str) -> anyhow::Result<[u8; 32]> {
    read_public(text).map_err(|_| anyhow::anyhow!("{text}: not a key such as tlpub:.."))
}

/// A new secret that turns tailnet lock off, and its hash.
///
/// # Errors
/// There is no randomness.
pub fn new_secret() -> anyhow::Result<(Zeroizing<String>, [u8; 32])> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *secret).context("randomness")?;
    let hash = hash_of_secret(&*secret).context("the secret cannot be hashed")?;
    let mut text = Zeroizing::new(String::from(SECRET));
    for byte in secret.iter() {
        write!(text, "{byte:02X}")?;
    }
    Ok((text, hash))
}

/// Reads a secret.
///
/// # Errors
/// It is none.
pub fn read_secret(text: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let Some(hex) = text.strip_prefix(SECRET).or_else(|| text.strip_prefix("disablement:")) else {
        bail!("a secret begins with {SECRET}");
    };
    let bytes = base16ct::mixed::decode_vec(hex);
    bytes.map(Zeroizing::new).map_err(|_| anyhow::anyhow!("the secret is not hexadecimal"))
}

/// Whose key a signature is of, and by which key that node renews it, which may be none.
///
/// # Errors
/// It is none.
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
        assert_eq!(hash_of_secret(&read_secret(&text).unwrap()), Some(hash));
        assert!(read_secret("x").is_err() && read_secret("disablement-secret:0").is_err());
        let key = format!("tlpub:{}", "07".repeat(32));
        assert_eq!(public_key(&key).unwrap(), [7; 32]);
        assert_eq!(trusted_key(&format!("{key}?3")).unwrap()["Votes"], 3);
        assert!(trusted_key(&format!("{key}?x")).is_err() && trusted_key("nodekey:00").is_err());
    }
}
