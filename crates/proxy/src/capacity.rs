//! How many connections fit into the file descriptors of a process, and each client's share.
//! All numbers are descriptors.
//!
//! ```text
//!   limit | open at the start | reserved | datagrams: a quarter | connections: the rest
//!                               |            where UDP is served
//!                               half: dialling; half: control, metrics, pipes, refusals
//! ```
//!
//! Of the connections, clients here (SOCKS, HTTP, forwards) have three quarters at most,
//! and so have those of the tunnel to all exposed services: the rest is the others'.

use sys::process::OpenFiles;

/// Descriptors that are used at most: more connections are a question of memory.
const MAX_DESCRIPTORS: usize = 65_536;
/// Descriptors for all but connections: 64 clients of the control socket
/// (`MAX_CLIENTS` of `process`), 32 of idle pipes (`splice::KEPT`), some 140 for those that are
/// accepted to be refused, or that make way, and as many again for dialling.
const RESERVED: usize = 480;
/// Clients at most that did not say what they want yet.
const MAX_BEFORE_REQUEST: usize = 1024;

/// Shares of the descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// For all connections.
    pub all: usize,
    /// For clients here at most, and for those of the tunnel.
    pub side: usize,
    /// For one exposed service at most.
    pub service: usize,
    /// For one source at most: a peer, or a host that reaches our listeners.
    pub source: usize,
    /// For clients that did not say what they want yet at most.
    pub before_request: usize,
    /// For each service of datagrams.
    pub datagrams: usize,
    /// For what dials have beside their connections.
    pub dialling: usize,
}

impl Capacity {
    /// Of a process with these files and so many services of datagrams.
    pub fn new(files: OpenFiles, datagram_services: usize) -> Self {
        let OpenFiles { limit, open } = files;
        let left = limit.min(MAX_DESCRIPTORS).saturating_sub(open);
        let reserved = RESERVED.min(left / 4);
        let left = left - reserved;
        let datagrams = if datagram_services == 0 { 0 } else { left / 4 };
        let all = left - datagrams;
        Self {
            all,
            side: all / 4 * 3,
            service: all / 2,
            source: all / 4,
            before_request: (all / 8).min(MAX_BEFORE_REQUEST),
            datagrams: datagrams / datagram_services.max(1),
            dialling: reserved / 2,
        }
    }

    /// Of a program that uses at most half of the descriptors it has left: its own are the
    /// clients, so each connection takes one more of it.
    pub fn of_half(files: OpenFiles) -> Self {
        let OpenFiles { limit, open } = files;
        Self::new(OpenFiles { limit: open + limit.saturating_sub(open) / 2, open }, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_the_reserved_descriptors_at_any_limit() {
        for limit in [64, 256, 1024, 4096, 20_000, 1 << 20] {
            for services in [0, 1, 5] {
                let capacity = Capacity::new(OpenFiles { limit, open: 40 }, services);
                let taken = 40 + capacity.all + services * capacity.datagrams;
                let left = limit.min(MAX_DESCRIPTORS) - taken;
                assert!(left >= 480.min((limit - 40) / 4), "{limit}: {capacity:?}");
                assert!(capacity.dialling <= left / 2);
                assert!(capacity.source < capacity.service && capacity.service < capacity.side);
                assert!(capacity.before_request + capacity.side <= capacity.all, "{capacity:?}");
            }
        }
        let plain = Capacity::new(OpenFiles { limit: 4096, open: 36 }, 0);
        assert_eq!((plain.all, plain.side, plain.service), (3580, 2685, 1790));
        assert_eq!((plain.source, plain.before_request, plain.dialling), (895, 447, 240));
        assert_eq!(Capacity::new(OpenFiles { limit: 10, open: 40 }, 0).all, 0);
    }

    #[test]
    fn half_of_the_remaining_descriptors_is_shared() {
        for (limit, open, all) in
            [(1024, 4, 383), (1024, 512, 192), (1024, 900, 47), (1024, 1024, 0), (10, 40, 0)]
        {
            assert_eq!(Capacity::of_half(OpenFiles { limit, open }).all, all, "{open} of {limit}");
        }
    }
}
