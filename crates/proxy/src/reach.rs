//! Whom the tunnel leads to: what the allowed IPs of its peers say at the moment. The
//! engine drops what is for no peer, and nobody would hear of it.

use std::{io, net::IpAddr};

/// Our addresses in the tunnel, and those behind it.
pub(super) struct Reach {
    own: Vec<IpAddr>,
    is_allowed: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

impl Reach {
    /// For a stack with these addresses of its `own`. `is_allowed` says whether a peer
    /// takes what is for an address.
    pub fn new(
        own: Vec<IpAddr>,
        is_allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { own, is_allowed: Box::new(is_allowed) }
    }

    /// Whether there is an address of a family to speak from.
    pub fn speaks(&self, is_v6: bool) -> bool {
        self.own.iter().any(|address| address.is_ipv6() == is_v6)
    }

    /// Refuses an address to which nothing leads.
    ///
    /// # Errors
    /// `NetworkUnreachable`.
    pub fn check(&self, to: IpAddr) -> io::Result<()> {
        if self.own.contains(&to) || (self.is_allowed)(to) {
            return Ok(());
        }
        let why = format!("no peer has {to} among its allowed IPs");
        Err(io::Error::new(io::ErrorKind::NetworkUnreachable, why))
    }
}
