//! Whether an interface can have IPv6.

use std::{fmt, fs, path::Path};

use sys::netlink::{Link, Netlink, NetlinkError};

/// The minimum MTU of a link for IPv6, in bytes (RFC 8200, section 5). The kernel removes IPv6
/// from links with a smaller MTU.
pub const IPV6_MTU: u32 = 1280;
/// Folder of the settings of a kernel with IPv6.
const SETTINGS: &str = "/proc/sys/net/ipv6";
/// Setting that disables IPv6 on new interfaces.
const DEFAULT: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// The reason why an interface cannot have IPv6 addresses and routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoIpv6 {
    /// The kernel lacks IPv6 or was booted with `ipv6.disable=1`.
    Kernel,
    /// The interface has this MTU, which is less than [`IPV6_MTU`].
    Mtu(u32),
    /// `net.ipv6.conf.default.disable_ipv6` is 1, as `disable_ipv6` is for a new interface
    /// (Documentation/networking/ip-sysctl.rst).
    Host,
    /// `disable_ipv6` is 1 for the interface of this name only.
    Interface(String),
}

impl NoIpv6 {
    /// The reason for the interface with this index; `None` if it can have IPv6.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn of(netlink: &Netlink, index: u32) -> Result<Option<Self>, NetlinkError> {
        let link = netlink.link(index)?;
        let is_off = || fs::read_to_string(DEFAULT).is_ok_and(|value| value.trim() == "1");
        Ok(link.and_then(|link| Self::of_link(link, Path::new(SETTINGS).exists(), is_off)))
    }

    fn of_link(
        link: Link,
        kernel_has_ipv6: bool,
        is_off_by_default: impl FnOnce() -> bool,
    ) -> Option<Self> {
        match link.disable_ipv6 {
            Some(false) => None,
            Some(true) if is_off_by_default() => Some(Self::Host),
            Some(true) => Some(Self::Interface(link.name)),
            None if kernel_has_ipv6 && link.mtu < IPV6_MTU => Some(Self::Mtu(link.mtu)),
            None => Some(Self::Kernel),
        }
    }
}

impl fmt::Display for NoIpv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("this kernel lacks IPv6"),
            Self::Mtu(mtu) => {
                write!(f, "the interface has an MTU of {mtu}, and IPv6 takes {IPV6_MTU} or more")
            }
            Self::Host => {
                f.write_str("IPv6 is off on this host (net.ipv6.conf.default.disable_ipv6 is 1)")
            }
            Self::Interface(name) => {
                write!(f, "IPv6 is off on this interface (net.ipv6.conf.{name}.disable_ipv6 is 1)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_the_setting_or_mtu_that_disables_ipv6() {
        let reason = |mtu, disable_ipv6, kernel_has_ipv6, is_off_by_default| {
            let name = "wg0".to_owned();
            let link = Link {
                index: 7,
                name,
                mtu,
                up: false,
                is_tun: true,
                ethernet: false,
                bridged: false,
                disable_ipv6,
            };
            let reason = NoIpv6::of_link(link, kernel_has_ipv6, || is_off_by_default);
            reason.map(|reason| reason.to_string()).unwrap_or_default()
        };
        assert_eq!(reason(1420, Some(false), true, true), "");
        assert_eq!(reason(1280, None, false, false), "this kernel lacks IPv6");
        assert_eq!(reason(1200, None, false, false), "this kernel lacks IPv6");
        let small = reason(1279, None, true, false);
        assert_eq!(small, "the interface has an MTU of 1279, and IPv6 takes 1280 or more");
        assert!(reason(1420, Some(true), true, true).contains("conf.default.disable_ipv6 is 1"));
        assert!(reason(1420, Some(true), true, false).contains("conf.wg0.disable_ipv6 is 1"));
    }
}
