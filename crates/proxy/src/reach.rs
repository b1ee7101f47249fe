//! Checks whether the tunnel reaches an address: an address of this stack, or one in the current
//! allowed IPs of a peer. The engine drops other packets without an error.

use std::{io, net::IpAddr, sync::Arc};

use super::identity::Identity;

/// The addresses that the tunnel reaches: those of the stack, and those of its peers.
pub(super) struct Reach {
    own: Arc<Identity>,
    is_allowed: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

impl Reach {
    /// `own` is the identity of the stack. `is_allowed` returns whether an address is in the allowed
    /// IPs of a peer.
    pub(crate) fn new(
        own: Arc<Identity>,
        is_allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { own, is_allowed: Box::new(is_allowed) }
    }

    /// Whether the stack has an address of this family.
    pub(crate) fn has_family(&self, is_v6: bool) -> bool {
        self.own.has_family(is_v6)
    }

    /// The addresses of a name that is known without a DNS query.
    pub(crate) fn addresses_of(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.own.addresses_of(name)
    }

    /// Refuses an address that the tunnel does not reach.
    ///
    /// # Errors
    /// `NetworkUnreachable`.
    pub(crate) fn check(&self, to: IpAddr) -> io::Result<()> {
        if self.own.has(to) || (self.is_allowed)(to) {
            return Ok(());
        }
        let why = format!("no peer has {to} among its allowed IPs");
        Err(io::Error::new(io::ErrorKind::NetworkUnreachable, why))
    }
}
