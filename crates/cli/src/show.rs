//! `linerate show`: what `wg show` shows, and what was dropped and why.

use std::{
    fmt::Write,
    fs,
    io::IsTerminal,
    time::{Duration, UNIX_EPOCH},
};

use node::server::folders;
use wg::PublicKey;

use crate::client::Client;

pub(crate) fn show(interface: Option<&str>) -> anyhow::Result<()> {
    let names = match interface {
        Some(name) => vec![name.to_owned()],
        None => running(),
    };
    let style = Style { bold: std::io::stdout().is_terminal() };
    let mut texts = Vec::new();
    for name in names {
        let mut client = match Client::connect(&name) {
            Ok(client) => client,
            // Left behind by a process that is gone.
            Err(_) if interface.is_none() => continue,
            Err(error) => return Err(error),
        };
        let state = client.ask("get")?;
        let mut text = describe(&name, &state, style);
        if let Ok(counters) = client.ask("linerate-stats") {
            text += &describe_counters(&counters, style);
        }
        texts.push(text);
    }
    print!("{}", texts.join("\n"));
    Ok(())
}

/// Every interface with a socket.
fn running() -> Vec<String> {
    let entries = folders().filter_map(|folder| fs::read_dir(folder).ok());
    let mut names: Vec<String> = entries
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sock").map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[derive(Clone, Copy)]
struct Style {
    bold: bool,
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

/// One peer's lines that are shown only together.
#[derive(Default)]
struct Peer {
    handshake: u64,
    rx: u64,
    tx: u64,
    allowed_ips: Vec<String>,
}

fn describe(name: &str, state: &str, style: Style) -> String {
    let mut text = format!("{}: {name}\n", style.bold("interface"));
    let mut peer: Option<Peer> = None;
    for (key, value) in state.lines().filter_map(|line| line.split_once('=')) {
        match key {
            "private_key" => {
                if let Ok(key) = wg::PrivateKey::from_hex(value) {
                    style.line(&mut text, "public key", &key.public_key().to_base64());
                    style.line(&mut text, "private key", "(hidden)");
                }
            }
            "listen_port" => style.line(&mut text, "listening port", value),
            "fwmark" => {
                let mark = value.parse::<u32>().unwrap_or_default();
                style.line(&mut text, "fwmark", &format!("{mark:#x}"));
            }
            "public_key" => {
                finish(&mut text, peer.replace(Peer::default()), style);
                let name =
                    PublicKey::from_hex(value).map_or_else(|_| value.into(), |k| k.to_base64());
                let _ = writeln!(text, "\n{}: {name}", style.bold("peer"));
            }
            "preshared_key" if value.contains(|c| c != '0') => {
                style.line(&mut text, "preshared key", "(hidden)");
            }
            "endpoint" => style.line(&mut text, "endpoint", value),
            "persistent_keepalive_interval" if value != "0" => {
                style.line(&mut text, "persistent keepalive", &format!("every {value} s"));
            }
            _ => {
                if let Some(peer) = &mut peer {
                    peer.take(key, value);
                }
            }
        }
    }
    finish(&mut text, peer, style);
    text
}

impl Peer {
    fn take(&mut self, key: &str, value: &str) {
        let number = value.parse().unwrap_or_default();
        match key {
            "last_handshake_time_sec" => self.handshake = number,
            "rx_bytes" => self.rx = number,
            "tx_bytes" => self.tx = number,
            "allowed_ip" => self.allowed_ips.push(value.to_owned()),
            _ => {}
        }
    }
}

fn finish(text: &mut String, peer: Option<Peer>, style: Style) {
    let Some(peer) = peer else { return };
    let allowed =
        if peer.allowed_ips.is_empty() { "(none)".into() } else { peer.allowed_ips.join(", ") };
    style.line(text, "allowed ips", &allowed);
    if peer.handshake != 0 {
        let then = UNIX_EPOCH + Duration::from_secs(peer.handshake);
        let ago = (UNIX_EPOCH + sys::clock::wall()).duration_since(then).unwrap_or_default();
        style.line(text, "latest handshake", &format!("{} ago", duration(ago)));
    }
    if peer.rx + peer.tx != 0 {
        let transfer = format!("{} received, {} sent", bytes(peer.rx), bytes(peer.tx));
        style.line(text, "transfer", &transfer);
    }
}

/// Lines among the counters that count no drops.
const NO_DROPS: [&str; 2] = ["errno", "udp_receive_buffer"];

/// The offloads in use, and of the counters only what is not zero: a healthy
/// interface dropped nothing.
fn describe_counters(counters: &str, style: Style) -> String {
    let mut drops = String::new();
    let mut offloads = String::new();
    let pairs = || counters.lines().filter_map(|line| line.split_once('='));
    let value = |key: &str| pairs().find(|(name, _)| *name == key).map_or("0", |(_, value)| value);
    let mut services = String::new();
    for (name, state) in pairs() {
        if name == "stack" {
            style.line(&mut services, name, state);
        } else if name == "service" {
            let (kind, place) = state.split_once(' ').unwrap_or((state, ""));
            style.line(&mut services, kind, place);
        } else if let Some(offload) = name.strip_prefix("offload_") {
            let text = match value(&format!("demotions_{offload}")) {
                "0" => state.to_owned(),
                demotions => format!("{state}, refused by the kernel {demotions} times"),
            };
            style.line(&mut offloads, offload, &text);
        } else if !name.starts_with("demotions_") && !NO_DROPS.contains(&name) && state != "0" {
            style.line(&mut drops, &name.replace('_', " "), &format!("{state} dropped"));
        }
    }
    let mut text = format!("\n{}:\n{offloads}", style.bold("offloads"));
    if !services.is_empty() {
        text += &format!("\n{}:\n{services}", style.bold("proxy"));
    }
    if !drops.is_empty() {
        text += &format!("\n{}:\n{drops}", style.bold("drops"));
    }
    text
}

fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = seconds;
    let words: Vec<String> = parts
        .iter()
        .filter_map(|(size, unit)| {
            let count = rest / size;
            rest %= size;
            (count > 0).then(|| format!("{count} {unit}"))
        })
        .collect();
    if words.is_empty() { "0 s".into() } else { words.join(" ") }
}

fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.2} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_and_the_rest_reads_as_in_wg_show() {
        let key = "a8".repeat(32);
        let state = format!(
            "private_key={key}\nlisten_port=51820\nfwmark=51820\npublic_key={key}\npreshared_key={key}\n\
             endpoint=192.0.2.1:1\nlast_handshake_time_sec=0\nrx_bytes=2048\ntx_bytes=5\n\
             persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=::/0\nerrno=0\n\n"
        );
        let text = describe("wg0", &state, Style { bold: false });
        assert!(!text.contains(&key[..8]));
        for line in [
            "interface: wg0\n",
            "  fwmark: 0xca6c\n",
            "  preshared key: (hidden)\n",
            "  allowed ips: 10.0.0.0/8, ::/0\n",
            "  transfer: 2.00 KiB received, 5 B sent\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }

    #[test]
    fn a_proxy_tells_its_stack_and_its_services() {
        let counters = "in_forged=0\nstack=namespace\nservice=socks5 127.0.0.1:1080\n\
                        service=forward tcp 127.0.0.1:1 -> 10.0.0.2:2\nerrno=0\n";
        let text = describe_counters(counters, Style { bold: false });
        assert_eq!(
            text,
            "\noffloads:\n\nproxy:\n  stack: namespace\n  socks5: 127.0.0.1:1080\n  \
             forward: tcp 127.0.0.1:1 -> 10.0.0.2:2\n"
        );
    }

    #[test]
    fn times_are_told_in_their_largest_units() {
        let told = [0, 61, 3_600, 90_061].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(told, ["0 s", "1 min 1 s", "1 h", "1 d 1 h 1 min 1 s"]);
    }

    #[test]
    fn offloads_are_told_and_of_drops_only_what_was_dropped() {
        let counters = "in_forged=3\nin_replayed=0\nudp_receive_buffer=8388608\n\
                        offload_tun-tso=on\ndemotions_tun-tso=0\noffload_udp-gso=off\n\
                        demotions_udp-gso=2\nerrno=0\n";
        let text = describe_counters(counters, Style { bold: false });
        assert_eq!(
            text,
            "\noffloads:\n  tun-tso: on\n  udp-gso: off, refused by the kernel 2 times\n\
             \ndrops:\n  in forged: 3 dropped\n"
        );
    }
}
