//! What a router tells of itself to who asks about its interface: `linerate doctor` looks
//! whether it is so.

use std::{io, net::IpAddr, time::Duration};

use ipnet::IpNet;

use crate::control::Extras;

/// The networks that peers may reach behind this host, and nothing where none are named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers(pub Vec<IpNet>);

impl Extras for Offers {
    fn describe(&self, lines: &mut String) {
        for net in &self.0 {
            lines.push_str(&format!("offers={net}\n"));
        }
    }

    fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        ().ping(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_line() {
        let nets = ["10.0.0.0/8", "::/0"].map(|net| net.parse().unwrap());
        let mut lines = String::new();
        Offers(nets.into()).describe(&mut lines);
        assert_eq!(lines, "offers=10.0.0.0/8\noffers=::/0\n");
    }
}
