//! The reply to `get=1`, written and parsed.

use std::{fmt, time::Duration};

use ipnet::IpNet;
use wg::{PresharedKey, PrivateKey, PublicKey, config::PeerState};

use super::DeviceState;
use crate::secret_text;

/// Length in bytes of the longest line of [`write_errno`].
const ERRNO_LINE_MAX: usize = "errno=-2147483648\n\n".len();

/// Appends the state, with keys in wireguard-go's order.
///
/// The text contains keys, so `out` should be an empty string in a `Zeroizing`. It grows once, before
/// the first key, with room for [`write_errno`].
pub fn write_state(out: &mut String, state: &DeviceState) {
    secret_text::append(out, ERRNO_LINE_MAX, |out| device(out, state));
}

/// Appends the end of a reply; 0 means success.
pub fn write_errno(out: &mut String, errno: i32) {
    out.push_str(&format!("errno={errno}\n\n"));
}

fn device(out: &mut dyn fmt::Write, state: &DeviceState) -> fmt::Result {
    if let Some(key) = &state.private_key {
        writeln!(out, "private_key={}", *key.to_hex())?;
    }
    if state.listen_port != 0 {
        writeln!(out, "listen_port={}", state.listen_port)?;
    }
    if state.fwmark != 0 {
        writeln!(out, "fwmark={}", state.fwmark)?;
    }
    state.peers.iter().try_for_each(|state| peer(out, state))
}

fn peer(out: &mut dyn fmt::Write, state: &PeerState) -> fmt::Result {
    writeln!(out, "public_key={}", state.public_key.to_hex())?;
    writeln!(out, "preshared_key={}", *state.preshared_key.to_hex())?;
    writeln!(out, "protocol_version=1")?;
    if let Some(endpoint) = state.endpoint {
        writeln!(out, "endpoint={endpoint}")?;
    }
    let handshake = state.last_handshake.unwrap_or_default();
    writeln!(out, "last_handshake_time_sec={}", handshake.as_secs())?;
    writeln!(out, "last_handshake_time_nsec={}", handshake.subsec_nanos())?;
    writeln!(out, "tx_bytes={}", state.tx_bytes)?;
    writeln!(out, "rx_bytes={}", state.rx_bytes)?;
    writeln!(out, "persistent_keepalive_interval={}", state.persistent_keepalive)?;
    state.allowed_ips.iter().try_for_each(|net| writeln!(out, "allowed_ip={net}"))
}

/// Parses the reply of any implementation. Skips invalid lines, and all lines of a peer with an invalid
/// key.
pub fn parse_state(text: &str) -> DeviceState {
    let mut state = DeviceState::default();
    let mut of_device = true;
    let mut peer: Option<PeerState> = None;
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        if key == "public_key" {
            state.peers.extend(peer.take());
            peer = PublicKey::from_hex(value).ok().map(PeerState::new);
            of_device = false;
        } else if of_device {
            match key {
                "private_key" => state.private_key = PrivateKey::from_hex(value).ok(),
                "listen_port" => state.listen_port = value.parse().unwrap_or_default(),
                "fwmark" => state.fwmark = value.parse().unwrap_or_default(),
                _ => {}
            }
        } else if let Some(peer) = &mut peer {
            take(peer, key, value);
        }
    }
    state.peers.extend(peer);
    for peer in &mut state.peers {
        peer.last_handshake = peer.last_handshake.filter(|time| !time.is_zero());
    }
    state
}

