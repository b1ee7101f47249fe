//! A box that maps ports on request, by the real miniupnpd.

use crate::host::Host;
use crate::service::Service;

const PROGRAM: &str = "miniupnpd";

/// Chains that miniupnpd changes. `ct status dnat` allows mapped packets through the box's own
/// filter.
const TABLE: &str = "
table inet mapped {
  chain forward { }
  chain prerouting {
    type nat hook prerouting priority dstnat
    jump leads
  }
  chain leads { }
  chain postrouting { }
}
";

/// NAT-PMP starts with a 0, PCP with a 2.
const WITHOUT_PCP: &str = "
table inet without_pcp {
  chain in {
    type filter hook input priority filter
    iifname lan udp dport 5351 @th,64,8 2 drop
  }
}
";

/// The protocols of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// PCP and NAT-PMP.
    Pcp,
    /// Only NAT-PMP; PCP requests are dropped.
    NatPmp,
    /// Only UPnP.
    Upnp,
}

/// A box with a miniupnpd.
pub struct PortMapper {
    router: Host,
    /// The external address of its mappings.
    pub external: String,
    mapping: Mapping,
    service: Option<Service>,
}

impl PortMapper {
    /// Whether it is not installed; then a test is skipped, which is announced.
    pub fn is_missing() -> bool {
        let found = std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).exists())
        });
        if !found {
            skips::skip(PROGRAM);
        }
        !found
    }

    /// Starts one with this address, on a box with the devices `lan` and `wan`.
    pub(super) fn start(router: Host, external: String, mapping: Mapping) -> Self {
        let tables = if mapping == Mapping::NatPmp { [TABLE, WITHOUT_PCP] } else { [TABLE, ""] };
        let tables = router.write("mapped.nft", &tables.concat());
        router.run(format!("nft -f {tables}"));
        let is_upnp = mapping == Mapping::Upnp;
        let [upnp, others] = [is_upnp, !is_upnp].map(|is_on| if is_on { "yes" } else { "no" });
        router.write(
            "miniupnpd.conf",
            &format!(
                "ext_ifname=wan\next_ip={external}\nlistening_ip=lan\nenable_natpmp={others}\n\
                 enable_upnp={upnp}\nhttp_port=5000\nsecure_mode=yes\nsystem_uptime=no\n\
                 uuid=00000000-0000-0000-0000-000000000000\n\
                 upnp_table_name=mapped\nupnp_nat_table_name=mapped\nupnp_forward_chain=forward\n\
                 upnp_nat_chain=leads\nupnp_nat_postrouting_chain=postrouting\n\
                 allow 1024-65535 0.0.0.0/0 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
            ),
        );
        let mut mapper = Self { router, external, mapping, service: None };
        mapper.serve();
        mapper
    }

    fn serve(&mut self) {
        let words = "miniupnpd -d -P /run/rig/its-own.pid -f /run/rig/miniupnpd.conf";
        let router = self.router.clone();
        let port = if self.mapping == Mapping::Upnp { "1900" } else { "5351" };
        let is_there = move || router.run(format!("ss -Hlun sport = :{port}")).contains(port);
        self.service =
            Some(Service::start(&self.router, PROGRAM, words.split(' ')).wait_until(is_there));
    }

    /// Kills it and starts it again without its mappings, as after a power cut.
    pub fn restart(&mut self) {
        self.service = None;
        self.router.run("rm /run/rig/miniupnpd.pid");
        for chain in ["forward", "leads", "postrouting"] {
            self.router.run(format!("nft flush chain inet mapped {chain}"));
        }
        self.serve();
    }

    /// The rules of its mappings.
    pub fn mapped(&self) -> Vec<String> {
        let rules = self.router.run("nft list chain inet mapped leads");
        rules.lines().filter(|line| line.contains("dnat")).map(|line| line.trim().into()).collect()
    }
}
