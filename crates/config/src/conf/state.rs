//! The state of a device as a text, without anything else of a file.

use std::fmt;

use wg::config::PeerState;
use zeroize::Zeroizing;

use super::{Conf, ConfError, Interface, Peer, write};
use crate::uapi::DeviceState;

/// Why a text is not the state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateError {
    /// It is no configuration.
    Conf(ConfError),
    /// An endpoint has a host name.
    HostName,
    /// It has more than a state, such as hooks.
    MoreThanState,
}

/// The state in the format of a file.
pub fn write_state(state: &DeviceState) -> Zeroizing<String> {
    write(&Interface::default(), state)
}

/// Reads what [`write_state`] wrote, and accepts nothing that it could not have written.
///
/// # Errors
/// The text is anything else.
pub fn read_state(told: &str) -> Result<DeviceState, StateError> {
    let Conf { interface, peers: told_peers, .. } =
        Conf::parse("the state", told).map_err(StateError::Conf)?;
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
    if *write_state(&state) == told { Ok(state) } else { Err(StateError::MoreThanState) }
}

fn as_state(peer: Peer) -> Result<PeerState, StateError> {
    let endpoint = peer.endpoint.map(|endpoint| endpoint.to_string().parse());
    Ok(PeerState {
        preshared_key: peer.preshared_key.unwrap_or_default(),
        endpoint: endpoint.transpose().map_err(|_| StateError::HostName)?,
        persistent_keepalive: peer.persistent_keepalive.unwrap_or_default(),
        allowed_ips: peer.allowed_ips,
        ..PeerState::new(peer.public_key)
    })
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conf(error) => error.fmt(f),
            Self::HostName => f.write_str("an endpoint has a host name"),
            Self::MoreThanState => f.write_str("there is more than the state of the device"),
        }
    }
}

impl std::error::Error for StateError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_state_is_read_as_it_was_told(state in crate::strategies::device_state()) {
            let told = write_state(&state);
            let read = read_state(&told).unwrap();
            prop_assert_eq!(&*write_state(&read), &*told);
            prop_assert_eq!((read.listen_port, read.fwmark), (state.listen_port, state.fwmark));
            prop_assert_eq!(read.private_key, state.private_key);
            prop_assert_eq!(read.peers.len(), state.peers.len());
        }

        #[test]
        fn nothing_but_a_state_is_read(
            state in crate::strategies::device_state(),
            line in "((Pre|Post)(Up|Down)|DNS|Address|Table|#)? ?=?[ -~]{0,12}\r?\n",
            place in any::<prop::sample::Index>(),
        ) {
            let told = write_state(&state);
            let ends: Vec<_> = told.match_indices('\n').map(|(end, _)| end + 1).collect();
            let (before, behind) = told.split_at(ends[place.index(ends.len())]);
            let more = [before, &line, behind].concat();
            prop_assert!(read_state(&more).is_err());
        }
    }
}
