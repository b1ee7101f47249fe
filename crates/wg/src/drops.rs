//! Reasons for dropped packets, and their counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Reason for a dropped packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The stable name of the reason, as in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Into the tunnel: not a valid IP packet.
    OutInvalid = "out_invalid",
    /// Into the tunnel: no peer's allowed IPs contain the destination.
    OutNoPeer = "out_no_peer",
    /// Into the tunnel: the peer has no endpoint.
    OutNoEndpoint = "out_no_endpoint",
    /// Into the tunnel: an encrypted datagram of this device. It is addressed to an endpoint in the
    /// allowed IPs of its peer, and the host's routes sent it back into the tunnel.
    OutLoop = "out_loop",
    /// Into the tunnel: the queue of staged packets was full.
    OutStagedFull = "out_staged_full",
    /// Into the tunnel: the handshake attempt was given up.
    OutHandshakeFailed = "out_handshake_failed",
    /// Into the tunnel: data requires a post-quantum secret, and the peer does not agree on one.
    OutNotPostQuantum = "out_not_post_quantum",
    /// Into the tunnel: the flow's queue was too long for too long (RFC 8289), and the sender does
    /// not support ECN.
    OutCongestion = "out_congestion",
    /// Into the tunnel: longer than the path MTU. The sender was notified, within a rate limit.
    OutPathMtu = "out_path_mtu",
    /// Outer: no route to the endpoint, or refused by a firewall.
    OutUnreachable = "out_unreachable",
    /// Outer: longer than the kernel's path MTU.
    OutTooBig = "out_too_big",
    /// Outer: the kernel's queues were full.
    OutNoBuffer = "out_no_buffer",
    /// Outer: no socket, because the interface is down.
    OutNoSocket = "out_no_socket",
    /// Outer: the queue for relays was full.
    OutRelayFull = "out_relay_full",
    /// Outer: the kernel refused for another reason.
    OutSendFailed = "out_send_failed",
    /// Received: not a WireGuard message, or of wrong length.
    InMalformed = "in_malformed",
    /// Received: a control datagram that exceeds the queue or its sender's share.
    InControlFull = "in_control_full",
    /// Received: a relayed datagram that exceeds the queue.
    InRelayFull = "in_relay_full",
    /// Received: the index belongs to no session.
    InUnknownIndex = "in_unknown_index",
    /// Received: the session reached its time or message limit.
    InExpired = "in_expired",
    /// Received: more packets than could be opened, and more from this peer than its share.
    InCrowded = "in_crowded",
    /// Received: the authentication tag is invalid.
    InForged = "in_forged",
    /// Received: the counter was used before, or is behind the replay window.
    InReplayed = "in_replayed",
    /// Received: the decrypted data is not an IP packet.
    InInvalid = "in_invalid",
    /// Received: the inner source address is not in the peer's allowed IPs.
    InSpoofed = "in_spoofed",
    /// Received: data in a session without a post-quantum secret, which is required.
    InNotPostQuantum = "in_not_post_quantum",
    /// Received: rejected by the packet filter.
    InFiltered = "in_filtered",
    /// Received: a message for this program that is unknown, or exceeds the queue.
    InMessage = "in_message",
    /// Received: the inner sender does not support ECN, and the outer packet was marked as
    /// congested (RFC 6040) or the socket's queue was too long for too long (RFC 8289).
    InCongestion = "in_congestion",
    /// Received: the IP side refused the packet.
    InRefused = "in_refused",
    /// Handshake: the queue was full.
    HandshakeQueueFull = "handshake_queue_full",
    /// Handshake: the device is without a private key.
    HandshakeNoKey = "handshake_no_key",
    /// Handshake: mac1 is invalid.
    HandshakeInvalidMac = "handshake_invalid_mac",
    /// Handshake: the device is under load, and sent a cookie.
    HandshakeCookieSent = "handshake_cookie_sent",
    /// Handshake: the device is under load, and the source exceeded its rate limit.
    HandshakeRateLimited = "handshake_rate_limited",
    /// Handshake: the authentication of an encrypted field failed.
    HandshakeForged = "handshake_forged",
    /// Handshake: a response with a post-quantum secret that this side lost, by a restart or by
    /// removing the peer. The peer answered the next initiation without one.
    HandshakeLostSecret = "handshake_lost_secret",
    /// Handshake: the sender's public key belongs to no peer.
    HandshakeUnknownPeer = "handshake_unknown_peer",
    /// Handshake: the peer does not roam and is without an endpoint.
    HandshakeNoEndpoint = "handshake_no_endpoint",
    /// Handshake: the timestamp is not newer than the last one, or the initiation is too early.
    HandshakeReplayed = "handshake_replayed",
    /// Handshake: a response or cookie reply to no pending initiation.
    HandshakeUnexpected = "handshake_unexpected",
}

/// A counter for each reason.
#[derive(Debug)]
pub struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; _])
    }
}

impl Drops {
    /// Counts `packets` dropped.
    pub fn count(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].fetch_add(packets, Ordering::Relaxed);
    }

    /// Number of packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}
