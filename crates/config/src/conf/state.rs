//! The state of a device in the format of a file, without other settings.

use std::fmt;

use wg::config::PeerState;
use zeroize::Zeroizing;

use super::{Conf, ConfError, Interface, Peer, write};
use crate::uapi::DeviceState;

/// An invalid state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateError {
    /// The text is not a configuration.
    Conf(ConfError),
    /// An endpoint has a host name.
    HostName,
    /// The text has other settings, such as hooks.
    MoreThanState,
}

/// Writes the state in the format of a file.
pub fn write_state(state: &DeviceState) -> Zeroizing<String> {
    write(&Interface::default(), state)
}

/// Parses the output of [`write_state`], and no other text.
///
/// # Errors
/// [`write_state`] cannot have written the text.
pub fn read_state(text: &str) -> Result<DeviceState, StateError> {
    let Conf { interface, peers: conf_peers, .. } =
        Conf::parse("the state", text).map_err(StateError::Conf)?;
    // Allocated once, because a vector that grows leaves copies of keys behind.
    let mut peers = Vec::with_capacity(conf_peers.len());
    for peer in conf_peers {
        peers.push(as_state(peer)?);
    }
    let state = DeviceState {
        private_key: interface.private_key,
        listen_port: interface.listen_port.unwrap_or_default(),
        fwmark: interface.fwmark.unwrap_or_default(),
        peers,
    };
    // Each state has exactly one text, without hooks, names and other settings of a file.
    if *write_state(&state) == text { Ok(state) } else { Err(StateError::MoreThanState) }
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
        fn written_state_reads_back(state in crate::strategies::device_state()) {
            let text = write_state(&state);
            let read = read_state(&text).unwrap();
            prop_assert_eq!(&*write_state(&read), &*text);
            prop_assert_eq!((read.listen_port, read.fwmark), (state.listen_port, state.fwmark));
            prop_assert_eq!(read.private_key, state.private_key);
            prop_assert_eq!(read.peers.len(), state.peers.len());
        }

        #[test]
        fn text_with_other_settings_is_refused(
            state in crate::strategies::device_state(),
            line in "((Pre|Post)(Up|Down)|DNS|Address|Table|#)? ?=?[ -~]{0,12}\r?\n",
            place in any::<prop::sample::Index>(),
        ) {
            let text = write_state(&state);
            let ends: Vec<_> = text.match_indices('\n').map(|(end, _)| end + 1).collect();
            let (before, behind) = text.split_at(ends[place.index(ends.len())]);
            let more = [before, &line, behind].concat();
            prop_assert!(read_state(&more).is_err());
        }
    }
}
