//! The measures, their units, and the bars compared with Tailscale's wireguard-go.

/// One figure of a turn.
#[derive(Debug)]
pub struct Measure {
    /// Name in JSON.
    pub key: &'static str,
    /// Title in tables. The title of a part of the figure above begins with two spaces, and with
    /// four if it is only in JSON and on the page.
    pub title: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Significant digits behind the point.
    pub digits: usize,
    /// The required ratio to the peer, if any.
    pub bar: Option<Bar>,
}

/// A requirement for a ratio.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
}

impl Bar {
    /// Whether a ratio meets the bar.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

const fn measure(
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    digits: usize,
    bar: Option<Bar>,
) -> Measure {
    Measure { key, title, unit, digits, bar }
}

const fn least(ratio: f64) -> Option<Bar> {
    Some(Bar::AtLeast(ratio))
}

const fn most(ratio: f64) -> Option<Bar> {
    Some(Bar::AtMost(ratio))
}

/// The measures, in the order of a turn.
macro_rules! measures {
    ($($name:ident = $key:literal, $title:literal, $unit:literal, $digits:literal, $bar:expr;)*) => {
        $(#[doc = $title] pub static $name: Measure = measure($key, $title, $unit, $digits, $bar);)*

        /// All measures.
        pub static ALL: &[&Measure] = &[$(&$name),*];
    };
}

measures! {
    TCP_FORTH = "tcp_forth", "TCP, 1 stream, forth", "Gbit/s", 2, least(1.3);
    CPU = "cpu_per_gb", "  CPU of both daemons", "s/GB", 2, most(0.7);
    WAITS = "switches_voluntary_per_gb", "  context switches of both, voluntary", "k/GB", 1, None;
    PREEMPTED = "switches_involuntary_per_gb", "  context switches of both, involuntary", "k/GB", 1, None;
    MEMORY_TCP = "memory_tcp", "  peak private memory of both, TCP only", "MB", 1, most(0.4);
    MEMORY_TCP_AFTER = "memory_tcp_after", "  private memory of both after it", "MB", 1, None;
    MEMORY_TCP_PSS = "memory_tcp_pss", "    peak with mapped file pages (PSS)", "MB", 1, None;
    TCP_BACK = "tcp_back", "TCP, 1 stream, back", "Gbit/s", 2, least(1.3);
    TCP_4 = "tcp_4", "TCP, 4 streams", "Gbit/s", 2, least(1.3);
    TCP_32 = "tcp_32", "TCP, 32 streams", "Gbit/s", 2, None;
    TCP_BOTH = "tcp_both", "TCP, both ways at once, sum", "Gbit/s", 2, least(1.3);
    IDLE_P50 = "ping_idle_p50", "ping, idle, p50", "ms", 3, most(0.8);
    IDLE_P99 = "ping_idle_p99", "ping, idle, p99", "ms", 3, None;
    IDLE_P999 = "ping_idle_p999", "ping, idle, p99.9", "ms", 3, None;
    BUSY_P50 = "ping_busy_p50", "ping during full TCP, p50", "ms", 2, None;
    BUSY_P99 = "ping_busy_p99", "ping during full TCP, p99", "ms", 2, most(0.35);
    BUSY_P999 = "ping_busy_p999", "ping during full TCP, p99.9", "ms", 2, None;
    BUSY_LOST = "ping_busy_lost", "  pings lost", "%", 2, None;
    BUSY_TCP = "ping_busy_tcp", "  TCP during that ping", "Gbit/s", 2, None;
    QUIC_DOWN = "quic_down", "QUIC without its AEAD, down", "Gbit/s", 2, least(1.7);
    QUIC_UP = "quic_up", "QUIC without its AEAD, up", "Gbit/s", 2, least(1.7);
    QUIC_OWN = "quic_own", "    dropped by QUIC's own sockets", "packets", 0, None;
    QUIC_SOCKET = "quic_socket", "    dropped by the outer sockets", "packets", 0, None;
    QUIC_RING = "quic_ring", "    dropped by the TUN rings", "packets", 0, None;
    UDP_64 = "udp_64", "UDP 64 B flood, carried", "kpps", 0, least(6.0);
    UDP_64_SENT = "udp_64_sent", "  offered by the sender", "kpps", 0, None;
    UDP_64_OWN = "udp_64_own", "    dropped by the sender's own socket", "kpps", 0, None;
    UDP_64_RING = "udp_64_ring", "  dropped by the sender's TUN ring", "kpps", 0, None;
    UDP_64_SOCKET = "udp_64_socket", "  dropped by the far outer socket", "k/s", 0, None;
    UDP_64_CPU = "udp_64_cpu", "    CPU of both daemons for a packet", "us", 2, None;
    UDP_64_WAITS = "udp_64_voluntary", "    context switches of both, voluntary", "k/s", 1, None;
    UDP_64_PREEMPTED = "udp_64_involuntary", "    context switches of both, involuntary", "k/s", 1, None;
    UDP_200 = "udp_200", "UDP 200 B flood, carried", "kpps", 0, None;
    UDP_200_SENT = "udp_200_sent", "  offered by the sender", "kpps", 0, None;
    UDP_200_OWN = "udp_200_own", "    dropped by the sender's own socket", "kpps", 0, None;
    UDP_200_RING = "udp_200_ring", "  dropped by the sender's TUN ring", "kpps", 0, None;
    UDP_200_SOCKET = "udp_200_socket", "  dropped by the far outer socket", "k/s", 0, None;
    UDP_200_CPU = "udp_200_cpu", "    CPU of both daemons for a packet", "us", 2, None;
    UDP_200_WAITS = "udp_200_voluntary", "    context switches of both, voluntary", "k/s", 1, None;
    UDP_200_PREEMPTED = "udp_200_involuntary", "    context switches of both, involuntary", "k/s", 1, None;
    UDP_1380 = "udp_1380", "UDP 1380 B flood, carried", "kpps", 0, least(4.0);
    UDP_1380_SENT = "udp_1380_sent", "  offered by the sender", "kpps", 0, None;
    UDP_1380_OWN = "udp_1380_own", "    dropped by the sender's own socket", "kpps", 0, None;
    UDP_1380_RING = "udp_1380_ring", "  dropped by the sender's TUN ring", "kpps", 0, None;
    UDP_1380_SOCKET = "udp_1380_socket", "  dropped by the far outer socket", "k/s", 0, None;
    UDP_1380_CPU = "udp_1380_cpu", "    CPU of both daemons for a packet", "us", 2, None;
    UDP_1380_WAITS = "udp_1380_voluntary", "    context switches of both, voluntary", "k/s", 1, None;
    UDP_1380_PREEMPTED = "udp_1380_involuntary", "    context switches of both, involuntary", "k/s", 1, None;
    UDP_GSO = "udp_gso", "UDP 1380 B by UDP_SEGMENT, carried", "kpps", 0, None;
    UDP_GSO_SENT = "udp_gso_sent", "  offered by the sender", "kpps", 0, None;
    UDP_GSO_OWN = "udp_gso_own", "    dropped by the sender's own socket", "kpps", 0, None;
    UDP_GSO_RING = "udp_gso_ring", "  dropped by the TUN ring, super-packets", "k/s", 0, None;
    UDP_GSO_SOCKET = "udp_gso_socket", "  dropped by the far outer socket", "k/s", 0, None;
    UDP_GSO_CPU = "udp_gso_cpu", "    CPU of both daemons for a packet", "us", 2, None;
    UDP_GSO_WAITS = "udp_gso_voluntary", "    context switches of both, voluntary", "k/s", 1, None;
    UDP_GSO_PREEMPTED = "udp_gso_involuntary", "    context switches of both, involuntary", "k/s", 1, None;
    OVERLOAD_PEAK = "overload_peak", "UDP 1380 B ramp, peak carried", "kpps", 0, None;
    OVERLOAD = "overload_goodput", "  carried when flooded, share of the peak", "%", 0, None;
    OVERLOAD_GSO_PEAK = "overload_gso_peak", "UDP 1380 B by UDP_SEGMENT, ramp, peak carried", "kpps", 0, None;
    OVERLOAD_GSO = "overload_gso_goodput", "  carried when flooded, share of the peak", "%", 0, None;
    CONNECTIONS = "connections", "TCP connections set up", "k/s", 2, None;
    QUIC_TLS_DOWN = "quic_tls_down", "QUIC with its AEAD, down", "Gbit/s", 2, None;
    QUIC_TLS_UP = "quic_tls_up", "QUIC with its AEAD, up", "Gbit/s", 2, None;
    TCP_PLAIN = "tcp_plain_link", "TCP, link without offloads", "Gbit/s", 2, least(1.2);
    TCP_20 = "tcp_rtt20", "TCP, round trip 20 ms", "Gbit/s", 3, None;
    TCP_20_LOSS = "tcp_rtt20_loss", "TCP, round trip 20 ms, 0.01 % lost", "Gbit/s", 3, None;
    TCP_66_LOSS = "tcp_rtt66_loss", "TCP, round trip 66 ms, 0.01 % lost", "Gbit/s", 3, None;
    FORWARD_TCP = "forward_tcp", "forwarded: TCP, 1 stream", "Gbit/s", 2, least(1.4);
    FORWARD_QUIC_DOWN = "forward_quic_down", "forwarded: QUIC without its AEAD, down, in super-packets", "Gbit/s", 2, least(1.7);
    FORWARD_QUIC_UP = "forward_quic_up", "forwarded: QUIC without its AEAD, up, in super-packets", "Gbit/s", 2, least(1.7);
    FORWARD_WIRE_DOWN = "forward_wire_down", "forwarded: QUIC without its AEAD, down, rx-udp-gro-forwarding", "Gbit/s", 2, least(1.7);
    FORWARD_WIRE_DOWN_OFF = "forward_wire_down_off", "  without it", "Gbit/s", 2, None;
    FORWARD_WIRE_DOWN_GAIN = "forward_wire_down_gain", "  ratio to the figure without it", "times", 2, None;
    FORWARD_WIRE_UP = "forward_wire_up", "forwarded: QUIC without its AEAD, up, rx-udp-gro-forwarding", "Gbit/s", 2, least(1.7);
    FORWARD_WIRE_UP_OFF = "forward_wire_up_off", "  without it", "Gbit/s", 2, None;
    FORWARD_WIRE_UP_GAIN = "forward_wire_up_gain", "  ratio to the figure without it", "times", 2, None;
    VXLAN = "vxlan_tcp", "TCP in VXLAN in the tunnel", "Gbit/s", 2, least(3.0);
    TCP_JUMBO = "tcp_jumbo", "TCP, frames of 9000", "Gbit/s", 2, None;
    TCP_USUAL = "tcp_usual", "  frames of 1500", "Gbit/s", 2, None;
    TCP_JUMBO_GAIN = "tcp_jumbo_gain", "  ratio of 9000 to 1500 (at least 1.3)", "times", 2, None;
    PEERS_1 = "peers_1", "TCP to the only peer", "Gbit/s", 2, None;
    PEERS_10 = "peers_10", "TCP to the last of 10 peers", "Gbit/s", 2, None;
    PEERS_100 = "peers_100", "TCP to the last of 100 peers", "Gbit/s", 2, None;
    PEERS_1000 = "peers_1000", "TCP to the last of 1000 peers", "Gbit/s", 2, None;
    MEMORY_IDLE_1000 = "memory_idle_peer", "  private memory for each idle one of 1000", "kB", 2, None;
    HANDSHAKES = "handshakes", "handshakes of 10,000 peers", "k/s", 2, None;
    HANDSHAKES_AGAIN = "handshakes_again", "  again, of the same peers", "k/s", 2, None;
    HANDSHAKES_DONE = "handshakes_done", "  completed at the first try", "%", 1, None;
    HANDSHAKES_COOKIES = "handshakes_cookies", "  answered with a cookie", "", 0, None;
    STORM = "storm_goodput", "TCP during 2,000 handshakes a second, relative to TCP alone", "%", 1, None;
    STORM_DONE = "storm_done", "  handshakes completed", "%", 1, None;
    STORM_CLOSED = "storm_closed", "  TCP during as many datagrams to a closed port", "%", 1, None;
    MEMORY_PEER = "memory_peer", "  private memory for each peer, configured", "kB", 2, None;
    MEMORY_SESSION = "memory_session", "  private memory for each peer, with its session", "kB", 2, None;
    NAMESPACE_IN = "proxy_namespace_in", "proxy, namespace stack: TCP in", "Gbit/s", 2, least(1.5);
    NAMESPACE_IN_CPU = "proxy_namespace_in_cpu", "  CPU of the near end", "s/GB", 2, None;
    NAMESPACE_OUT = "proxy_namespace_out", "proxy, namespace stack: TCP out", "Gbit/s", 2, least(1.5);
    NAMESPACE_OUT_CPU = "proxy_namespace_out_cpu", "  CPU of the near end", "s/GB", 2, None;
    NAMESPACE_MEMORY = "proxy_namespace_memory", "  peak private memory of the near end, 1 stream", "MB", 1, most(0.1);
    NAMESPACE_IN_64 = "proxy_namespace_in_64", "proxy, namespace stack: 64 streams in", "Gbit/s", 2, least(1.5);
    NAMESPACE_OUT_64 = "proxy_namespace_out_64", "proxy, namespace stack: 64 streams out", "Gbit/s", 2, least(1.5);
    NAMESPACE_MEMORY_64 = "proxy_namespace_memory_64", "  peak private memory of the near end, all tests so far", "MB", 1, most(0.1);
    NAMESPACE_FAR_IN = "proxy_namespace_far_in", "proxy, namespace stack: TCP in, 66 ms, 0.1 % lost", "Gbit/s", 3, least(1.0);
    NAMESPACE_FAR_OUT = "proxy_namespace_far_out", "proxy, namespace stack: TCP out, 66 ms, 0.1 % lost", "Gbit/s", 3, least(1.0);
    IN_PROCESS_IN = "proxy_in_process_in", "proxy, in-process stack: TCP in", "Gbit/s", 2, least(1.3);
    IN_PROCESS_IN_CPU = "proxy_in_process_in_cpu", "  CPU of the near end", "s/GB", 2, None;
    IN_PROCESS_OUT = "proxy_in_process_out", "proxy, in-process stack: TCP out", "Gbit/s", 2, least(1.3);
    IN_PROCESS_OUT_CPU = "proxy_in_process_out_cpu", "  CPU of the near end", "s/GB", 2, None;
    IN_PROCESS_MEMORY = "proxy_in_process_memory", "  peak private memory of the near end, 1 stream", "MB", 1, most(0.1);
    IN_PROCESS_IN_64 = "proxy_in_process_in_64", "proxy, in-process stack: 64 streams in", "Gbit/s", 2, least(1.2);
    IN_PROCESS_OUT_64 = "proxy_in_process_out_64", "proxy, in-process stack: 64 streams out", "Gbit/s", 2, least(1.2);
    IN_PROCESS_MEMORY_64 = "proxy_in_process_memory_64", "  peak private memory of the near end, all tests so far", "MB", 1, most(0.1);
    IN_PROCESS_FAR_IN = "proxy_in_process_far_in", "proxy, in-process stack: TCP in, 66 ms, 0.1 % lost", "Gbit/s", 3, least(1.0);
    IN_PROCESS_FAR_OUT = "proxy_in_process_far_out", "proxy, in-process stack: TCP out, 66 ms, 0.1 % lost", "Gbit/s", 3, least(1.0);
    IN_PROCESS_GSO = "proxy_in_process_gso", "in-process stack: out, ratio to without GSO", "times", 2, None;
    IN_PROCESS_OUT_ONE = "proxy_in_process_out_one", "  ratio to packet by packet (at least 3)", "times", 2, None;
    IN_PROCESS_GRO = "proxy_in_process_gro", "in-process stack: in, ratio to without GRO", "times", 2, None;
    IN_PROCESS_IN_ONE = "proxy_in_process_in_one", "  ratio to packet by packet (at least 1.7)", "times", 2, None;
    TAILNET_JOIN = "tailnet_join", "tailnet: joined by key (at most 1.5)", "s", 2, None;
    TAILNET_FIRST = "tailnet_first", "  then first answer of a peer (at most 1)", "s", 2, None;
    TAILNET_TCP_FORTH = "tailnet_tcp_forth", "tailnet: TCP, 1 stream, forth", "Gbit/s", 2, least(2.5);
    TAILNET_MEMORY = "tailnet_memory", "  peak private memory of both, 1 stream", "MB", 1, None;
    TAILNET_MEMORY_AFTER = "tailnet_memory_after", "  private memory of both after it", "MB", 1, most(0.2);
    TAILNET_MEMORY_PSS = "tailnet_memory_pss", "    peak with mapped file pages (PSS)", "MB", 1, None;
    TAILNET_TCP_BACK = "tailnet_tcp_back", "tailnet: TCP, 1 stream, back", "Gbit/s", 2, least(2.5);
    TAILNET_TCP_4 = "tailnet_tcp_4", "tailnet: TCP, 4 streams", "Gbit/s", 2, least(2.5);
    TAILNET_TCP_BOTH = "tailnet_tcp_both", "tailnet: TCP, both ways at once, sum", "Gbit/s", 2, least(2.5);
    TAILNET_QUIC_DOWN = "tailnet_quic_down", "tailnet: QUIC without its AEAD, down", "Gbit/s", 2, least(2.0);
    TAILNET_QUIC_UP = "tailnet_quic_up", "tailnet: QUIC without its AEAD, up", "Gbit/s", 2, least(2.0);
    TAILNET_UDP_64 = "tailnet_udp_64", "tailnet: UDP 64 B flood, carried", "kpps", 0, least(6.0);
    TAILNET_RELAY_TCP = "tailnet_relay_tcp", "tailnet: TCP, 1 stream, through headscale's relay", "Mbit/s", 0, least(2.0);
    TAILNET_PEER_RELAY_TCP = "tailnet_peer_relay_tcp", "two linerates: TCP, 1 stream, through the contender's peer relay", "Gbit/s", 2, least(3.0);
    NAT_CONES_FIRST = "nat_cones_first", "nat: port-restricted twice: first answer (at most 0.3)", "s", 2, None;
    NAT_CONES_DIRECT = "nat_cones_direct", "  direct both ways (at most 0.3)", "s", 2, None;
    NAT_MIXED_FIRST = "nat_mixed_first", "nat: address-restricted and symmetric: first answer", "s", 2, None;
    NAT_MIXED_DIRECT = "nat_mixed_direct", "  direct both ways", "s", 2, None;
    NAT_OPEN_FIRST = "nat_open_first", "nat: no input drop twice: first answer", "s", 2, None;
    NAT_OPEN_DIRECT = "nat_open_direct", "  direct both ways, if ever", "s", 2, None;
    NAT_HARD_FIRST = "nat_hard_first", "nat: port-restricted and symmetric, relayed: first answer", "s", 2, None;
    NAT_DIRECT_TCP = "nat_direct_tcp", "nat: two linerates: TCP, 1 stream, directly", "Gbit/s", 2, None;
    NAT_PEER_RELAY_TCP = "nat_peer_relay_tcp", "  the same two through the contender's peer relay", "Gbit/s", 2, None;
    NAT_CHANGED = "nat_changed", "nat: a host changes its addresses: silence (at most 1)", "s", 2, None;
    NAT_CUT = "nat_cut", "nat: a direct path is cut: silence (at most 3)", "s", 2, None;
    NAT_LOST = "nat_lost", "nat: lost pings, 10 ms apart, while a relayed path becomes direct (none)", "pings", 0, None;
    SERVER_650 = "server_650", "server: 650 nodes join: until each has all peers", "s", 2, most(0.1);
    SERVER_650_REACHED = "server_650_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_650_CPU = "server_650_cpu", "  processor time of the server a join", "ms", 2, most(0.1);
    SERVER_650_MEMORY = "server_650_memory", "  peak private memory of the server", "MB", 1, most(0.334);
    SERVER_650_MEMORY_PSS = "server_650_memory_pss", "    peak with mapped file pages (PSS)", "MB", 1, None;
    SERVER_650_BYTES = "server_650_bytes", "    streams of maps, a node", "kB", 1, None;
    SERVER_2000 = "server_2000", "server: 2,000 nodes join: until each has all peers", "s", 2, most(0.1);
    SERVER_2000_REACHED = "server_2000_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_2000_CPU = "server_2000_cpu", "  processor time of the server a join", "ms", 2, most(0.1);
    SERVER_2000_MEMORY = "server_2000_memory", "  peak private memory of the server", "MB", 1, most(0.334);
    SERVER_2000_MEMORY_PSS = "server_2000_memory_pss", "    peak with mapped file pages (PSS)", "MB", 1, None;
    SERVER_2000_BYTES = "server_2000_bytes", "    streams of maps, a node", "kB", 1, None;
    SERVER_IDLE = "server_idle", "  then idle: processor share (at most 2)", "%", 2, None;
    SERVER_POLICY_P50 = "server_policy_p50", "server: 200 nodes, a saved policy takes effect, p50", "ms", 0, None;
    SERVER_POLICY_P99 = "server_policy_p99", "  p99 (at most 500)", "ms", 0, None;
    SERVER_10K = "server_10k", "server: 10,000 nodes join, all visible to all: until each has all peers (at most 120)", "s", 1, None;
    SERVER_10K_REACHED = "server_10k_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_10K_CPU = "server_10k_cpu", "  processor time of the server a join", "ms", 2, None;
    SERVER_10K_MEMORY = "server_10k_memory", "  peak private memory of the server (at most 1,074)", "MB", 0, None;
    SERVER_10K_BYTES = "server_10k_bytes", "  streams of maps, a node", "kB", 1, None;
    SERVER_10K_IDLE = "server_10k_idle", "  then idle: processor share (at most 5)", "%", 2, None;
    SERVER_10K_HELD = "server_10k_held", "  then idle: private memory for a node and its streams", "kB", 1, None;
    SERVER_10K_CHANGE_P50 = "server_10k_change_p50", "  100 nodes, one each 100 ms, change their endpoint: delay until others have it, p50", "ms", 0, None;
    SERVER_10K_CHANGE_P99 = "server_10k_change_p99", "  p99 (at most 1,000)", "ms", 0, None;
    SERVER_10K_CHANGE_TOLD = "server_10k_change_told", "  share of the expected updates", "%", 2, None;
    SERVER_10K_RENEW_P99 = "server_10k_renew_p99", "  20 nodes, one each 500 ms, change their key: delay until others have it, p99", "ms", 0, None;
    SERVER_10K_RULES_P99 = "server_10k_rules_p99", "  a saved policy takes effect, p99", "ms", 0, None;
    SERVER_10K_AGAIN = "server_10k_again", "  the server is killed and restarted: until each has its peers (at most 60)", "s", 1, None;
    SERVER_10K_AGAIN_REACHED = "server_10k_again_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_10K_AGAIN_MEMORY = "server_10k_again_memory", "  peak private memory of the server then", "MB", 0, None;
    SERVER_10K_POLICY = "server_10k_policy", "server: 10,000 nodes join, each sees a few hundred: until each has its peers (at most 120)", "s", 1, None;
    SERVER_10K_POLICY_REACHED = "server_10k_policy_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_10K_POLICY_CPU = "server_10k_policy_cpu", "  processor time of the server a join", "ms", 2, None;
    SERVER_10K_POLICY_MEMORY = "server_10k_policy_memory", "  peak private memory of the server (at most 1,074)", "MB", 0, None;
    SERVER_10K_POLICY_BYTES = "server_10k_policy_bytes", "  streams of maps, a node", "kB", 1, None;
    SERVER_10K_POLICY_IDLE = "server_10k_policy_idle", "  then idle: processor share (at most 5)", "%", 2, None;
    SERVER_10K_POLICY_HELD = "server_10k_policy_held", "  then idle: private memory for a node and its streams", "kB", 1, None;
    SERVER_10K_POLICY_CHANGE_P50 = "server_10k_policy_change_p50", "  100 nodes, one each 100 ms, change their endpoint: delay until others have it, p50", "ms", 0, None;
    SERVER_10K_POLICY_CHANGE_P99 = "server_10k_policy_change_p99", "  p99 (at most 1,000)", "ms", 0, None;
    SERVER_10K_POLICY_CHANGE_TOLD = "server_10k_policy_change_told", "  share of the expected updates", "%", 2, None;
    SERVER_10K_POLICY_RENEW_P99 = "server_10k_policy_renew_p99", "  20 nodes, one each 500 ms, change their key: delay until others have it, p99", "ms", 0, None;
    SERVER_10K_POLICY_RULES_P99 = "server_10k_policy_rules_p99", "  a saved policy takes effect, p99", "ms", 0, None;
    SERVER_10K_POLICY_AGAIN = "server_10k_policy_again", "  the server is killed and restarted: until each has its peers (at most 60)", "s", 1, None;
    SERVER_10K_POLICY_AGAIN_REACHED = "server_10k_policy_again_reached", "  nodes that have all peers then", "", 0, None;
    SERVER_10K_POLICY_AGAIN_MEMORY = "server_10k_policy_again_memory", "  peak private memory of the server then", "MB", 0, None;
    SERVER_RELAY_1400 = "server_relay_1400", "server: datagrams of 1,400 B through its relay, carried", "Gbit/s", 2, least(2.0);
    SERVER_RELAY_1400_CPU = "server_relay_1400_cpu", "  processor time of the relay for a datagram", "us", 2, None;
    SERVER_RELAY_64 = "server_relay_64", "server: datagrams of 64 B through its relay, carried", "kpps", 0, least(2.0);
    SERVER_RELAY_64_CPU = "server_relay_64_cpu", "  processor time of the relay for a datagram", "us", 2, None;
    SERVER_RELAY_HELD = "server_relay_held", "server: private memory for a connection to its relay", "kB", 1, most(0.5);
    SERVER_RELAY_REACHED = "server_relay_reached", "  of 2,000 idle connections, those that then receive a datagram", "", 0, least(1.0);
    SERVER_RELAY_TCP = "server_relay_tcp", "server: TCP, 1 stream, through its relay, between two tailscaled", "Mbit/s", 0, least(2.0);
    SERVER_RELAY_TCP_OWN = "server_relay_tcp_own", "  the same between two linerates", "Mbit/s", 0, least(2.0);
    LINK_LOST = "link_lost", "emulated link: lost at random", "datagrams", 0, None;
    LINK_QUEUE = "link_queue", "emulated link: dropped by its queue", "datagrams", 0, None;
    LINK_REFUSED = "link_refused", "emulated link: not sent by the kernel", "datagrams", 0, None;
    MEMORY_END = "memory_end", "peak private memory of both, all tests", "MB", 1, None;
    MEMORY_END_AFTER = "memory_end_after", "  private memory of both after them", "MB", 1, None;
    MEMORY_END_PSS = "memory_end_pss", "    peak with mapped file pages (PSS)", "MB", 1, None;
    OTHERS = "others", "processor time of other programs, share of all cores", "%", 0, None;
}

/// Which of two figures is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The larger one.
    More,
    /// The smaller one.
    Less,
}

impl Better {
    /// The value of a failed turn, and of its ratio to another contender.
    pub fn worst(self) -> f64 {
        match self {
            Self::More => 0.0,
            Self::Less => f64::INFINITY,
        }
    }
}

impl Measure {
    /// Which of two figures is better: defined for measures with a bar, for memory, and for figures
    /// that are not part of another one.
    pub fn better(&self) -> Option<Better> {
        match (self.bar, self.unit) {
            (Some(Bar::AtLeast(_)), _) => Some(Better::More),
            (Some(Bar::AtMost(_)), _) => Some(Better::Less),
            (None, "ms" | "MB") => Some(Better::Less),
            // Parts too: the README has rows for them.
            (None, "Gbit/s") => Some(Better::More),
            _ if self.title.starts_with(' ') => None,
            (None, "kpps" | "k/s" | "times") => Some(Better::More),
            _ => None,
        }
    }

