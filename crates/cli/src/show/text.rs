//! Output for people, in the form of `wg show`.

use std::{
    fmt::Write,
    time::{Duration, UNIX_EPOCH},
};

use config::uapi::{Service, Stats};
use wg::{PresharedKey, config::PeerState};

use crate::{
    interface::Interface,
    units::{bytes, duration},
};

#[derive(Clone, Copy)]
pub(super) struct Style {
    pub bold: bool,
}

impl Style {
    fn bold(self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(self, text: &mut String, key: &str, value: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {}: {value}", self.bold(key));
    }
}

pub(super) fn describe(interface: &Interface, style: Style) -> String {
    let mut text = format!("{}: {}\n", style.bold("interface"), interface.name);
    let mut line = |key: &str, value: &str| style.line(&mut text, key, value);
    if let Some(key) = &interface.public_key {
        line("public key", &key.to_base64());
        line("private key", "(hidden)");
    }
    if let Some(port) = interface.listen_port {
        line("listening port", &port.to_string());
    }
    if let Some(mark) = interface.fwmark {
        line("fwmark", &format!("{mark:#x}"));
    }
    let own = interface.own.as_ref();
    for (key, value) in [
        ("version", own.and_then(|own| own.version.as_deref())),
        ("aead", own.and_then(|own| own.aead.as_deref())),
    ] {
        value.into_iter().for_each(|value| line(key, value));
    }
    own.and_then(sandbox).into_iter().for_each(|text| line("sandbox", &text));
    for peer in &interface.peers {
        describe_peer(&mut text, peer, own.is_some(), style);
    }
    if let Some(own) = own {
        text += &describe_own(own, style);
    }
    text
}

/// Describes the sandbox. `None` if the daemon does not report it.
fn sandbox(own: &Stats) -> Option<String> {
    if let Some(why) = &own.sandbox_off {
        return Some(format!("off ({why})"));
    }
    let parts: Vec<String> =
        own.sandbox.iter().map(|(what, state)| format!("{what} {state}")).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `is_ours`: whether linerate runs the interface, and reports post-quantum secrets.
fn describe_peer(text: &mut String, peer: &PeerState, is_ours: bool, style: Style) {
    let _ = writeln!(text, "\n{}: {}", style.bold("peer"), peer.public_key.to_base64());
    let mut line = |key: &str, value: &str| style.line(text, key, value);
    if peer.preshared_key != PresharedKey::default() {
        line("preshared key", "(hidden)");
    }
    if let Some(endpoint) = &peer.endpoint {
        line("endpoint", &endpoint.to_string());
    }
    if peer.persistent_keepalive != 0 {
        line("persistent keepalive", &format!("every {} s", peer.persistent_keepalive));
    }
    let allowed: Vec<_> = peer.allowed_ips.iter().map(ToString::to_string).collect();
    let allowed = allowed.join(", ");
    line("allowed ips", if allowed.is_empty() { "(none)" } else { &allowed });
    if let Some(then) = peer.last_handshake {
        let then = UNIX_EPOCH + Duration::from_secs(then.as_secs());
        let ago = (UNIX_EPOCH + sys::clock::wall()).duration_since(then).unwrap_or_default();
        line("latest handshake", &format!("{} ago", duration(ago)));
    }
    if (peer.rx_bytes, peer.tx_bytes) != (0, 0) {
        let transfer = format!("{} received, {} sent", bytes(peer.rx_bytes), bytes(peer.tx_bytes));
        line("transfer", &transfer);
    }
    if let Some(mtu) = peer.path_mtu {
        line("path mtu", &format!("{mtu} inside the tunnel"));
    }
    match peer.post_quantum {
        Some(then) => {
            let ago = sys::clock::wall().saturating_sub(then);
            line("post-quantum", &format!("yes, agreed {} ago", duration(ago)));
        }
        None if is_ours && peer.last_handshake.is_some() => line("post-quantum", "no"),
        None => {}
    }
}

/// Describes offloads, services, and drop counters that are not zero.
fn describe_own(own: &Stats, style: Style) -> String {
    let mut text = format!("\n{}:\n", style.bold("offloads"));
    for offload in &own.offloads {
        let mut state = if offload.wanted { "on" } else { "off" }.to_owned();
        if offload.demotions != 0 {
            let _ = write!(state, ", refused by the kernel {} times", offload.demotions);
        }
        style.line(&mut text, &offload.name, &state);
    }
    if let Some(proxy) = &own.proxy {
        let _ = writeln!(text, "\n{}:", style.bold("proxy"));
        style.line(&mut text, "stack", &proxy.stack);
        for Service { kind, place } in &proxy.services {
            style.line(&mut text, kind, place);
        }
    }
    let mut drops = own.losses().into_iter().filter(|(_, count)| *count != 0).peekable();
    if drops.peek().is_some() {
        let _ = writeln!(text, "\n{}:", style.bold("drops"));
        for (reason, count) in drops {
            style.line(&mut text, &reason.replace('_', " "), &format!("{count} dropped"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(state: &str, counters: Option<&str>) -> String {
        let mut interface = Interface::parse("wg0".into(), state);
        counters.into_iter().for_each(|counters| interface.read_stats(counters));
        describe(&interface, Style { bold: false })
    }

    #[test]
    fn keys_are_hidden_and_the_rest_reads_as_in_wg_show() {
        let key = "a8".repeat(32);
        let state = format!(
            "private_key={key}\nlisten_port=51820\nfwmark=51820\npublic_key={key}\npreshared_key={key}\n\
             endpoint=192.0.2.1:1\nlast_handshake_time_sec=0\nrx_bytes=2048\ntx_bytes=5\n\
             persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=::/0\nerrno=0\n\n"
        );
        let base64 = wg::PublicKey::from_hex(&key).unwrap().to_base64();
        let agreed = sys::clock::wall().as_secs() - 720;
        let own = format!("path_mtu={base64} 1380\npost_quantum={base64} {agreed}\n");
        let text = described(&state, Some(&own));
        assert!(!text.contains(&key[..8]));
        for line in [
            "interface: wg0\n",
            "  fwmark: 0xca6c\n",
            "  preshared key: (hidden)\n",
            "  allowed ips: 10.0.0.0/8, ::/0\n",
            "  transfer: 2.00 KiB received, 5 B sent\n",
            "  path mtu: 1380 inside the tunnel\n",
            "  post-quantum: yes, agreed 12 min",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }

    #[test]
    fn session_without_post_quantum_secret_shows_no() {
        let peer = |handshake: u64| {
            format!(
                "public_key={}\nlast_handshake_time_sec={handshake}\nerrno=0\n\n",
                "a8".repeat(32)
            )
        };
        let ours = Some("version=1.2.3\n");
        assert!(described(&peer(1_700_000_000), ours).contains("  post-quantum: no\n"));
        assert!(!described(&peer(0), ours).contains("post-quantum"), "there is no session");
        let of_others = described(&peer(1_700_000_000), None);
        assert!(!of_others.contains("post-quantum"), "other implementations do not report it");
    }

    #[test]
    fn sandbox_is_shown_by_its_parts_or_the_reason_for_its_absence() {
        for (counters, expected_line) in [
            (
                "sandbox=files (landlock): partly\nsandbox=system calls (seccomp): wholly\n",
                "  sandbox: files (landlock) partly, system calls (seccomp) wholly\n",
            ),
            ("sandbox_off=PostUp needs programs\n", "  sandbox: off (PostUp needs programs)\n"),
            ("", ""),
        ] {
            let expected = format!("interface: wg0\n{expected_line}\noffloads:\n");
            assert_eq!(described("", Some(counters)), expected);
        }
    }

    #[test]
    fn a_proxy_is_shown_with_its_stack_and_services() {
        let counters = "in_forged=0\nstack=namespace\nservice=socks5 127.0.0.1:1080\n\
                        service=forward tcp 127.0.0.1:1 -> 10.0.0.2:2\nerrno=0\n";
        assert_eq!(
            described("", Some(counters)),
            "interface: wg0\n\noffloads:\n\nproxy:\n  stack: namespace\n  \
             socks5: 127.0.0.1:1080\n  forward: tcp 127.0.0.1:1 -> 10.0.0.2:2\n"
        );
    }

    #[test]
    fn offloads_aead_code_and_nonzero_drops_are_shown() {
        let counters = "in_forged=3\nin_replayed=0\nudp_receive_buffer=8388608\nversion=1.2.3\n\
                        aead=avx512\noffload_tun-tso=on\ndemotions_tun-tso=0\n\
                        offload_udp-gso=off\ndemotions_udp-gso=2\nerrno=0\n";
        assert_eq!(
            described("", Some(counters)),
            "interface: wg0\n  version: 1.2.3\n  aead: avx512\n\noffloads:\n  tun-tso: on\n  \
             udp-gso: off, refused by the kernel 2 times\n\ndrops:\n  in forged: 3 dropped\n"
        );
    }
}
