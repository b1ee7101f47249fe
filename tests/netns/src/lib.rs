//! Hosts, cables and WireGuard peers on one machine, for the demo, the end-to-end tests and the bench.
//!
//! ```text
//!  test process
//!    |  nsenter                       each Host: its own network, mount and pid namespace
//!    |                                /run (and /run/wireguard) is a private tmpfs
//!    +---- Host a [ Daemon wg0 ] eth0 ---- cable ---- eth0 [ Daemon wg0 ] Host b
//!    |       pid 1 reads a pipe from the test process
//!    +------ pipe
//! ```
//!
//! Names only exist inside the namespaces, so runs do not interfere and no cleanup is necessary:
//! when the test process ends, by return, panic, ctrl-C or SIGKILL, the pipe closes, pid 1 of each
//! host ends, and the kernel ends its processes and removes its namespaces and files.
//!
//! Making hosts needs root or a user namespace; `tests/netns/run COMMAND` provides either.

#![forbid(unsafe_code)]

mod background;
mod cable;
mod capture;
mod command;
mod counter;
mod daemon;
mod datagrams;
mod drops;
mod flood;
mod guest;
mod host;
mod implementation;
#[cfg(target_arch = "x86_64")]
mod inject;
mod inside;
mod names;
mod overlay;
mod pair;
mod pattern;
mod processes;
mod quick;
mod service;
mod show;
mod stream;
mod table;
mod tailnet;
mod traffic;
mod wait;
mod wg;

pub use background::in_background;
pub use cable::{address, cable, forward, wait_until_local};
pub use capture::message::Message;
pub use capture::split::{Layout, is_sound, split};
pub use capture::{Capture, Direction, Frame};
pub use command::{linerate, logged};
pub use counter::Counter;
pub use daemon::Daemon;
pub use datagrams::{Arrived, Datagrams, Train};
pub use flood::{Flood, burst};
pub use guest::Guest;
pub use host::{AS_NOBODY, Host, Outcome, lacks_users};
pub use implementation::{Implementation, Program, example, peer};
#[cfg(target_arch = "x86_64")]
pub use inject::{Arguments, Injected};
pub use names::serve_names;
pub use overlay::{OVERLAY, has_vxlan, overlay};
pub use pair::{Addresses, Family, INTERFACE, Introduction, PORT, Pair, Side, configure};
pub use pattern::{Pattern, Random};
pub use processes::{Memory, Processes, Watch};
pub use quick::{conf, newer_wg_quick, openresolv, wg_quick};
pub use service::Service;
pub use show::{ShowOutput, forced_off};
pub use skips::skip;
pub use stream::{Carried, Pace, Stream};
pub use table::{Style, Table, escape};
pub use tailnet::{
    Certificate, Coordinator, CoordinatorKind, Lan, Mapping, Member, MemberKind, MemberProgram,
    Nat, Page, Path, PortMapper, Provider, Switch, Tailnet, Uplink, accept_udp, drop_udp, own_etc,
};
pub use traffic::{Iperf, IperfRun, Ping, Pinging, Rate, median, ping};
pub use wait::{Stopwatch, announce, deadline, eventually};
pub use wg::{Key, PeerStatus, Status, base64, preshared_key};
