//! The metrics of a node as text.

use std::fmt::Display;

use engine::HistogramSnapshot;
use sys::prometheus::MetricsText;
use wg::{DropReason, config::PeerState};

use node::Node;

/// All counters of a node.
pub(super) fn write(node: &Node) -> String {
    let mut text = Text::new(&node.info().name);
    text.build(env!("CARGO_PKG_VERSION"), &crypto::aead::variant());
    text.drops(DropReason::ALL.iter().map(|&reason| (reason.name(), node.drops(reason))));
    let socket = node.socket();
    text.single("socket_overflow_total", "counter", SOCKET_OVERFLOW, socket.overflow);
    text.single("socket_truncated_total", "counter", SOCKET_TRUNCATED, socket.truncated);
    text.single("socket_receive_buffer_bytes", "gauge", SOCKET_BUFFER, socket.receive_buffer);
    let probing = node.probing_stats();
    text.single("chance_sockets_total", "counter", CHANCE_SOCKETS, probing.sockets);
    text.single("chance_met_total", "counter", CHANCE_MET, probing.connected);
    text.single("chance_calls_total", "counter", CHANCE_CALLS, probing.probes);
    let offloads = node.offloads().all();
    let wanted = offloads.map(|(name, switch)| (name, u64::from(switch.is_enabled())));
    text.labelled("offload_wanted", "gauge", OFFLOAD_WANTED, "offload", wanted);
    let demotions = offloads.map(|(name, switch)| (name, switch.demotions()));
    text.labelled("offload_demotions_total", "counter", OFFLOAD_DEMOTIONS, "offload", demotions);
    let load = node.load();
    text.histogram("outbound_batch_packets", OUTBOUND, &load.outbound.snapshot(), 1.0);
    text.histogram("inbound_batch_packets", INBOUND, &load.inbound.snapshot(), 1.0);
    text.histogram("queue_seconds", QUEUE, &load.queued.snapshot(), 1e6);
    text.handshakes(node.handshakes().answered(), node.handshakes().micros());
    text.peers(&node.state().peers);
    text.0.into_string()
}

const SOCKET_OVERFLOW: &str =
    "Datagrams dropped because the receive buffer of the UDP socket was full.";
const SOCKET_TRUNCATED: &str =
    "Datagrams dropped because they were longer than any WireGuard datagram.";
const SOCKET_BUFFER: &str = "Size of the receive buffer; 0 without a socket.";
const CHANCE_SOCKETS: &str = "Sockets opened for birthday probing of peers in a tailnet.";
const CHANCE_MET: &str = "Birthday probing sockets that received a peer's probe.";
const CHANCE_CALLS: &str = "Ports probed to find a peer's birthday probing socket.";
const OFFLOAD_WANTED: &str = "Whether an offload of the kernel is enabled.";
const OFFLOAD_DEMOTIONS: &str =
    "Number of times that the kernel refused an offload and the plain path was used.";
const OUTBOUND: &str = "Datagrams encrypted and sent together.";
const INBOUND: &str = "Data messages received and decrypted together.";
const QUEUE: &str = "Time that the oldest packet into the tunnel waited in the queue, by rounds.";
const HANDSHAKES: &str = "Time from a sent initiation to its response.";

const PATH_MTU: &str =
    "Longest packet inside the tunnel that arrives at a peer; 0 while it is unknown.";

const POST_QUANTUM: &str = "Time since 1970 at which the post-quantum secret of a peer's session was \
agreed on; 0 without such a secret.";

struct Text(MetricsText);

impl Text {
    fn new(interface: &str) -> Self {
        Self(MetricsText::new("linerate_", &[("interface", interface)]))
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.0.head(name, kind, help);
        self.0.sample(name, &[], value);
    }

