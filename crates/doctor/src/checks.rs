//! The checks: each looks at the facts and tells what it found. None asks the system.

mod clock;
mod forwarding;
mod hardware;
mod interfaces;
mod kernel;
mod lost_changes;
mod member;
mod path;
mod reach;
mod socket;

use super::{Facts, Finding};

/// All checks.
pub(super) const ALL: &[fn(&Facts) -> Vec<Finding>] = &[
    kernel::known_bad,
    hardware::known,
    kernel::refused_offloads,
    interfaces::receive_offload,
    interfaces::checksum,
    interfaces::udp_forwarding,
    interfaces::segmentation,
    socket::receive_buffer,
    socket::send_buffer,
    socket::overflow,
    socket::demotions,
    forwarding::reverse_path,
    forwarding::half_forwarding,
    forwarding::offered,
    forwarding::filtered,
    forwarding::conntrack,
    lost_changes::undone,
    path::too_long,
    path::unused,
    clock::wrong,
    member::state,
    member::health,
    member::relayed,
    reach::port,
    reach::loops,
    reach::silent_peers,
];
