//! Divides the file descriptors of a process among its connections.
//! All numbers are descriptors.
//!
//! ```text
//!   limit | open at the start | reserved | datagrams: a quarter | connections: the rest
//!                               |            if UDP is served
//!                               half: dialling; half: control, metrics, pipes, refusals
//! ```
//!
//! The clients on this side (SOCKS, HTTP, forwards) can use at most three quarters of the connections.
//! The same holds for the clients in the tunnel (exposed services). So a quarter is left for the
//! other side.

use sys::process::OpenFiles;

/// The maximum number of descriptors: memory limits more connections.
const MAX_DESCRIPTORS: usize = 65_536;
/// Descriptors that are not for connections: 64 for clients of the control socket (`MAX_CLIENTS` of
/// `process`), 32 for idle pipes (`splice::MAX_IDLE_PIPES`), about 140 for connections that are being
/// refused or evicted, and 240 for dialling.
const RESERVED: usize = 480;
/// The maximum number of clients that have not sent a request yet.
const MAX_BEFORE_REQUEST: usize = 1024;

/// Shares of the descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// For all connections.
    pub all: usize,
    /// The maximum for the clients on this side, and for the clients in the tunnel.
    pub side: usize,
    /// The maximum for one exposed service.
    pub service: usize,
    /// The maximum for one source: a peer, or a host that connects to our listeners.
    pub source: usize,
    /// The maximum for clients that have not sent a request yet.
    pub before_request: usize,
    /// The maximum for each UDP service.
    pub datagrams: usize,
    /// For dials, in addition to their connections.
    pub dialling: usize,
}

impl Capacity {
    /// The shares of a process with these files and this number of UDP services.
    pub(crate) fn new(files: OpenFiles, datagram_services: usize) -> Self {
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

    /// The shares of a program that must keep half of its free descriptors: its own connections are
    /// the clients, and each needs a second descriptor there.
    pub(crate) fn of_half(files: OpenFiles) -> Self {
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
