//! A coordinator and a relay that mean harm: each gets a line in the status, no process ends or
//! grows, and a tunnel that stands loses no packet.

mod coordinator;
mod relay;
pub mod watched;

use netns::{Certificate, Member, Switch};

use super::double::Double;

/// Two nodes with a direct way, and those that rule over them.
struct Ruled {
    double: Double,
    nodes: [Member; 2],
}

fn ruled() -> Ruled {
    let double = Double::start(&Certificate::new(Switch::coordinator()));
    let nodes = ["one", "other"].map(|name| double.join(name));
    let [one, other] = &nodes;
    one.becomes_direct(other);
    other.becomes_direct(one);
    Ruled { double, nodes }
}
