//! The times and bounds of path choice. Those marked "stock" are tailscale's (`wgengine/magicsock`
//! `endpoint.go`, `magicsock.go`), which the other end counts on.

use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A peer that something was sent to is active for so long (stock).
pub const ACTIVE: Duration = SECOND.saturating_mul(45);
/// Between two pings of the path in use (stock).
pub const HEARTBEAT: Duration = SECOND.saturating_mul(3);
/// A path is trusted for so long after its last proof of life (stock).
pub const TRUST: Duration = MS.saturating_mul(6500);
/// An unanswered heartbeat is repeated: five of six may be lost within [`TRUST`].
pub const HEARTBEAT_RETRY: Duration = MS.saturating_mul(750);
/// A pong that is later is none (stock).
pub const PING_TIMEOUT: Duration = SECOND.saturating_mul(5);
/// No round pings an address again before (stock).
pub const AGAIN: Duration = SECOND.saturating_mul(5);
/// Between two searches for a better path (stock).
pub const BETTER: Duration = SECOND.saturating_mul(60);
/// A path this fast is not compared with others (stock).
pub const GOOD_ENOUGH: Duration = MS.saturating_mul(5);
/// An address that a ping came from is a candidate for so long (stock).
pub const RECEIVED_LIFETIME: Duration = SECOND.saturating_mul(45);
/// Own endpoints are asked for again before they are sent, if they are older (stock): the shortest
/// times of NAT mappings are 30 s.
pub const FRESH: Duration = SECOND.saturating_mul(27);
/// How long a call waits for them. A STUN query and its first repetition take less.
pub const REFRESH_WAIT: Duration = SECOND;

