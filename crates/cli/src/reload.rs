//! Updates a running interface to the keys and peers in its file. Peers that stay keep their
//! sessions, and a network that stays always has a peer.

use std::{collections::HashMap, path::Path};

use anyhow::Context;
use config::uapi::{Change, write_change};
use host::resolve;
use sys::process::harden;
use wg::{
    PublicKey,
    config::{AllowedIpChange, PeerChange},
};

use crate::{
    client::Client,
    interface::{Interface, Peer},
    read_conf,
};

/// # Errors
/// The file is invalid, a name cannot be resolved, or the interface is not running. Then nothing is
/// changed.
pub(crate) fn reload(conf: &Path) -> anyhow::Result<()> {
    // The file and the interface's state have private keys.
    harden().context("core dumps")?;
    let (name, _, conf) = read_conf(conf)?;
    conf.without_proxy()?;
    for warning in &conf.warnings {
        eprintln!("linerate: {warning}");
    }
    let wanted = conf.change(resolve)?;
    let mut client = Client::connect(&name)?;
    let running = Interface::parse(name, &client.ask("get")?);
    client.send("set", &write_change(&difference(wanted, &running)))?;
    Ok(())
}

/// The difference between a file and a running interface. The mark is not changed, as rules and
/// routes depend on it.
fn difference(wanted: Change, running: &Interface) -> Change {
    let Change { listen_port, mut device, .. } = wanted;
    // Port 0 means any, and it has one already.
    let listen_port = listen_port.filter(|port| *port != 0 && Some(*port) != running.listen_port);
    device.private_key = device
        .private_key
        .filter(|key| key.as_ref().map(|key| key.public_key()) != running.public_key);
    device.replace_peers = false;
    let mut others: HashMap<&str, &Peer> =
        running.peers.iter().map(|peer| (&*peer.public_key, peer)).collect();
    let owners = owners(&device.peers);
    for peer in &mut device.peers {
        let running = others.remove(&*peer.public_key.to_base64());
        keep(peer, running, &owners);
    }
    // After the others, which have taken over their networks.
    let gone = others.into_keys().filter_map(|key| PublicKey::from_base64(key).ok());
    device.peers.extend(gone.map(|key| PeerChange { remove: true, ..PeerChange::new(key) }));
    Change { listen_port, fwmark: None, device }
}

/// The peer that each network ends up with: the last one that has it.
fn owners(peers: &[PeerChange]) -> HashMap<String, PublicKey> {
    let nets = peers.iter().flat_map(|peer| {
        peer.allowed_ips.iter().map(|allowed| (allowed.net.to_string(), peer.public_key))
    });
    nets.collect()
}

/// Reduces a peer's change to what differs from the running one.
fn keep(peer: &mut PeerChange, running: Option<&Peer>, owners: &HashMap<String, PublicKey>) {
    let has: &[String] = running.map_or(&[], |running| &running.allowed_ips);
    // Replacing them would leave networks without a peer for a moment.
    peer.replace_allowed_ips = false;
    peer.allowed_ips.retain(|AllowedIpChange { net, .. }| {
        let net = net.to_string();
        owners[&net] == peer.public_key && !has.contains(&net)
    });
    // What another peer gets is moved by adding it there.
    let lost =
        has.iter().filter(|net| !owners.contains_key(*net)).filter_map(|net| net.parse().ok());
    peer.allowed_ips.extend(lost.map(|net| AllowedIpChange { net, remove: true }));
    let Some(running) = running else { return };
    peer.endpoint = peer.endpoint.filter(|endpoint| Some(endpoint.to_string()) != running.endpoint);
    if peer.preshared_key.is_none() && running.has_preshared_key {
        peer.preshared_key = Some(Default::default());
    }
    let keepalive = peer.persistent_keepalive.unwrap_or(0);
    peer.persistent_keepalive =
        (keepalive != running.persistent_keepalive.unwrap_or(0)).then_some(keepalive);
}

#[cfg(test)]
mod tests;
