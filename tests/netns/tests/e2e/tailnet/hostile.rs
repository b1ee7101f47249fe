//! A hostile coordinator and a hostile relay: the status shows each attack, no process ends or
//! grows, and an existing tunnel loses no packet.

mod coordinator;
mod relay;
pub(super) mod watched;

use netns::{Certificate, Member, Switch};

use super::double::Double;

/// Two nodes with a direct path, and their hostile servers.
struct Ruled {
    double: Double,
    nodes: [Member; 2],
}

fn ruled() -> Ruled {
    let double = Double::start(&Certificate::new(Switch::coordinator()));
    let nodes = ["one", "other"].map(|name| double.join(name));
    let [one, other] = &nodes;
    one.wait_until_direct(other);
    other.wait_until_direct(one);
    Ruled { double, nodes }
}
