//! The checks. Each examines the facts and returns its findings. None queries the system.

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

/// All checks, in the order in which they run.
pub(super) const ALL: &[fn(&Facts) -> Vec<Finding>] = &[
    kernel::faults,
    hardware::reported_faults,
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
