//! Whether an interface can have IPv6.

use std::{fmt, fs, path::Path};

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
    /// The reason for an interface of this network namespace; `None` if it can have IPv6.
    pub fn of(interface: &str) -> Option<Self> {
        Self::by(Path::new("/proc"), interface)
    }

    fn by(proc: &Path, interface: &str) -> Option<Self> {
        let switch = proc.join("sys/net/ipv6/conf").join(interface).join("disable_ipv6");
        match fs::read_to_string(switch) {
            Ok(value) => (value.trim() == "1").then_some(Self::Switch),
            Err(_) => (!proc.join("net/if_inet6").exists()).then_some(Self::Kernel),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_ipv6_has_neither_the_switch_nor_a_list_of_addresses() {
        let proc = std::env::temp_dir().join(format!("linerate-ipv6-{}", std::process::id()));
        let conf = proc.join("sys/net/ipv6/conf/wg0");
        fs::create_dir_all(proc.join("net")).unwrap();
        assert_eq!(NoIpv6::by(&proc, "wg0"), Some(NoIpv6::Kernel));
        fs::write(proc.join("net/if_inet6"), "").unwrap();
        assert_eq!(NoIpv6::by(&proc, "wg0"), None, "its settings are hidden");
        fs::create_dir_all(&conf).unwrap();
        for (value, wanted) in [("0\n", None), ("1\n", Some(NoIpv6::Switch))] {
            fs::write(conf.join("disable_ipv6"), value).unwrap();
            assert_eq!(NoIpv6::by(&proc, "wg0"), wanted);
        }
        fs::remove_dir_all(&proc).unwrap();
    }
}