    fn labelled<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.0.head(name, kind, help);
        for (of, value) in values {
            self.0.sample(name, &[(label, of)], value);
        }
    }

    fn build(&mut self, version: &str, aead: &impl Display) {
        self.0.head("info", "gauge", "Version, and implementation of the encryption.");
        self.0.sample("info", &[("version", version), ("aead", &aead.to_string())], 1);
    }

    fn drops<'a>(&mut self, drops: impl Iterator<Item = (&'a str, u64)>) {
        let help = "Dropped packets, by reason.";
        self.labelled("drops_total", "counter", help, "reason", drops);
    }

    /// Writes a histogram. Values are divided by `unit`.
    fn histogram(&mut self, name: &str, help: &str, counted: &HistogramSnapshot, unit: f64) {
        self.0.head(name, "histogram", help);
        let buckets = counted.buckets.iter().map(|(bound, count)| (*bound as f64 / unit, *count));
        self.0.histogram(name, &[], buckets, (counted.count, counted.sum as f64 / unit));
    }

    fn handshakes(&mut self, answered: u64, micros: u64) {
        self.0.head("handshake_seconds", "summary", HANDSHAKES);
        self.0.sample("handshake_seconds_sum", &[], micros as f64 / 1e6);
        self.0.sample("handshake_seconds_count", &[], answered);
    }

    fn peers(&mut self, peers: &[PeerState]) {
        let keys: Vec<String> = peers.iter().map(|peer| peer.public_key.to_base64()).collect();
        let names = || keys.iter().map(String::as_str);
        let received = names().zip(peers.iter().map(|peer| peer.rx_bytes));
        let help = "Bytes received from a peer, as wg(8) counts them.";
        self.labelled("peer_receive_bytes_total", "counter", help, "public_key", received);
        let sent = names().zip(peers.iter().map(|peer| peer.tx_bytes));
        let help = "Bytes sent to a peer, as wg(8) counts them.";
        self.labelled("peer_transmit_bytes_total", "counter", help, "public_key", sent);
        let handshake = |peer: &PeerState| peer.last_handshake.unwrap_or_default();
        let handshakes = names().zip(peers.iter().map(|peer| handshake(peer).as_secs()));
        let help = "Time of a peer's last handshake since 1970; 0 without a handshake.";
        self.labelled(
            "peer_last_handshake_timestamp_seconds",
            "gauge",
            help,
            "public_key",
            handshakes,
        );
        let mtu = |peer: &PeerState| u64::from(peer.path_mtu.unwrap_or_default());
        let mtus = names().zip(peers.iter().map(mtu));
        self.labelled("peer_path_mtu_bytes", "gauge", PATH_MTU, "public_key", mtus);
        let agreed = |peer: &PeerState| peer.post_quantum.unwrap_or_default().as_secs();
        let agreed = names().zip(peers.iter().map(agreed));
        let name = "peer_post_quantum_timestamp_seconds";
        self.labelled(name, "gauge", POST_QUANTUM, "public_key", agreed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_escaped_labels() {
        let mut text = Text::new("w\"g\\0");
        text.drops([("in_forged", 3), ("in_replayed", u64::MAX)].into_iter());
        assert_eq!(
            text.0.as_str(),
            "# HELP linerate_drops_total Dropped packets, by reason.\n\
             # TYPE linerate_drops_total counter\n\
             linerate_drops_total{interface=\"w\\\"g\\\\0\",reason=\"in_forged\"} 3\n\
             linerate_drops_total{interface=\"w\\\"g\\\\0\",reason=\"in_replayed\"} \
             18446744073709551615\n"
        );
    }

    #[test]
    fn histogram_is_cumulative_and_in_its_unit() {
        let mut text = Text::new("wg0");
        let counted =
            HistogramSnapshot { buckets: vec![(10, 1), (5_000, 3)], count: 4, sum: 2_000_500 };
        text.histogram("queue_seconds", "h", &counted, 1e6);
        let samples: Vec<&str> = text.0.as_str().lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                "linerate_queue_seconds_bucket{interface=\"wg0\",le=\"0.00001\"} 1",
                "linerate_queue_seconds_bucket{interface=\"wg0\",le=\"0.005\"} 3",
                "linerate_queue_seconds_bucket{interface=\"wg0\",le=\"+Inf\"} 4",
                "linerate_queue_seconds_sum{interface=\"wg0\"} 2.0005",
                "linerate_queue_seconds_count{interface=\"wg0\"} 4",
            ]
        );
    }

    #[test]
    fn each_peer_has_the_time_of_its_post_quantum_secret() {
        let peer = |key, post_quantum| PeerState {
            post_quantum,
            ..PeerState::new(wg::PublicKey::from([key; 32]))
        };
        let mut text = Text::new("wg0");
        text.peers(&[peer(1, Some(std::time::Duration::from_millis(1_700))), peer(2, None)]);
        let values: Vec<&str> = text
            .0
            .as_str()
            .lines()
            .filter(|line| line.starts_with("linerate_peer_post_quantum_timestamp_seconds{"))
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(values, ["1", "0"]);
    }

    #[test]
    fn each_peer_has_its_path_mtu_or_0_while_it_is_unknown() {
        let peer = |key, path_mtu| PeerState {
            path_mtu,
            ..PeerState::new(wg::PublicKey::from([key; 32]))
        };
        let mut text = Text::new("wg0");
        text.peers(&[peer(1, Some(1230)), peer(2, None)]);
        let lines: Vec<&str> =
            text.0.as_str().lines().filter(|line| line.contains("path_mtu")).collect();
        let [_, kind, first, second] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(*kind, "# TYPE linerate_peer_path_mtu_bytes gauge");
        for (line, key, value) in [(first, 1, "1230"), (second, 2, "0")] {
            let key = wg::PublicKey::from([key; 32]).to_base64();
            let labels = format!("interface=\"wg0\",public_key=\"{key}\"");
            assert_eq!(**line, format!("linerate_peer_path_mtu_bytes{{{labels}}} {value}"));
        }
    }
}
