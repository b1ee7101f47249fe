//! Whom the tunnel leads to: what the allowed IPs of its peers say at the moment. The
//! engine drops what is for no peer, and nobody would hear of it.

use std::{io, net::IpAddr, sync::Arc};

use super::identity::Identity;

/// Our addresses in the tunnel, and those behind it.
pub(super) struct Reach {
    own: Arc<Identity>,
    is_allowed: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

impl Reach {
    /// For the stack of this identity. `is_allowed` says whether a peer
    /// takes what is for an address.
    pub fn new(
        own: Arc<Identity>,
        is_allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { own, is_allowed: Box::new(is_allowed) }
    }

    /// Whether there is an address of a family to speak from.
    pub fn has_family(&self, is_v6: bool) -> bool {
        self.own.has_family(is_v6)
    }

    /// The addresses of a name that need not be asked for.
    pub fn addresses_of(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.own.addresses_of(name)
    }

    /// Refuses an address to which nothing leads.
    ///
    /// # Errors
    /// `NetworkUnreachable`.
    pub fn check(&self, to: IpAddr) -> io::Result<()> {
        if self.own.has(to) || (self.is_allowed)(to) {
            return Ok(());
        }
        let why = format!("no peer has {to} among its allowed IPs");
        Err(io::Error::new(io::ErrorKind::NetworkUnreachable, why))
    }
}
