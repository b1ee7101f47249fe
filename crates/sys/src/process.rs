//! The process itself: its start in the background, its privileges, its signals, its service
//! manager.
//!
//! The order matters. [`disinherit`] comes first.
//! Everything but waiting for signals happens before any thread is started:
//! [`background`], [`Signals::block`], [`harden`], the sockets and devices,
//! [`Helper::start`](helper::Helper::start), [`drop_privileges`], threads, [`Readiness::ready`].

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

pub use ancestors::{ancestors_arguments, ancestry};
pub(crate) use background::only_thread;
pub use background::{
    BackgroundError, Fork, Readiness, StartError, Starting, background, silence_stderr,
    survive_parent,
};
pub use code::release_code;
pub use heap::{map_large_apart, release_heap};
pub use helper::Helper;
pub use inherited::{close_named, disinherit, take_argument, take_variable};
pub use privileges::{
    OpenFiles, PrivilegesError, Rights, administers_network, become_agent, become_marker,
    become_user, drop_privileges, give, harden, hostname, is_root, keep_rights, limit_memory,
    listener, mark_socket, may_make_in, open_files, own_user, owns, raise_file_limit, rename,
    user_number,
};
pub use service::Service;
pub use signals::{Signal, Signals, end_with_the_reader, unblock_signals, unmask};
pub use syslog::{Syslog, become_stderr, send_by_stderr};
pub use time_slice::request_short_time_slice;

#[cfg(test)]
mod tests;
