//! Times and limits of the path selection. Those marked "stock" are Tailscale's
//! (`wgengine/magicsock` `endpoint.go`, `magicsock.go`), on which the other end relies.

use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A peer is active for this time after a packet was sent to it (stock).
pub(super) const ACTIVE: Duration = SECOND.saturating_mul(45);
/// The time between two pings of the path in use (stock).
pub(super) const HEARTBEAT: Duration = SECOND.saturating_mul(3);
/// A path is trusted for this time after a sign of life (stock).
pub(super) const TRUST: Duration = MS.saturating_mul(6500);
/// The time until an unanswered heartbeat is repeated. Within [`TRUST`], five of six may be lost.
pub(super) const HEARTBEAT_RETRY: Duration = MS.saturating_mul(750);
/// Later pongs are ignored (stock).
pub(super) const PING_TIMEOUT: Duration = SECOND.saturating_mul(5);
/// The minimum time between two pings of an address in rounds (stock).
pub(super) const AGAIN: Duration = SECOND.saturating_mul(5);
/// The time between two searches for a better path (stock).
pub(super) const BETTER: Duration = SECOND.saturating_mul(60);
/// No better path is searched if the latency is below this (stock).
pub(super) const GOOD_ENOUGH: Duration = MS.saturating_mul(5);
/// The source of a ping is a candidate for this time (stock).
pub(super) const RECEIVED_LIFETIME: Duration = SECOND.saturating_mul(45);
/// Our endpoints that are older are determined again before they are sent (stock). The shortest
/// lifetime of NAT mappings is 30 s.
pub(super) const FRESH: Duration = SECOND.saturating_mul(27);
/// How long a call waits for them. A STUN query and its first repetition take less.
pub(super) const REFRESH_WAIT: Duration = SECOND;

/// The TTL of priming pings. They pass our NATs, and expire before the peer's: two hops at home,
/// one at a provider, and one more.
pub(super) const PRIMING_HOPS: u8 = 4;
/// How long each call of a round waits for the confirmation of its arrival. The first value is
/// longer than the round trip through most relays. Two nodes that just joined may learn of each
/// other at different times: the calls repeat at most every two seconds.
pub(super) const CALL_WAITS: [Duration; 9] = [
    MS.saturating_mul(500),
    MS.saturating_mul(500),
    MS.saturating_mul(500),
    MS.saturating_mul(500),
    SECOND,
    SECOND,
    SECOND.saturating_mul(2),
    SECOND.saturating_mul(2),
    SECOND.saturating_mul(2),
];
/// The minimum time between the confirmation and the first ping; otherwise an eighth of the round
/// trip through the relay. The peer's agent sends the confirmation, but its data plane primes,
/// which may be late on a busy machine.
pub(super) const PEER_PRIMES: Duration = MS.saturating_mul(20);
/// The maximum of that time.
pub(super) const PEER_PRIMES_LATE: Duration = MS.saturating_mul(200);
/// The minimum time between two rounds that ping without an answered call: ten times the lifetime
/// of the entries that they leave in NATs.
pub(super) const BLIND: Duration = SECOND.saturating_mul(300);
/// How long a round without a relay waits after priming.
pub(super) const PRIMING_WAIT: Duration = MS.saturating_mul(100);
/// The times of the pings in a round.
pub(super) const TRIES: [Duration; 4] =
    [Duration::ZERO, MS.saturating_mul(150), MS.saturating_mul(400), MS.saturating_mul(1000)];
/// The times between unsuccessful rounds; the last value repeats. The third round starts after more
/// than the 30 s in which a conntrack entry of an early ping expires, so that priming works again.
pub(super) const ROUNDS: [Duration; 3] =
    [SECOND.saturating_mul(5), SECOND.saturating_mul(40), SECOND.saturating_mul(60)];
/// The minimum time between two pings in reply to pings of the peer, without a path.
pub(super) const PING_BACK: Duration = MS.saturating_mul(200);

/// The age that the traffic in a report may have.
pub(super) const REPORT: Duration = SECOND;
/// A path without a sign of life for this time after packets were sent is in doubt. Less than the
/// time between two traffic reports.
pub(super) const SILENCE: Duration = MS.saturating_mul(900);
/// The time between two pings of a path in doubt.
pub(super) const DOUBT_PING: Duration = MS.saturating_mul(150);
/// The duration of a doubt after silence, or three times the latency. Two reports that show a
/// silence take two seconds, so that data leaves a dead path within three seconds.
pub(super) const DOUBT: Duration = MS.saturating_mul(800);
/// The duration of a doubt that a call of the peer raised: until the next report is due.
pub(super) const CALL_DOUBT: Duration = MS.saturating_mul(2200);
/// A call raises a doubt if the path showed no sign of life for this time, or if its address is not
/// in the call.
pub(super) const CALL_SILENCE: Duration = MS.saturating_mul(1500);
/// The longest latency that prolongs a doubt.
pub(super) const DOUBT_LATENCY: Duration = SECOND.saturating_mul(1);
/// A lost path is pinged every [`HEARTBEAT`] for this time, which keeps its pinholes open.
pub(super) const LOST: Duration = SECOND.saturating_mul(60);
/// A path that answers pings but carries no data (ts#19457) is not used for this time.
pub(super) const QUARANTINE: Duration = SECOND.saturating_mul(30);
/// A stale event counts against the path if no data was received for this time.
pub(super) const STALE: Duration = SECOND.saturating_mul(15);
/// The minimum age of a path that a stale event counts against. Within this time a handshake is
/// repeated (REKEY_TIMEOUT and its jitter) and can be answered.
pub(super) const UNANSWERED: Duration = SECOND.saturating_mul(7);
/// The end of a WireGuard session (REJECT_AFTER_TIME).
pub(super) const SESSION: Duration = SECOND.saturating_mul(180);
/// A path that is older than this is not replaced by a slightly better one.
pub(super) const SETTLING: Duration = SECOND.saturating_mul(2);
/// A region that reported a peer as absent is avoided for this time.
pub(super) const GONE: Duration = SECOND.saturating_mul(60);

