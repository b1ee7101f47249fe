//! Two hosts, on one cable or with an emulated link between them.

use netns::{Addresses, Host, PORT, Pair, Program, Side, cable};

use super::Server;

/// The link of `crate::link`, on a host of its own.
pub(super) struct EmulatedLink {
    relay: Option<Server>,
    host: Host,
}

/// Starts a daemon in each of two hosts that do not know each other yet; `link` in the words of
/// `Shape::parse`.
pub(super) fn start(program: &Program, link: Option<&str>) -> (Pair, Option<EmulatedLink>) {
    let program = || program.clone();
    let Some(shape) = link else { return (Pair::start(program(), program()), None) };
    let (left, middle, right) = (Host::new("left"), Host::new("link"), Host::new("right"));
    for (number, end, device) in [(1, &left, "l1"), (2, &right, "l2")] {
        cable(end, "eth0", &middle, device, 1500);
        Addresses::new(number, number).assign(end, "eth0");
        Addresses::new(number, LINK).assign(&middle, device);
    }
    let pair = Pair {
        // Each calls the other by the link's address on its own cable.
        left: Side::start(left, program(), 1, Addresses::new(2, LINK)),
        right: Side::start(right, program(), 2, Addresses::new(1, LINK)),
    };
    let mut link = EmulatedLink { relay: None, host: middle };
    link.reshape(shape);
    (pair, Some(link))
}

/// The last byte of the link's addresses.
const LINK: u8 = 254;

impl EmulatedLink {
    /// From now on it is of this shape; what is on the way is lost.
    pub(super) fn reshape(&mut self, shape: &str) {
        self.relay = None;
        let (left, right) = (format!("10.1.0.{LINK}:{PORT}"), format!("10.2.0.{LINK}:{PORT}"));
        let daemons = [format!("10.1.0.1:{PORT}"), format!("10.2.0.2:{PORT}")];
        let arguments = ["link", shape, &left, &daemons[0], &right, &daemons[1]];
        self.relay = Some(Server::start(&self.host, &arguments, PORT));
    }
}
