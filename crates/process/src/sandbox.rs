//! The sandbox of a running peer, and the order in which its parts apply.
//!
//! ```text
//!   TUN, sockets, --user -> start: engine, UAPI, ...       files and capabilities of these threads
//!                           configuration, hooks, nft      the main thread is not confined
//!                        -> enter                          files and capabilities of the main thread
//!                        -> confine_calls                  calls of all threads
//! ```
//!
//! The guardian (`guardian.rs`) executes programs and changes settings of the host when the
//! interface goes down. If the kernel lacks a part of the sandbox, the others are used
//! nevertheless. If it has a part but refuses it, the process exits.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context;
use config::{
    conf::{self, SocketAddress, Transport},
    uapi::Stats,
};
use sys::process::{
    RetainedCapabilities, owns, retain_capabilities,
    sandbox::{
        ALWAYS_READABLE, AccessRules, CallGroups, Enforcement, Ports, confine_calls, confine_files,
    },
};

/// A sandbox; `None` if it is off.
pub(crate) struct Sandbox(Option<Limits>);

/// The files, capabilities and system calls of the process.
struct Limits {
    access: AccessRules,
    capabilities: RetainedCapabilities,
    calls: CallGroups,
}

impl Sandbox {
    pub(crate) fn off() -> Self {
        tracing::info!("the sandbox is off");
        OFF.store(true, Ordering::Relaxed);
        Self(None)
    }

    /// The sandbox of an interface with these sockets. Its mark, port and routes may change at any
    /// time, and its socket files are removed at the end. A helper does both, if present. A
    /// `member` of a tailnet stores its node key.
    pub(crate) fn of_interface<'a>(
        sockets: impl IntoIterator<Item = &'a Path>,
        has_helper: bool,
        member: bool,
    ) -> Self {
        if has_helper {
            let (capabilities, calls) = (
                RetainedCapabilities::default(),
                CallGroups { syncs: member, filters_floods: member, ..CallGroups::default() },
            );
            return Self(Some(Limits { access: access([]), capabilities, calls }));
        }
        let access = access(sockets);
        let capabilities =
            RetainedCapabilities { files: needs_files(&access), ..RetainedCapabilities::default() };
        let calls = CallGroups {
            udp: true,
            unlinks: true,
            syncs: member,
            filters_floods: member,
            ..CallGroups::default()
        };
        Self(Some(Limits { access, capabilities, calls }))
    }

    /// The sandbox of a proxy with these sockets. A helper sets its mark. A `member` of a tailnet
    /// stores its node key.
    pub(crate) fn of_proxy<'a>(
        sockets: impl IntoIterator<Item = &'a Path>,
        interface: &'a conf::Interface,
        stack_of_kernel: bool,
        member: bool,
    ) -> Self {
        let proxy = &interface.proxy;
        let places = proxy.socks.iter().chain(&proxy.http).map(|placed| &placed.value);
        let listeners = places.chain(proxy.forwards.iter().map(|forward| &forward.value.from));
        let listeners = listeners.filter_map(|place| match place {
            SocketAddress::Unix(path) => Some(&**path),
            SocketAddress::Ip(_) => None,
        });
        let mut access = access(sockets.into_iter().chain(listeners));
        let (ports, unix) = exposed(&proxy.exposed);
        let tcp = !ports.is_empty();
        // The process connects sockets of the namespace to any address that clients request.
        access.connect = if stack_of_kernel { Ports::Any } else { Ports::Only(ports) };
        let capabilities =
            RetainedCapabilities { network: false, files: unix || needs_files(&access) };
        let always = CallGroups {
            udp: true,
            streams: true,
            unlinks: true,
            syncs: member,
            filters_floods: member,
            ..CallGroups::default()
        };
        let calls = CallGroups { tcp, unix, splice: stack_of_kernel, ..always };
        Self(Some(Limits { access, capabilities, calls }))
    }

    /// Starts threads that are confined to these files and capabilities, like all threads that
    /// they start. The calling thread is not confined yet.
    ///
    /// # Errors
    /// The threads could not be started or not be confined.
    pub(crate) fn start<T: Send>(
        &self,
        threads: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let Some(limits) = &self.0 else { return threads() };
        let confined = || {
            limits.apply()?;
            threads()
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("start".into()).spawn_scoped(scope, confined);
            thread
                .context("threads")?
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Confines this thread, and threads that it starts, to these files and capabilities.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn enter(&self) -> anyhow::Result<()> {
        let Some(limits) = &self.0 else { return Ok(()) };
        log_enforcement("files (landlock)", limits.apply()?);
        Ok(())
    }

    /// Confines all threads to these system calls, after the start.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn confine_calls(&self) -> anyhow::Result<()> {
        let Some(limits) = &self.0 else { return Ok(()) };
        log_enforcement("system calls (seccomp)", confine_calls(limits.calls).context(REFUSED)?);
        Ok(())
    }
}

