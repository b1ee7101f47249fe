//! Writes a change as the lines of a request.

use std::fmt;

use wg::config::{AllowedIpChange, PeerChange};
use zeroize::Zeroizing;

use super::Change;
use crate::secret_text;

/// The lines between `set=1` and the empty one.
pub fn write_change(change: &Change) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::new());
    secret_text::append(&mut text, 0, |out| device(out, change));
    text
}

fn device(out: &mut dyn fmt::Write, change: &Change) -> fmt::Result {
    match &change.device.private_key {
        Some(Some(key)) => writeln!(out, "private_key={}", *key.to_hex())?,
        Some(None) => writeln!(out, "private_key={}", "0".repeat(64))?,
        None => {}
    }
    line(out, "listen_port", change.listen_port)?;
    line(out, "fwmark", change.fwmark)?;
    flag(out, "replace_peers", change.device.replace_peers)?;
    change.device.peers.iter().try_for_each(|change| peer(out, change))
}

fn peer(out: &mut dyn fmt::Write, change: &PeerChange) -> fmt::Result {
    line(out, "public_key", Some(change.public_key.to_hex()))?;
    flag(out, "remove", change.remove)?;
    flag(out, "update_only", change.update_only)?;
    if let Some(key) = &change.preshared_key {
        writeln!(out, "preshared_key={}", *key.to_hex())?;
    }
    line(out, "endpoint", change.endpoint)?;
    line(out, "persistent_keepalive_interval", change.persistent_keepalive)?;
    flag(out, "replace_allowed_ips", change.replace_allowed_ips)?;
    change.allowed_ips.iter().try_for_each(|AllowedIpChange { net, remove }| {
        let sign = if *remove { "-" } else { "" };
        writeln!(out, "allowed_ip={sign}{net}")
    })
}

fn line(out: &mut dyn fmt::Write, key: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| writeln!(out, "{key}={value}"))
}

fn flag(out: &mut dyn fmt::Write, key: &str, is_set: bool) -> fmt::Result {
    line(out, key, is_set.then_some("true"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{strategies, uapi::Request};

    proptest! {
        #[test]
        fn written_change_reads_back(change in strategies::change()) {
            let request = format!("set=1\n{}\n", *write_change(&change));
            prop_assert_eq!(Request::parse(&request), Ok(Request::Set(change)));
        }
    }
}
