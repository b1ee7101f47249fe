//! Decides which packets from peers may enter. The rules accept by protocol, addresses and ports,
//! and everything else is dropped.
//!
//! ```text
//!   Policy --compile--> Rules --.
//!                               v
//!   packet --read--> Flow --> Judge --> accepted?
//!                               |  same flow as the packet before: same verdict
//!                               |  FlowTable: cached verdict of the rules on this flow
//!                               |  Rules, on a miss
//!                               `- OpenedFlows: replies to flows that this host opened
//! ```
//!
//! The semantics are those of Tailscale's `wgengine/filter`, read in v1.102.5 (file and function in
//! brackets):
//!
//! | packet | verdict |
//! |---|---|
//! | too short for its headers, a wrong length, IP protocol 0 or 255 | dropped (`net/packet/packet.go` `decode4`, `decode6`) |
//! | to a multicast address, or a link-local one other than 169.254.169.254 | dropped (`filter.go` `pre`) |
//! | later fragment at an offset below 80 bytes | dropped (`packet.go` `minFragBlks`; RFC 1858) |
//! | any other later fragment | accepted for any destination (`filter.go` `pre`) |
//! | to an address that is not local | dropped (`filter.go` `runIn4`, `runIn6`) |
//! | TCP without SYN, or with SYN and ACK | accepted: a connection begins with its SYN |
//! | TCP SYN | by rule: protocol, addresses, destination port |
//! | UDP, SCTP | accepted if this host opened the flow, else by rule |
//! | ICMP error, echo reply | accepted |
//! | other ICMP | by rule: addresses only; protocols and ports of the rule are ignored (`match.go` `matchIPsOnly`) |
//! | open protocol | accepted and reported as open (Tailscale's own protocol 99, which is not delivered to the host) |
//! | any other protocol | by rules that name it and allow every port (`match.go` `matchProtoAndIPsOnlyIfAllPorts`) |
//!
//! The fragment header is the only IPv6 extension header that is read. There are two differences to
//! Tailscale: an IPv4 header length below 20 bytes is refused, and ICMP's parameter problem is type
//! 12 (RFC 792); Tailscale has 18.

mod flow;
mod flow_table;
mod head;
mod intervals;
mod judge;
mod opened_flows;
mod policy;
mod rules;

pub use flow::{Flow, Reading};
pub use judge::{Judge, Verdict};
pub use opened_flows::OpenedFlows;
pub use policy::{AddressRange, Destination, Policy, Rule};
pub use rules::{Rules, merged_ranges};