impl Limits {
    fn apply(&self) -> anyhow::Result<Enforcement> {
        let confined = confine_files(&self.access).context(REFUSED)?;
        retain_capabilities(self.capabilities).context(REFUSED)?;
        Ok(confined)
    }
}

/// Access to the files of every process, and to the folders of these sockets, to remove their
/// files.
fn access<'a>(sockets: impl IntoIterator<Item = &'a Path>) -> AccessRules {
    AccessRules {
        read: ALWAYS_READABLE.map(PathBuf::from).to_vec(),
        write: vec!["/dev/null".into()],
        remove: sockets.into_iter().filter_map(folder).collect(),
        ..AccessRules::default()
    }
}

fn folder(path: &Path) -> Option<PathBuf> {
    path.parent().map(Path::to_owned)
}

/// Whether files must be removed in folders of another user.
fn needs_files(access: &AccessRules) -> bool {
    !access.remove.iter().all(|folder| owns(folder))
}

/// The ports of exposed TCP services on this machine, and whether services at Unix sockets are
/// exposed.
fn exposed(services: &[conf::WithOrigin<conf::Expose>]) -> (Vec<u16>, bool) {
    let services = services.iter().map(|placed| &placed.value);
    let by_tcp: Vec<_> = services.filter(|expose| expose.transport == Transport::Tcp).collect();
    let ports = by_tcp.iter().filter_map(|expose| match expose.to {
        SocketAddress::Ip(to) => Some(to.port()),
        SocketAddress::Unix(_) => None,
    });
    (ports.collect(), by_tcp.iter().any(|expose| matches!(expose.to, SocketAddress::Unix(_))))
}

const REFUSED: &str = "the kernel refused the sandbox (`--sandbox off` runs without it)";

fn log_enforcement(what: &'static str, confined: Enforcement) {
    with_enforced(|parts| parts.push((what, confined)));
    confined.log(what);
}