/// What primes supports_peer_relays the own boxes and dies before any of the peer's: two at home, one at a
/// provider, and one more.
pub const PRIMING_HOPS: u8 = 4;
/// How long each call of a round waits for the relay's proof that the peer heard it. The first is
/// more than the round trip through most relays. Two that have just joined may know each other
/// seconds apart, and are called within two seconds of that.
pub const CALL_WAITS: [Duration; 9] = [
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
/// How long the first ping waits behind that proof, or an eighth of the round trip by relay: the
/// peer's answer comes from its agent, and what primes from its data plane, which may be late where
/// the machine is busy.
pub const PEER_PRIMES: Duration = MS.saturating_mul(20);
/// And at most.
pub const PEER_PRIMES_LATE: Duration = MS.saturating_mul(200);
/// From one round to the next that pings though no call had an answer: ten times as long as the
/// marks live that it leaves in boxes.
pub const BLIND: Duration = SECOND.saturating_mul(300);
/// How long they wait behind the priming datagrams where no relay is known.
pub const PRIMING_WAIT: Duration = MS.saturating_mul(100);
/// When a round pings, behind its first pings.
pub const TRIES: [Duration; 4] =
    [Duration::ZERO, MS.saturating_mul(150), MS.saturating_mul(400), MS.saturating_mul(1000)];
/// From one round without success to the next; the last for all others. The third comes after more
/// than the 30 s in which a conntrack entry expires that an early ping left in a box, so that
/// priming works then.
pub const ROUNDS: [Duration; 3] =
    [SECOND.saturating_mul(5), SECOND.saturating_mul(40), SECOND.saturating_mul(60)];
/// A ping is answered by a ping, while there is no path, this often.
pub const PING_BACK: Duration = MS.saturating_mul(200);

/// A report of traffic may be about what was so long ago.
pub const REPORT: Duration = SECOND;
/// Something was sent and a path showed no life for so long: it is in doubt. Less than the time
/// between two reports of traffic.
pub const SILENCE: Duration = MS.saturating_mul(900);
/// Between two pings of a path in doubt.
pub const DOUBT_PING: Duration = MS.saturating_mul(150);
/// How long a doubt lasts after silence, or three times the path's latency. With the two seconds in
/// which two reports tell of a silence, traffic leaves a dead path within three seconds.
pub const DOUBT: Duration = MS.saturating_mul(800);
/// How long it lasts if only the peer's call raised it: until a report is due of what came since.
pub const CALL_DOUBT: Duration = MS.saturating_mul(2200);
/// A call raises it if the path has shown no life for so long, or its address is not in the call.
pub const CALL_SILENCE: Duration = MS.saturating_mul(1500);
/// The longest latency that prolongs a doubt.
pub const DOUBT_LATENCY: Duration = SECOND.saturating_mul(1);
/// A path that was lost is pinged at [`HEARTBEAT`] for so long; its pinholes live as long.
pub const LOST: Duration = SECOND.saturating_mul(60);
/// A path that answers pings and carries no data (ts#19457) is left alone for so long.
pub const QUARANTINE: Duration = SECOND.saturating_mul(30);
/// After so long without data, a peer that is stale says something about its path.
pub const STALE: Duration = SECOND.saturating_mul(15);
/// What was sent counts as unanswered after so long: a handshake is repeated as well until then
/// (REKEY_TIMEOUT and its jitter), and has had time for an answer.
pub const UNANSWERED: Duration = SECOND.saturating_mul(7);
/// A session of WireGuard ends (REJECT_AFTER_TIME).
pub const SESSION: Duration = SECOND.saturating_mul(180);
/// A path in use is not left for one that is only a little better, once it is older.
pub const SETTLING: Duration = SECOND.saturating_mul(2);
/// A region where a peer is not is avoided for so long.
pub const GONE: Duration = SECOND.saturating_mul(60);

/// A relay that did not answer is asked again after so long, as it may not know yet where it is
/// reached (stock).
pub const ALLOCATE_AGAIN: Duration = SECOND.saturating_mul(3);
/// Its answer is none after so long (stock).
pub const ALLOCATE_TIMEOUT: Duration = SECOND.saturating_mul(10);
/// A handshake with a relay ends after so long, whatever that says (stock).
pub const BIND_TIMEOUT: Duration = SECOND.saturating_mul(30);
/// Pings of an endpoint until one is answered: each of the peer's has another follow (stock).
pub const RELAYED_PINGS: u8 = 10;
/// Relays are asked again after so long without one that works, and with one (stock).
pub const RELAYED_AGAIN: Duration = SECOND.saturating_mul(30);
pub const RELAYED_BETTER: Duration = SECOND.saturating_mul(60);
/// And so long after they were asked last, where a path was lost.
pub const RELAYED_LOST: Duration = SECOND.saturating_mul(5);
/// The most relays that are asked for a peer, and the most addresses of each.
pub const PEER_RELAYS: usize = 8;
pub const RELAYED_ADDRESSES: usize = 20;

/// Candidates of a peer, by where they come from: more than any honest host has.
pub const MAP_CANDIDATES: usize = 16;
pub const CALL_CANDIDATES: usize = 16;
pub const RECEIVED_CANDIDATES: usize = 8;
/// Pings of a peer that wait for their pongs.
pub const PENDING: usize = 192;
/// Ping numbers of a peer that are remembered, so that a repetition is not answered.
pub const SEEN: usize = 16;
/// What a peer makes us send: so many datagrams at once, then one each.
pub const ANSWERS: (u32, Duration) = (64, MS.saturating_mul(30));
/// How many calls of a peer are followed at once, then one each.
pub const CALLS: (u32, Duration) = (3, SECOND.saturating_mul(5));
/// How often new endpoints, our own or the peer's, make us call again. Behind a symmetric box they
/// are new whenever they are found out.
pub const RECALLS: (u32, Duration) = (4, SECOND.saturating_mul(30));

/// A pair is to have tried all else for so long before it birthday by chance, and longer where peer
/// relays are asked, too.
pub const BIRTHDAY_WAIT: Duration = SECOND;
pub const BIRTHDAY_WAIT_RELAYS: Duration = SECOND.saturating_mul(3);
/// An answer by relay to each step comes within this, or not at all: a stock peer gives none.
pub const BIRTHDAY_ANSWER: Duration = SECOND.saturating_mul(5);
/// How many sockets the one opens whose port varies: with as many, 1,000 calls meet with 0.98
/// (docs/decisions/0013).
pub const BIRTHDAY_SOCKETS: u16 = 256;
/// How long the other calls, at most: 2,400 calls meet with 0.9999.
pub const BIRTHDAY_CALLS: Duration = SECOND.saturating_mul(12);
/// How many calls at once, and how long until the next: 200 a second.
pub const BIRTHDAY_BURST: (u32, Duration) = (5, MS.saturating_mul(25));
/// The sockets are open for so long without a call that birthday them: less than the 30 s for which a
/// box remembers them.
pub const BIRTHDAY_OPEN: Duration = SECOND.saturating_mul(16);
/// A try has ended after so long.
pub const BIRTHDAY_TIMEOUT: Duration = SECOND.saturating_mul(30);
/// From one try to the next with another peer.
pub const BIRTHDAY_REST: Duration = SECOND.saturating_mul(20);
/// From one question without an answer to the next, and the last for all others: the peer may not know
/// yet where it is seen, or be a stock one.
pub const BIRTHDAY_ASKS: [Duration; 3] =
    [SECOND.saturating_mul(20), SECOND.saturating_mul(60), SECOND.saturating_mul(300)];
/// From one try to the next with the same peer, if it was in vain, and if a path was found.
pub const BIRTHDAY_AGAIN: Duration = SECOND.saturating_mul(300);
pub const BIRTHDAY_LOST: Duration = SECOND.saturating_mul(40);
/// A peer that has called so lately is there.
pub const BIRTHDAY_CALLED: Duration = SECOND.saturating_mul(90);
/// A path by an auxiliary socket is kept for so long after something was sent, as it costs a whole
/// try to find another, by pings this far apart: less than boxes remember a flow that was answered.
pub const BIRTHDAY_KEPT: Duration = SECOND.saturating_mul(300);
pub const BIRTHDAY_KEEPALIVE: Duration = SECOND.saturating_mul(20);
/// And is dead so long after a ping that was not answered.
pub const BIRTHDAY_DEAD: Duration = MS.saturating_mul(3500);
