//! What SaveConfig writes: the device's state from the peer, and everything else from the file as
//! it was read at the start.
//!
//! ```text
//!   peer: DeviceState -- text --> guardian: read --> DeviceState ---.
//!                                   the file's Interface ------------ write --> file
//! ```

use std::path::Path;

use anyhow::{Context, ensure};
use config::{
    conf::{self, Conf, Interface, Peer},
    uapi::DeviceState,
};
use sys::whole_file;
use wg::config::PeerState;
use zeroize::Zeroizing;

/// The state in the format of a file.
pub(crate) fn text(state: &DeviceState) -> Zeroizing<String> {
    conf::write(&Interface::default(), state)
}

/// Reads what [`text`] wrote, and accepts nothing that it could not have written.
///
/// # Errors
/// The text is anything else.
pub(crate) fn read(told: &str) -> anyhow::Result<DeviceState> {
    let Conf { interface, peers: told_peers, .. } =
        Conf::parse("the state sent by the peer", told)?;
    // Allocated once: a vector that grows would leave keys behind.
    let mut peers = Vec::with_capacity(told_peers.len());
    for peer in told_peers {
        peers.push(as_state(peer)?);
    }
    let state = DeviceState {
        private_key: interface.private_key,
        listen_port: interface.listen_port.unwrap_or_default(),
        fwmark: interface.fwmark.unwrap_or_default(),
        peers,
    };
    // A state has exactly one text, without hooks, names and other settings of the file.
    ensure!(*text(&state) == told, "the peer sent more than the state of the device");
    Ok(state)
}

fn as_state(peer: Peer) -> anyhow::Result<PeerState> {
    let endpoint = peer.endpoint.map(|endpoint| endpoint.to_string().parse());
    Ok(PeerState {
        preshared_key: peer.preshared_key.unwrap_or_default(),
        endpoint: endpoint.transpose().context("the peer sent an endpoint with a host name")?,
        persistent_keepalive: peer.persistent_keepalive.unwrap_or_default(),
        allowed_ips: peer.allowed_ips,
        ..PeerState::new(peer.public_key)
    })
}

/// Writes the state into the file.
///
/// # Errors
/// The file could not be written; it is unchanged.
pub(crate) fn write(path: &Path, interface: &Interface, state: &DeviceState) -> anyhow::Result<()> {
    whole_file::replace(path, &conf::write(interface, state))
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_state_is_read_as_it_was_told(state in config::strategies::device_state()) {
            let told = text(&state);
            let read = read(&told).unwrap();
            prop_assert_eq!(&*text(&read), &*told);
            prop_assert_eq!((read.listen_port, read.fwmark), (state.listen_port, state.fwmark));
            prop_assert_eq!(read.private_key, state.private_key);
            prop_assert_eq!(read.peers.len(), state.peers.len());
        }

        #[test]
        fn nothing_but_a_state_is_read(
            state in config::strategies::device_state(),
            line in "((Pre|Post)(Up|Down)|DNS|Address|Table|#)? ?=?[ -~]{0,12}\r?\n",
            place in any::<prop::sample::Index>(),
        ) {
            let told = text(&state);
            let ends: Vec<_> = told.match_indices('\n').map(|(end, _)| end + 1).collect();
            let (before, behind) = told.split_at(ends[place.index(ends.len())]);
            let more = [before, &line, behind].concat();
            prop_assert!(read(&more).is_err());
        }
    }
}