/// Whether the sandbox of the process is off.
static OFF: AtomicBool = AtomicBool::new(false);
static ENFORCED: Mutex<Vec<(&'static str, Enforcement)>> = Mutex::new(Vec::new());

fn with_enforced<T>(read: impl FnOnce(&mut Vec<(&'static str, Enforcement)>) -> T) -> T {
    read(&mut ENFORCED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds the state of the sandbox to the statistics.
pub(crate) fn describe(stats: &mut Stats) {
    with_enforced(|parts| {
        stats.sandbox.extend(parts.iter().map(|(what, confined)| {
            let state = match confined {
                Enforcement::Full => "wholly",
                Enforcement::Partial => "partly",
                Enforcement::None => "not",
            };
            ((*what).to_owned(), state.to_owned())
        }));
    });
    if OFF.load(Ordering::Relaxed) {
        stats.sandbox_off = Some("disabled by option".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use config::conf::Conf;

    fn limits(lines: &str, stack_of_kernel: bool) -> Limits {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let text = format!("[Interface]\nPrivateKey = {key}\nAddress = 10.0.0.1/24\n{lines}\n");
        let conf = Conf::parse("wg0.conf", &text).unwrap();
        let socket = [Path::new("/run/wireguard/wg0.sock")];
        Sandbox::of_proxy(socket, &conf.interface, stack_of_kernel, false).0.unwrap()
    }

    #[test]
    fn limits_of_a_proxy_depend_on_its_configuration() {
        let port = "Expose = tcp 10.0.0.1:80 -> 127.0.0.1:8003";
        let unix = "Expose = tcp 10.0.0.1:81 -> unix:/run/service/socket";
        let udp = "Expose = udp 10.0.0.1:53 -> 127.0.0.1:5353";
        let none = CallGroups { udp: true, streams: true, unlinks: true, ..CallGroups::default() };
        for (lines, calls, ports) in [
            ("Socks5 = 127.0.0.1:1080", none, vec![]),
            (udp, none, vec![]),
            (port, CallGroups { tcp: true, ..none }, vec![8003]),
            (unix, CallGroups { unix: true, ..none }, vec![]),
            ("FwMark = 7", none, vec![]),
            ("FwMark = off", none, vec![]),
        ] {
            let own = limits(lines, false);
            assert_eq!((own.calls, own.access.connect), (calls, Ports::Only(ports)), "{lines}");
            assert!(!own.capabilities.network, "{lines}");
            let kernels = limits(lines, true);
            let calls = CallGroups { splice: true, ..calls };
            assert_eq!((kernels.calls, kernels.access.connect), (calls, Ports::Any), "{lines}");
        }
        assert!(limits(unix, false).capabilities.files);
    }

    #[test]
    fn interface_with_a_helper_cannot_remove_files_or_use_capabilities() {
        let socket = || [Path::new("/nowhere/at/all.sock")];
        let with = Sandbox::of_interface(socket(), true, false).0.unwrap();
        assert_eq!(
            (with.capabilities, with.calls),
            (RetainedCapabilities::default(), CallGroups::default())
        );
        assert!(with.access.remove.is_empty());
        let without = Sandbox::of_interface(socket(), false, true).0.unwrap();
        assert!(!without.capabilities.network && without.calls.udp && without.calls.unlinks);
        assert_eq!(without.access.remove, [Path::new("/nowhere/at")]);
    }

    #[test]
    fn started_threads_are_confined_unlike_the_calling_thread() {
        let limits = limits("", false);
        let apply = || limits.apply().unwrap();
        if thread::scope(|scope| scope.spawn(apply).join().unwrap()) == Enforcement::None {
            return skips::skip("landlock");
        }
        let opens = || File::open("/etc/passwd").is_ok();
        let sandbox = Sandbox(Some(limits));
        let started = sandbox
            .start(|| Ok([opens(), thread::scope(|scope| scope.spawn(opens).join().unwrap())]));
        assert_eq!(started.unwrap(), [false, false]);
        assert!(opens());
    }

    #[test]
    fn files_can_be_removed_only_in_the_folders_of_sockets() {
        let lines = "Socks5 = unix:/tmp/one/socks\nHttpProxy = unix:/tmp/two/http\n\
                     Forward = tcp unix:/tmp/three/f -> 10.0.0.2:80\nHttpProxy = 127.0.0.1:8080\n\
                     Expose = tcp 10.0.0.1:81 -> unix:/tmp/four/service";
        let access = limits(lines, false).access;
        let folders = ["/run/wireguard", "/tmp/one", "/tmp/two", "/tmp/three"].map(PathBuf::from);
        assert_eq!(access.remove, folders);
    }

    #[test]
    fn file_capability_is_retained_if_a_folder_belongs_to_another_user() {
        let own = std::env::temp_dir().join(format!("linerate-folder-{}", std::process::id()));
        let others = own.join("others");
        std::fs::create_dir_all(&others).unwrap();
        let is_root = std::os::unix::fs::chown(&others, Some(65_534), None).is_ok();
        let others = if is_root { others } else { "/".into() };
        for (folders, needs) in [(vec![&own], false), (vec![&own, &others], true)] {
            let remove = folders.into_iter().cloned().collect();
            assert_eq!(needs_files(&AccessRules { remove, ..AccessRules::default() }), needs);
        }
        std::fs::remove_dir_all(own).unwrap();
    }
}
