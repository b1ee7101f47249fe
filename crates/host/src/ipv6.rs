//! Whether an interface can have IPv6.

use std::fmt;

use sys::netlink::{Netlink, NetlinkError};

/// Why an interface cannot have IPv6 addresses and routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoIpv6 {
    /// The kernel lacks IPv6, or was started with `ipv6.disable=1`.
    Kernel,
    /// `disable_ipv6` of the interface is 1, as `net.ipv6.conf.default.disable_ipv6` is for a new
    /// one (Documentation/networking/ip-sysctl.rst).
    Switch,
}

impl NoIpv6 {
    /// The reason for the interface with this index; `None` if it can have IPv6.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn of(netlink: &Netlink, index: u32) -> Result<Option<Self>, NetlinkError> {
        let Some(link) = netlink.link(index)? else { return Ok(None) };
        Ok(match link.disable_ipv6 {
            None => Some(Self::Kernel),
            Some(true) => Some(Self::Switch),
            Some(false) => None,
        })
    }
}

impl fmt::Display for NoIpv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "this kernel has no IPv6",
            Self::Switch => "IPv6 is off on this host (net.ipv6.conf.default.disable_ipv6 is 1)",
        })
    }
}
