//! What a process inherits from its caller: open files, environment and arguments.
//!
//! [`discard_inherited`] comes first in `main`. Children start without the caller's files and secrets then,
//! whatever they run as.
#![expect(unsafe_code, reason = "descriptors, environment and arguments as the kernel passes them")]

use std::{
    env,
    ffi::{CStr, OsStr},
    fs, io,
    ops::Range,
    os::{fd::RawFd, unix::ffi::OsStrExt as _},
    slice,
    sync::Mutex,
};

use zeroize::{Zeroize as _, Zeroizing};

use super::{ancestors::fields_after_name, only_thread};

/// Variables that a process and its hooks keep.
const KEPT: [&str; 54] = [
    // The user and the terminal.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "TMPDIR",
    "TERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "LANG",
    "LANGUAGE",
    "TZ",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "SUDO_USER",
    "SUDO_UID",
    "SUDO_GID",
    // For pass(1), gpg(1) and their dialogs.
    "GPG_TTY",
    "GNUPGHOME",
    "SSH_AUTH_SOCK",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS",
    // systemd: its services, its bus.
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "CREDENTIALS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "DBUS_SYSTEM_BUS_ADDRESS",
    // Logs.
    "LOG_LEVEL",
    "RUST_BACKTRACE",
    // Our own settings.
    "LINERATE_AEAD",
    "LINERATE_CHECKSUM",
    "LINERATE_VECTOR",
    // How a coordinator is reached.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    // An allocator's, which children read at their start.
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_TRIM_THRESHOLD_",
];
/// How the names of further kept variables begin: the locale, pass(1), and variables for hooks.
const KEPT_PREFIXES: [&str; 3] = ["LC_", "PASSWORD_STORE_", "WG_"];
/// Descriptors below are standard input, output and error.
const FIRST: RawFd = 3;

/// Inherited descriptors that the arguments name, as `/dev/fd/63`.
static NAMED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Closes all inherited files but standard input, output and error, and wipes all variables of the
/// environment but some: those listed above, and those for which `is_kept` holds. A file that an
/// argument names as `/dev/fd/N` stays open until [`close_argument_files`]. Children do not inherit it.
///
/// # Errors
/// Other threads are running, or /proc is not mounted.
pub fn discard_inherited(is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
    only_thread()?;
    let open = fs::read_dir("/proc/self/fd")?;
    let open = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let open: Vec<RawFd> = open.filter(|&descriptor| descriptor >= FIRST).collect();
    let arguments: Vec<_> = env::args_os().collect();
    for descriptor in open {
        if arguments.iter().any(|argument| names(argument, descriptor)) {
            // SAFETY: it sets a flag of a descriptor, which no code here owns.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
            NAMED.lock().expect("no holder panics").push(descriptor);
        } else {
            // SAFETY: this comes before this process opens anything that stays open, so nothing owns
            // the descriptor. That of the folder is closed already, which is refused.
            unsafe { libc::close(descriptor) };
        }
    }
    wipe_variables(|name| {
        name.to_str().is_none_or(|name| {
            !KEPT.contains(&name)
                && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !is_kept(name)
        })
    });
    Ok(())
}

/// Closes the files that the arguments name, once they were read.
pub fn close_argument_files() {
    for descriptor in NAMED.lock().expect("no holder panics").drain(..) {
        // SAFETY: `discard_inherited` left it open. An open of `/dev/fd/N` makes another descriptor.
        unsafe { libc::close(descriptor) };
    }
}

/// Whether an argument names this descriptor by a path, at its end.
fn names(argument: &OsStr, descriptor: RawFd) -> bool {
    argument.as_bytes().ends_with(format!("/fd/{descriptor}").as_bytes())
}

/// The value of a variable, which is wiped from the environment; `None` if it is not set, or is not
/// UTF-8. In a process with several threads the variable stays.
pub fn take_variable(name: &str) -> Option<Zeroizing<String>> {
    let value = env::var(name).ok().map(Zeroizing::new);
    if only_thread().is_ok() {
        wipe_variables(|it| it == name);
    }
    value
}

/// Removes variables. Overwrites their values in the memory that /proc/PID/environ shows. The caller
/// checked that this thread is the only one.
fn wipe_variables(is_wiped: impl Fn(&OsStr) -> bool) {
    unsafe extern "C" {
        static mut environ: *const *mut libc::c_char;
    }
    let mut wiped = Vec::new();
    // SAFETY: libc sets it, and no other thread exists that would.
    let mut next = unsafe { environ };
    // SAFETY: the list ends with a null pointer (environ(7)), and so does this loop.
    while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: a text ends with a zero byte (environ(7)).
        let len = unsafe { CStr::from_ptr(*text) }.count_bytes();
        // SAFETY: as above. The memory is writable, whether the kernel or setenv(3) made it.
        let bytes = unsafe { slice::from_raw_parts_mut(text.cast::<u8>(), len) };
        if let Some(end) = bytes.iter().position(|&byte| byte == b'=') {
            let (name, value) = bytes.split_at_mut(end);
            let name = OsStr::from_bytes(name);
            if is_wiped(name) {
                // No name can be removed that is empty.
                wiped.extend((end > 0).then(|| name.to_owned()));
                value[1..].zeroize();
            }
        }
        // SAFETY: this was not the end of the list.
        next = unsafe { next.add(1) };
    }
    for name in wiped {
        // SAFETY: this thread is the only one.
        unsafe { env::remove_var(name) };
    }
}

/// The value of the option with one of these names, as `NAME VALUE` or `NAME=VALUE`, which is overwritten
/// by `x`, also in ps(1). `None` if `is_secret` holds for no value. Call it first: reading the arguments
/// makes copies of them.
pub fn take_argument(
    names: &[&str],
    is_secret: impl Fn(&str) -> bool,
) -> Option<Zeroizing<String>> {
    let place = place_of_arguments()?;
    // SAFETY: the kernel keeps this range of the stack mapped and writable, and it holds the
    // arguments' bytes (proc_pid_stat(5)). No reference into it exists: `std` copies an argument.
    let bytes = unsafe { slice::from_raw_parts_mut(place.start as *mut u8, place.len()) };
    let mut is_value = false;
    for argument in bytes.split_mut(|&byte| byte == 0) {
        let text = str::from_utf8(argument).unwrap_or_default();
        let assigned = names.iter().find_map(|name| text.strip_prefix(name)?.strip_prefix('='));
        let value = if is_value { Some(text) } else { assigned };
        is_value = names.contains(&text);
        if let Some(value) = value.filter(|value| is_secret(value)) {
            let (taken, start) = (Zeroizing::new(value.to_owned()), text.len() - value.len());
            argument[start..].fill(b'x');
            return Some(taken);
        }
    }
    None
}

/// The addresses of the arguments' texts.
fn place_of_arguments() -> Option<Range<usize>> {
    // Fields 48 and 49 of proc_pid_stat(5).
    let fields = fields_after_name("self")?;
    let mut fields = fields.split_ascii_whitespace().skip(45);
    let mut address = || fields.next()?.parse().ok();
    Some(address()?..address()?).filter(|place| !place.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_one_descriptor_by_all_of_its_number() {
        for (argument, named) in [
            ("/dev/fd/63", [63].as_slice()),
            ("/proc/self/fd/6", &[6]),
            ("/dev/fd/63/x", &[]),
            ("6", &[]),
        ] {
            let all: Vec<RawFd> =
                (0..100).filter(|number| names(argument.as_ref(), *number)).collect();
            assert_eq!(all, named, "{argument}");
        }
    }
}
