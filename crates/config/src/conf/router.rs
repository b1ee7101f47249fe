//! Keys of a router. wg-quick(8) does not have them.
//!
//! ```text
//!  OfferRoutes = 192.168.7.0/24, fd07::/64   networks that peers may reach
//!  Masquerade  = true                        peers appear there with this host's address
//!  ClampMss    = false                       leaves the MSS of TCP unchanged
//!  IpForward   = true                        makes the kernel forward
//! ```

use ipnet::IpNet;

use super::{
    Reason,
    error::Fault,
    lines::{Entries, Key},
    parse::boolean,
};
use crate::value;

/// Forwarding for the peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// The networks behind this host that peers may reach, with host bits zero. If empty, the packet
    /// filter does not restrict peers.
    pub offered: Vec<IpNet>,
    /// Whether forwarded packets of peers get this host's address.
    pub masquerade: bool,
    /// Whether the MSS of TCP is clamped to the path. If `None`, it is if routes are offered.
    pub clamp_mss: Option<bool>,
    /// Whether to turn forwarding on in the kernel.
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

    /// Whether the MSS of TCP is clamped to the path.
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
    fn every_key_is_parsed_and_optional() {
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
    fn offered_routes_clamp_mss_by_default() {
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
    fn invalid_or_ineffective_keys_are_refused_with_their_line() {
        for (lines, error) in [
            ("OfferRoutes = lan", "2: OfferRoutes: \"lan\" is not an IP address or network"),
            ("OfferRoutes = ::/0, 10.0.0.0/33", "2: OfferRoutes: \"10.0.0.0/33\" is not an IP"),
            ("Masquerade = on", "2: Masquerade: \"on\" is not true or false"),
            ("Masquerade = true", "2: Masquerade: this key requires OfferRoutes"),
            ("ClampMss = 1380", "2: ClampMss: \"1380\" is not true or false"),
            ("IpForward = 1", "2: IpForward: \"1\" is not true or false"),
        ] {
            let shown = parse(lines).unwrap_err();
            assert!(shown.starts_with(&format!("wg0.conf:{error}")), "{lines}: {shown}");
        }
    }
}
