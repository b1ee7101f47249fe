//! The keys of a router, which wg-quick(8) does not have.
//!
//! ```text
//!  OfferRoutes = 192.168.7.0/24, fd07::/64   what peers may reach behind us
//!  Masquerade  = true                        and there they look like this host
//!  ClampMss    = false                       leave the MSS of TCP as it is
//!  IpForward   = true                        have the kernel forward
//! ```

use ipnet::IpNet;

use super::{
    Reason,
    error::Fault,
    lines::{Entries, Key},
    parse::boolean,
};
use crate::value;

/// What is forwarded for the peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// The networks behind this host that peers may reach, host bits zero. Where there
    /// are none, nothing is kept from them.
    pub offered: Vec<IpNet>,
    /// Whether what comes from peers leaves with this host's address.
    pub masquerade: bool,
    /// Whether TCP is held to segments that fit the path; `None` where routes are
    /// offered.
    pub clamp_mss: Option<bool>,
    /// Whether the kernel is told to forward.
    pub ip_forward: bool,
}

impl Router {
    pub(super) fn read(entries: &Entries<'_>) -> Result<Self, Fault> {
        let router = Self {
            offered: entries.list(Key::OfferRoutes, value::network)?,
            masquerade: entries.one(Key::Masquerade, boolean)?.unwrap_or_default(),
            clamp_mss: entries.one(Key::ClampMss, boolean)?,
            ip_forward: entries.one(Key::IpForward, boolean)?.unwrap_or_default(),
        };
        if let Some(entry) = entries.of(Key::Masquerade).next()
            && router.masquerade
            && router.offered.is_empty()
        {
            return Err(entry.fault(Reason::Needs("OfferRoutes")));
        }
        Ok(router)
    }

    /// Whether TCP is held to segments that fit the path.
    pub fn clamps(&self) -> bool {
        self.clamp_mss.unwrap_or(!self.offered.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::Conf;

    fn parse(lines: &str) -> Result<Router, String> {
        let conf = Conf::parse("wg0.conf", &format!("[Interface]\n{lines}\n"));
        conf.map(|conf| conf.interface.router).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read_and_none_has_to_be_there() {
        assert_eq!(parse("MTU = 1420"), Ok(Router::default()));
        let text = "OfferRoutes = 192.168.7.9/24, fd07::/64\nOfferRoutes = 10.0.0.0/8\n\
                    Masquerade = true\nClampMss = false\nIpForward = true";
        let offered = ["192.168.7.0/24", "fd07::/64", "10.0.0.0/8"];
        let router = Router {
            offered: offered.map(|net| net.parse().unwrap()).to_vec(),
            masquerade: true,
            clamp_mss: Some(false),
            ip_forward: true,
        };
        assert_eq!(parse(text), Ok(router));
    }

    #[test]
    fn tcp_is_clamped_where_routes_are_offered_unless_told_otherwise() {
        for (lines, clamps) in [
            ("", false),
            ("OfferRoutes = ::/0", true),
            ("OfferRoutes = ::/0\nClampMss = false", false),
            ("ClampMss = true", true),
        ] {
            assert_eq!(parse(lines).unwrap().clamps(), clamps, "{lines}");
        }
    }

    #[test]
    fn what_is_wrong_or_means_nothing_is_refused_with_its_line() {
        for (lines, error) in [
            ("OfferRoutes = lan", "2: OfferRoutes: \"lan\" is not an IP address or network"),
            ("OfferRoutes = ::/0, 10.0.0.0/33", "2: OfferRoutes: \"10.0.0.0/33\" is not an IP"),
            ("Masquerade = on", "2: Masquerade: \"on\" is not true or false"),
            ("Masquerade = true", "2: Masquerade: this key means nothing without OfferRoutes"),
            ("ClampMss = 1380", "2: ClampMss: \"1380\" is not true or false"),
            ("IpForward = 1", "2: IpForward: \"1\" is not true or false"),
        ] {
            let shown = parse(lines).unwrap_err();
            assert!(shown.starts_with(&format!("wg0.conf:{error}")), "{lines}: {shown}");
        }
    }
}
