//! The packet filter of an interface: one nftables table with the rules of a full tunnel and a
//! router.

mod full_tunnel;

use config::conf::Router;
use ipnet::IpNet;
use sys::netlink::FwMark;

use crate::{
    nft::Ruleset,
    router,
    undo_log::{Undo, UndoLog},
};

/// The settings of an interface's packet filter.
#[derive(Debug)]
pub struct PacketFilter<'a> {
    pub interface: &'a str,
    pub addresses: &'a [IpNet],
    pub router: &'a Router,
    /// The mark of the outer datagrams if the tunnel is a full tunnel.
    pub mark: Option<FwMark>,
}

impl PacketFilter<'_> {
    /// Sets the filter atomically.
    ///
    /// # Errors
    /// The rules of a router could not be set. If those of a full tunnel could not be set, a
    /// warning is logged, because the tunnel works without them.
    pub fn set(&self, log: &mut UndoLog) -> anyhow::Result<()> {
        let mut rules = Ruleset::new(self.interface);
        router::add_rules(&mut rules, self.interface, self.router);
        let is_router = !rules.is_empty();
        if let Some(mark) = self.mark {
            full_tunnel::add_rules(&mut rules, self.interface, self.addresses, mark);
        }
        if rules.is_empty() {
            return Ok(());
        }
        log.record(Undo::Table)?;
        let Err(error) = rules.apply() else { return Ok(()) };
        log.remove_last()?;
        // The rules of a router are required: they protect the networks that are not offered to
        // peers.
        if is_router {
            return Err(error);
        }
        tracing::warn!("no packet filter for the full tunnel: {error:#}");
        Ok(())
    }
}
