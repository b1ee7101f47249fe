//! The packet filter of an interface: one nftables table for a full tunnel and for a router.

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
    /// The mark of our datagrams where there is a full tunnel.
    pub mark: Option<FwMark>,
}

impl PacketFilter<'_> {
    /// Sets it: all or nothing.
    ///
    /// # Errors
    /// A router's rules could not be set. A tunnel works without its own, which is a warning.
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
        // The networks that a router withholds from peers are not optional.
        if is_router {
            return Err(error);
        }
        tracing::warn!("no packet filter for the full tunnel: {error:#}");
        Ok(())
    }
}