/// The time until an unanswered request to a relay is repeated, because the relay may not know its
/// addresses yet (stock).
pub(super) const ALLOCATE_AGAIN: Duration = SECOND.saturating_mul(3);
/// Later answers are ignored (stock).
pub(super) const ALLOCATE_TIMEOUT: Duration = SECOND.saturating_mul(10);
/// The maximum duration of a handshake with a relay, whatever the endpoint's lifetime (stock).
pub(super) const BIND_TIMEOUT: Duration = SECOND.saturating_mul(30);
/// The maximum number of pings of an endpoint before it is proven. Each ping of the peer triggers
/// another (stock).
pub(super) const RELAYED_PINGS: u8 = 10;
/// The time between requests to all relays, without a working one and with one (stock).
pub(super) const RELAYED_AGAIN: Duration = SECOND.saturating_mul(30);
pub(super) const RELAYED_BETTER: Duration = SECOND.saturating_mul(60);
/// The minimum time since the last requests after a path was lost.
pub(super) const RELAYED_LOST: Duration = SECOND.saturating_mul(5);
/// The maximum number of relays for a peer, and of addresses of each.
pub(super) const PEER_RELAYS: usize = 8;
pub(super) const RELAYED_ADDRESSES: usize = 20;

/// The maximum number of candidates of a peer by origin: more than real hosts have.
pub(super) const MAP_CANDIDATES: usize = 16;
pub(super) const CALL_CANDIDATES: usize = 16;
pub(super) const RECEIVED_CANDIDATES: usize = 8;
/// The maximum number of pings that wait for their pongs.
pub(super) const PENDING: usize = 192;
/// The number of stored ping IDs of a peer, so that repeated pings are not answered.
pub(super) const SEEN: usize = 16;
/// The limit of datagrams in answer to a peer: a burst, and the interval afterwards.
pub(super) const ANSWERS: (u32, Duration) = (64, MS.saturating_mul(30));
/// The limit of a peer's calls: a burst, and the interval afterwards.
pub(super) const CALLS: (u32, Duration) = (3, SECOND.saturating_mul(5));
/// The limit of repeated calls because of new endpoints, ours or the peer's. Behind a symmetric NAT
/// they change with each measurement.
pub(super) const RECALLS: (u32, Duration) = (4, SECOND.saturating_mul(30));

/// The time for which all other methods must have failed, without and with peer relays.
pub(super) const BIRTHDAY_WAIT: Duration = SECOND;
pub(super) const BIRTHDAY_WAIT_RELAYS: Duration = SECOND.saturating_mul(3);
/// The timeout of each answer through the relay. A stock peer never answers.
pub(super) const BIRTHDAY_ANSWER: Duration = SECOND.saturating_mul(5);
/// The number of sockets of the node with the varying port: 1,000 probes reach one with a
/// probability of 0.98 (docs/decisions/0013).
pub(super) const BIRTHDAY_SOCKETS: u16 = 256;
/// How long the other node probes: 2,400 probes reach a socket with a probability of 0.9999.
pub(super) const BIRTHDAY_CALLS: Duration = SECOND.saturating_mul(12);
/// The number of probes in a burst, and the time between bursts: 200 a second.
pub(super) const BIRTHDAY_BURST: (u32, Duration) = (5, MS.saturating_mul(25));
/// How long the sockets stay open without success: less than the 30 s for which a NAT stores their
/// mappings.
pub(super) const BIRTHDAY_OPEN: Duration = SECOND.saturating_mul(16);
/// The maximum duration of an attempt.
pub(super) const BIRTHDAY_TIMEOUT: Duration = SECOND.saturating_mul(30);
/// The time between attempts with different peers.
pub(super) const BIRTHDAY_REST: Duration = SECOND.saturating_mul(20);
/// The times between unanswered requests; the last value repeats. The peer may not know its public
/// endpoint yet, or be a stock node.
pub(super) const BIRTHDAY_ASKS: [Duration; 3] =
    [SECOND.saturating_mul(20), SECOND.saturating_mul(60), SECOND.saturating_mul(300)];
/// The time between attempts with the same peer, after a failure and after a success.
pub(super) const BIRTHDAY_AGAIN: Duration = SECOND.saturating_mul(300);
pub(super) const BIRTHDAY_LOST: Duration = SECOND.saturating_mul(40);
/// A peer is reachable if it called within this time.
pub(super) const BIRTHDAY_CALLED: Duration = SECOND.saturating_mul(90);
/// How long the path through an auxiliary socket stays after the last packet, because another
/// attempt is expensive; and the time between its pings, which is less than the lifetime of an
/// answered flow in NATs.
pub(super) const BIRTHDAY_KEPT: Duration = SECOND.saturating_mul(300);
pub(super) const BIRTHDAY_KEEPALIVE: Duration = SECOND.saturating_mul(20);
/// The path is lost this long after an unanswered ping.
pub(super) const BIRTHDAY_DEAD: Duration = MS.saturating_mul(3500);
