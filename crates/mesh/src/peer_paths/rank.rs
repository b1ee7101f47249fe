//! Comparison of two direct paths (tailscale `wgengine/magicsock` `betterAddr`): points for the
//! difference of latencies in percent, and for the type of the address.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Smaller differences are noise.
const RESOLUTION: Duration = Duration::from_millis(1);
/// The points by which a path in use is preferred. Less than those of IPv6.
const STICKINESS: i64 = 8;

/// The properties of a path for a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub addr: SocketAddr,
    pub latency: Duration,
}

impl Rank {
    /// Returns whether this path should replace the one in use.
    pub(super) fn replaces(self, used: Self, settled: bool) -> bool {
        let ahead = self.points(used) - used.points(self);
        ahead > if settled { STICKINESS } else { 0 }
    }

    fn points(self, other: Self) -> i64 {
        let gain = other.latency.saturating_sub(self.latency);
        let gain = if gain < RESOLUTION {
            0
        } else {
            gain.as_micros() * 100 / other.latency.as_micros().max(1)
        };
        i64::try_from(gain).unwrap_or(100) + bonus(self.addr.ip())
    }
}

fn bonus(ip: IpAddr) -> i64 {
    let (link_local, private) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.is_private()),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.is_unique_local()),
    };
    let near = match (ip.is_loopback(), link_local, private) {
        (true, _, _) => 50,
        (_, true, _) => 30,
        (_, _, true) => 20,
        _ => 0,
    };
    near + if ip.is_ipv6() { 10 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(addr: &str, millis: f64) -> Rank {
        Rank { addr: addr.parse().unwrap(), latency: Duration::from_secs_f64(millis / 1e3) }
    }

    #[test]
    fn faster_nearer_and_ipv6_paths_are_better() {
        let far = rank("203.0.113.1:1", 20.0);
        for (better, worse) in [
            (rank("203.0.113.2:1", 15.0), far),
            (rank("[2001:db8::1]:1", 20.0), far),
            (rank("[2001:db8::1]:1", 20.9), far),
            (rank("192.168.1.2:1", 20.0), far),
            (rank("192.168.1.2:1", 20.0), rank("[2001:db8::1]:1", 20.0)),
            (rank("127.0.0.1:1", 0.1), rank("192.168.1.2:1", 0.2)),
        ] {
            for settled in [false, true] {
                assert!(better.replaces(worse, settled), "{better:?} {worse:?}");
                assert!(!worse.replaces(better, settled), "{better:?} {worse:?}");
            }
        }
    }

    #[test]
    fn settled_path_is_not_replaced_by_a_slightly_better_one() {
        let (used, faster) = (rank("203.0.113.1:1", 20.0), rank("203.0.113.2:1", 18.9));
        assert!(faster.replaces(used, false));
        assert!(!faster.replaces(used, true));
        assert!(!rank("192.168.1.2:1", 0.2).replaces(rank("192.168.1.3:1", 0.9), false));
    }
}
