//! Every reason for which a packet is not carried, and how often it was.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// A name that stays the same from version to version.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Into the tunnel: no IP packet.
    OutInvalid = "out_invalid",
    /// Into the tunnel: no peer's allowed IPs hold the destination.
    OutNoPeer = "out_no_peer",
    /// Into the tunnel: the peer has no endpoint.
    OutNoEndpoint = "out_no_endpoint",
    /// Into the tunnel: our own datagram to the peer whose allowed IPs hold its
    /// endpoint, sent there by the host's routes.
    OutLoop = "out_loop",
    /// Into the tunnel: more packets than are staged waited for a handshake.
    OutStagedFull = "out_staged_full",
    /// Into the tunnel: the handshake that it waited for was given up.
    OutHandshakeFailed = "out_handshake_failed",
    /// Into the tunnel: data needs a secret against quantum computers, and the peer does not
    /// agree on one.
    OutNotPostQuantum = "out_not_post_quantum",
    /// Into the tunnel: its flow's queue stood too long (RFC 8289), and its
    /// sender knows no ECN.
    OutCongestion = "out_congestion",
    /// Into the tunnel: longer than the path to the peer carries. Its sender was told,
    /// within bounds.
    OutPathMtu = "out_path_mtu",
    /// Outer: no route to the endpoint, or a firewall's refusal.
    OutUnreachable = "out_unreachable",
    /// Outer: longer than the path allows.
    OutTooBig = "out_too_big",
    /// Outer: the kernel's queues were full.
    OutNoBuffer = "out_no_buffer",
    /// Outer: there is no socket, the interface is down.
    OutNoSocket = "out_no_socket",
    /// Outer: more waits for relays than may.
    OutRelayFull = "out_relay_full",
    /// Outer: the kernel refused for another reason.
    OutSendFailed = "out_send_failed",
    /// Received: no WireGuard message, or one of a wrong length.
    InMalformed = "in_malformed",
    /// Received: a control datagram, of which more came than the queue holds, or than its sender's
    /// share is.
    InControlFull = "in_control_full",
    /// Received: through a relay, of which more came than the queue holds.
    InRelayFull = "in_relay_full",
    /// Received: an index that stands for no session.
    InUnknownIndex = "in_unknown_index",
    /// Received: the session's time or messages are used up.
    InExpired = "in_expired",
    /// Received: more came than could be opened, of this peer more than its share.
    InCrowded = "in_crowded",
    /// Received: the tag does not fit.
    InForged = "in_forged",
    /// Received: the counter came before, or is behind the window.
    InReplayed = "in_replayed",
    /// Received: what was sealed is no IP packet.
    InInvalid = "in_invalid",
    /// Received: the inner source is not of the peer's allowed IPs.
    InSpoofed = "in_spoofed",
    /// Received: data needs a secret against quantum computers, and came by a session without.
    InNotPostQuantum = "in_not_post_quantum",
    /// Received: the filter does not accept it.
    InFiltered = "in_filtered",
    /// Received: a message for this program, not for the host, that says nothing it knows, or of which
    /// more came than the queue holds.
    InMessage = "in_message",
    /// Received: its sender knows no ECN, and congestion was marked outside (RFC 6040) or
    /// the socket's queue stood too long (RFC 8289).
    InCongestion = "in_congestion",
    /// Received: the IP side refused the packet.
    InRefused = "in_refused",
    /// Handshake: more came than the queue holds.
    HandshakeQueueFull = "handshake_queue_full",
    /// Handshake: there is no private key.
    HandshakeNoKey = "handshake_no_key",
    /// Handshake: mac1 does not fit.
    HandshakeInvalidMac = "handshake_invalid_mac",
    /// Handshake: under load, and a cookie was sent back.
    HandshakeCookieSent = "handshake_cookie_sent",
    /// Handshake: under load, and the source used up its share.
    HandshakeRateLimited = "handshake_rate_limited",
    /// Handshake: its encryption does not fit.
    HandshakeForged = "handshake_forged",
    /// Handshake: a response with a secret against quantum computers that this side lost, as when it
    /// restarts or removes the peer. The peer answered the next initiation without one.
    HandshakeLostSecret = "handshake_lost_secret",
    /// Handshake: from a key that is no peer's.
    HandshakeUnknownPeer = "handshake_unknown_peer",
    /// Handshake: from a peer that does not roam, and of which nobody knows where it is.
    HandshakeNoEndpoint = "handshake_no_endpoint",
    /// Handshake: the timestamp is not newer than the last, or too soon.
    HandshakeReplayed = "handshake_replayed",
    /// Handshake: it answers nothing that we sent.
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

    /// How many packets were dropped so far.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}