    /// Whether it is only in JSON and on the page, to keep the tables short.
    pub fn is_fine(&self) -> bool {
        self.title.starts_with("    ")
    }

    /// The figure that it is a part of; itself if it is not a part.
    pub fn of(&self) -> &'static Self {
        let before = ALL.iter().take_while(|one| one.key != self.key);
        let whole = before.filter(|one| !one.title.starts_with(' ')).last();
        let own = ALL.iter().find(|one| one.key == self.key).expect("ALL has every measure");
        if self.title.starts_with(' ') { whole.unwrap_or(own) } else { own }
    }

    /// A value in this measure's precision; a dash if it is not finite.
    pub fn format(&self, value: f64) -> String {
        match value.is_finite() {
            true => format!("{value:.*}", self.digits),
            false => "-".to_owned(),
        }
    }
}

/// Pings with stored round trips.
pub const PINGS: [&str; 2] = ["idle", "beside full TCP"];

/// Measures of several joins a turn; the median of the joins is the value of a turn.
pub const JOINS: [&Measure; 7] = [
    &NAT_CONES_FIRST,
    &NAT_CONES_DIRECT,
    &NAT_MIXED_FIRST,
    &NAT_MIXED_DIRECT,
    &NAT_OPEN_FIRST,
    &NAT_OPEN_DIRECT,
    &NAT_HARD_FIRST,
];
