//! Open files, environment and arguments that a process inherits from its caller.
//!
//! `main` first calls [`discard_inherited`], so that child processes of any user start without the
//! caller's files and secrets.
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

/// Environment variables that are retained for this process and its hooks.
const RETAINED: [&str; 54] = [
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
    // The services and the bus of systemd.
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
    // The way to a coordinator.
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
    // Settings of an allocator, which children read at their start.
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_TRIM_THRESHOLD_",
];
/// Prefixes of further retained variables: the locale, pass(1), and variables for hooks.
const RETAINED_PREFIXES: [&str; 3] = ["LC_", "PASSWORD_STORE_", "WG_"];
/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;

/// Inherited descriptors that are in the arguments, such as `/dev/fd/63`.
static ARGUMENT_FILES: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Closes all inherited files except standard input, output and error. Wipes all environment
/// variables except those listed above and those for which `is_retained` holds. If `/dev/fd/N` is
/// in the arguments, the file stays open until [`close_argument_files`], but children do not
/// inherit it.
///
/// # Errors
/// Other threads are running, or /proc is not mounted.
pub fn discard_inherited(is_retained: impl Fn(&str) -> bool) -> io::Result<()> {
    only_thread()?;
    let open = fs::read_dir("/proc/self/fd")?;
    let open = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let open: Vec<RawFd> = open.filter(|&descriptor| descriptor >= FIRST).collect();
    let arguments: Vec<_> = env::args_os().collect();
    for descriptor in open {
        if arguments.iter().any(|argument| has_descriptor(argument, descriptor)) {
            // SAFETY: this sets a flag of a descriptor that is not owned by code in this process.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
            ARGUMENT_FILES.lock().expect("no holder panics").push(descriptor);
        } else {
            // SAFETY: this process has not opened files yet that stay open, so the descriptor is
            // not owned. That of the folder is closed already, so closing it fails.
            unsafe { libc::close(descriptor) };
        }
    }
    wipe_variables(|name| {
        name.to_str().is_none_or(|name| {
            !RETAINED.contains(&name)
                && !RETAINED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !is_retained(name)
        })
    });
    Ok(())
}

/// Closes the files in the arguments after they were read.
pub fn close_argument_files() {
    for descriptor in ARGUMENT_FILES.lock().expect("no holder panics").drain(..) {
        // SAFETY: `discard_inherited` left it open. Opening `/dev/fd/N` creates another
        // descriptor.
        unsafe { libc::close(descriptor) };
    }
}

/// Whether an argument ends with the path of this descriptor.
fn has_descriptor(argument: &OsStr, descriptor: RawFd) -> bool {
    argument.as_bytes().ends_with(format!("/fd/{descriptor}").as_bytes())
}

/// Returns a variable's value, and wipes it from the environment. `None` if it is not set or not
/// UTF-8. In a process with several threads the variable stays.
pub fn take_variable(name: &str) -> Option<Zeroizing<String>> {
    let value = env::var(name).ok().map(Zeroizing::new);
    if only_thread().is_ok() {
        wipe_variables(|it| it == name);
    }
    value
}

/// Removes variables, and overwrites their values in the memory that /proc/PID/environ shows. The
/// caller has checked that this is the only thread.
fn wipe_variables(is_wiped: impl Fn(&OsStr) -> bool) {
    unsafe extern "C" {
        static mut environ: *const *mut libc::c_char;
    }
    let mut wiped = Vec::new();
    // SAFETY: only libc sets it, and this is the only thread.
    let mut next = unsafe { environ };
    // SAFETY: the list ends with a null pointer (environ(7)), which ends this loop.
    while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: a text ends with a zero byte (environ(7)).
        let len = unsafe { CStr::from_ptr(*text) }.count_bytes();
        // SAFETY: as above. The memory is writable, both from the kernel and from setenv(3).
        let bytes = unsafe { slice::from_raw_parts_mut(text.cast::<u8>(), len) };
        if let Some(end) = bytes.iter().position(|&byte| byte == b'=') {
            let (name, value) = bytes.split_at_mut(end);
            let name = OsStr::from_bytes(name);
            if is_wiped(name) {
                // An empty name cannot be removed.
                wiped.extend((end > 0).then(|| name.to_owned()));
                value[1..].zeroize();
            }
        }
        // SAFETY: the loop has not reached the end of the list.
        next = unsafe { next.add(1) };
    }
    for name in wiped {
        // SAFETY: this is the only thread.
        unsafe { env::remove_var(name) };
    }
}

/// Returns the value of an option with one of these names, `NAME VALUE` or `NAME=VALUE`, and
/// overwrites it by `x`, also in ps(1). `None` if `is_secret` is false for all values. Call it
/// first, because reading the arguments copies them.
pub fn take_argument(
    names: &[&str],
    is_secret: impl Fn(&str) -> bool,
) -> Option<Zeroizing<String>> {
    let place = argument_range()?;
    // SAFETY: the kernel keeps this range of the stack mapped and writable, and it contains the
    // bytes of the arguments (proc_pid_stat(5)). Rust code has no references into it, as `std`
    // copies arguments.
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

/// The address range of the arguments.
fn argument_range() -> Option<Range<usize>> {
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
    fn descriptor_in_an_argument_is_matched_by_its_whole_number() {
        for (argument, named) in [
            ("/dev/fd/63", [63].as_slice()),
            ("/proc/self/fd/6", &[6]),
            ("/dev/fd/63/x", &[]),
            ("6", &[]),
        ] {
            let all: Vec<RawFd> =
                (0..100).filter(|number| has_descriptor(argument.as_ref(), *number)).collect();
            assert_eq!(all, named, "{argument}");
        }
    }
}
