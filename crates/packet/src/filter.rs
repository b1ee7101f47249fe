//! Which packets from peers may enter: rules that accept by protocol, addresses and ports,
//! and nothing else.
//!
//! ```text
//!   Policy --compile--> Rules --.
//!                               v
//!   packet --read--> Flow --> Judge --> accepted?
//!                               |  same flow as the packet before: same verdict
//!                               |  FlowTable: what the rules said of this flow
//!                               |  Rules, on a miss
//!                               `- Begun: replies to what this host began
//! ```
//!
//! The semantics are those of Tailscale's `wgengine/filter`, read in v1.102.5 (file and
//! function in brackets):
//!
//! | packet | verdict |
//! |---|---|
//! | too short for its headers, a length that lies, IP protocol 0 or 255 | dropped (`net/packet/packet.go` `decode4`, `decode6`) |
//! | to a multicast address, or a link-local one but 169.254.169.254 | dropped (`filter.go` `pre`) |
//! | fragment at an offset below 80 bytes, but for the first | dropped (`packet.go` `minFragBlks`; RFC 1858) |
//! | any later fragment | accepted, whatever its destination (`filter.go` `pre`) |
//! | to an address that is not local | dropped (`filter.go` `runIn4`, `runIn6`) |
//! | TCP without SYN, or with SYN and ACK | accepted: a connection begins with its SYN |
//! | TCP SYN | by rule: protocol, addresses, destination port |
//! | UDP, SCTP | accepted where this host began the flow, else by rule |
//! | ICMP error, echo reply | accepted |
//! | other ICMP | by rule: addresses alone, whatever its protocols and ports (`match.go` `matchIPsOnly`) |
//! | open protocol | accepted, and said to be one (Tailscale's own protocol 99, which goes to no host) |
//! | any other protocol | by those rules that name it and every port (`match.go` `matchProtoAndIPsOnlyIfAllPorts`) |
//!
//! Of IPv6 extension headers the fragment header alone is read. Two differences: an IPv4
//! header length below 20 bytes is refused, and ICMP's parameter problem is type 12 (RFC 792),
//! where Tailscale has 18.

mod begun;
mod flow;
mod flow_table;
mod head;
mod intervals;
mod judge;
mod policy;
mod rules;

pub use begun::Begun;
pub use flow::{Flow, Reading};
pub use judge::{Judge, Verdict};
pub use policy::{AddressRange, Destination, Policy, Rule};
pub use rules::Rules;