fn take(peer: &mut PeerState, key: &str, value: &str) {
    let number = || value.parse::<u64>().unwrap_or_default();
    let handshake = peer.last_handshake.unwrap_or_default();
    match key {
        "preshared_key" => {
            peer.preshared_key = PresharedKey::from_hex(value).unwrap_or_default();
        }
        "endpoint" => peer.endpoint = value.parse().ok(),
        "persistent_keepalive_interval" => {
            peer.persistent_keepalive = value.parse().unwrap_or_default();
        }
        "last_handshake_time_sec" => {
            let nanos = handshake.subsec_nanos();
            peer.last_handshake = Some(Duration::new(number(), nanos));
        }
        "last_handshake_time_nsec" => {
            let nanos = value.parse::<u32>().ok().filter(|nanos| *nanos < 1_000_000_000);
            peer.last_handshake = Some(Duration::new(handshake.as_secs(), nanos.unwrap_or(0)));
        }
        "rx_bytes" => peer.rx_bytes = number(),
        "tx_bytes" => peer.tx_bytes = number(),
        "allowed_ip" => peer.allowed_ips.extend(value.parse::<IpNet>().ok()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use wg::{PrivateKey, PublicKey};

    use super::*;

    fn written(state: &DeviceState) -> String {
        let mut out = String::new();
        write_state(&mut out, state);
        write_errno(&mut out, 0);
        out
    }

    #[test]
    fn empty_device_has_only_errno() {
        assert_eq!(written(&DeviceState::default()), "errno=0\n\n");
    }

    #[test]
    fn keys_are_written_in_the_order_of_wireguard_go() {
        let bare = PeerState::new(PublicKey::from([0xab; 32]));
        let full = PeerState {
            endpoint: Some("[fe80::1%3]:51820".parse().unwrap()),
            last_handshake: Some(Duration::new(1_700_000_000, 5)),
            rx_bytes: 7,
            tx_bytes: u64::MAX,
            persistent_keepalive: 25,
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()],
            ..bare.clone()
        };
        let state = DeviceState {
            private_key: Some(PrivateKey::from_bytes(&[0x40; 32])),
            listen_port: 51820,
            fwmark: 0xca6c,
            peers: vec![bare, full],
        };
        let private = "40".repeat(32);
        let public = "ab".repeat(32);
        let none = "00".repeat(32);
        assert_eq!(
            written(&state),
            format!(
                "private_key={private}\nlisten_port=51820\nfwmark=51820\n\
                 public_key={public}\npreshared_key={none}\nprotocol_version=1\n\
                 last_handshake_time_sec=0\nlast_handshake_time_nsec=0\ntx_bytes=0\nrx_bytes=0\n\
                 persistent_keepalive_interval=0\n\
                 public_key={public}\npreshared_key={none}\nprotocol_version=1\n\
                 endpoint=[fe80::1%3]:51820\n\
                 last_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\n\
                 tx_bytes=18446744073709551615\nrx_bytes=7\npersistent_keepalive_interval=25\n\
                 allowed_ip=10.0.0.0/8\nallowed_ip=::/0\nerrno=0\n\n"
            )
        );
    }

    #[test]
    fn invalid_lines_and_peers_with_invalid_keys_are_skipped() {
        let key = "ab".repeat(32);
        let text = format!(
            "private_key=x\nlisten_port=7\nfuture=1\npublic_key=nobody\nrx_bytes=9\n\
             public_key={key}\nendpoint=[fe80::1%eth0]:1\nlast_handshake_time_nsec=9999999999\n\
             listen_port=8\nrx_bytes=x\ntx_bytes=5\nallowed_ip=here\nerrno=0\n\n"
        );
        let peer = PeerState { tx_bytes: 5, ..PeerState::new(PublicKey::from([0xab; 32])) };
        let state = DeviceState { listen_port: 7, peers: vec![peer], ..DeviceState::default() };
        assert_eq!(parse_state(&text), state);
    }

    proptest! {
        #[test]
        fn written_state_reads_back(mut state in crate::strategies::device_state()) {
            for peer in &mut state.peers {
                // Statistics contain this value.
                peer.path_mtu = None;
                peer.last_handshake = peer.last_handshake.filter(|time| !time.is_zero());
            }
            prop_assert_eq!(parse_state(&written(&state)), state);
        }

        #[test]
        fn errno_fits_into_the_reserved_room(state in crate::strategies::device_state()) {
            let mut out = String::new();
            write_state(&mut out, &state);
            let before = (out.as_ptr(), out.capacity());
            write_errno(&mut out, i32::MIN);
            prop_assert_eq!((out.as_ptr(), out.capacity()), before);
        }
    }
}
