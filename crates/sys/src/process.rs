//! The process itself: its start in the background, privileges, sandbox, signals and service
//! manager.
//!
//! The order matters: [`discard_inherited`], [`background`], [`Signals::block`], [`harden`],
//! sockets and devices, [`Helper::start`](helper::Helper::start), [`drop_privileges`], threads,
//! [`Readiness::ready`].

mod ancestors;
mod background;
mod code;
mod heap;
pub mod helper;
mod inherited;
mod privileges;
pub mod sandbox;
mod service;
mod signals;
mod syslog;
mod time_slice;
mod version;

pub use ancestors::{ancestor_arguments, ancestor_pids};
pub(crate) use background::only_thread;
pub use background::{
    BackgroundError, Fork, Readiness, StartError, Starting, background, silence_stderr,
    survive_parent,
};
pub use code::release_code;
pub use heap::{pin_mmap_threshold, release_heap};
pub use helper::Helper;
pub use inherited::{close_argument_files, discard_inherited, take_argument, take_variable};
pub use privileges::{
    OpenFiles, PrivilegesError, RetainedCapabilities, become_agent, become_user, can_create_in,
    change_owner, drop_privileges, effective_user, harden, has_network_capabilities, hostname,
    is_root, limit_memory, listener_pid, mark_socket, open_files, owns, raise_file_limit,
    retain_capabilities, retain_mark_capability, set_process_name, user_id,
};
pub use service::Service;
pub use signals::{Signal, Signals, end_on_broken_pipe, unblock_signals, unmask};
pub use syslog::{Syslog, redirect_stderr, send_to_stderr};
pub use time_slice::request_short_time_slice;
pub use version::long_version;

#[cfg(test)]
mod tests;
