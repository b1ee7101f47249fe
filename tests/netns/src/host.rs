//! A host: one network, mount and pid namespace, which its pid 1 keeps open.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

/// Script of a host's pid 1: it mounts the file systems, prints its pid, and waits for the pipe to
/// close. It is bash because bash reaps the daemons that outlive their parents.
///
/// The pid is read before the new /proc is mounted, so that it is the pid that the test process
/// sees. resolv.conf is private, so that `DNS =` never changes the machine's own. TCP uses Linux's
/// default, CUBIC, because BBR, which paces by its own estimate, would give other figures.
const INIT: &str = r#"
set -e
read -r pid _ </proc/self/stat
resolv=$(readlink -f /etc/resolv.conf || true)
mount -t proc proc /proc
mount -t sysfs sysfs /sys 2>/dev/null || true
mount -t tmpfs -o mode=0755 tmpfs /run
[ /var/run -ef /run ] || mount --bind /run /var/run
mkdir -p /run/rig/bin /run/lock
: >/run/rig/resolv.conf
case "$resolv" in
  /run/*) mkdir -p "${resolv%/*}" && ln -s /run/rig/resolv.conf "$resolv" ;;
  *) [ ! -e "$resolv" ] || mount --bind /run/rig/resolv.conf "$resolv" ;;
esac
ip link set lo up
echo cubic 2>/dev/null >/proc/sys/net/ipv4/tcp_congestion_control || true
# Addresses serve at once and do not change later: no IPv6 address is tentative for a while.
for of in all default; do echo 0 >/proc/sys/net/ipv6/conf/$of/accept_dad; done
# A new namespace has what this machine has, which may forward for its containers.
echo 0 >/proc/sys/net/ipv4/ip_forward
echo "$pid"
read -r || true
"#;

/// Seconds after which a command in a host is ended; only a hanging command reaches it.
const COMMAND_LIMIT: &str = "90";

/// A host of the rig; it ends when the last clone is dropped.
#[derive(Clone)]
pub struct Host(Arc<Namespaces>);

struct Namespaces {
    name: String,
    holder: Child,
    pid: u32,
}

/// Result of a command in a host.
#[derive(Debug)]
pub struct Outcome {
    /// Whether it exited with status 0.
    pub ok: bool,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Host {
    /// A host with no link except `lo`. The name is only used in messages.
    pub fn new(name: &str) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--", "bash", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare and bash are installed (make deps)");
        let mut first = String::new();
        let stdout = holder.stdout.take().expect("stdout is piped");
        let printed = BufReader::new(stdout).read_line(&mut first);
        let pid = printed.ok().and_then(|_| first.trim().parse().ok());
        let pid = pid.unwrap_or_else(|| {
            panic!("cannot make the namespaces of host {name}: run this through tests/netns/run")
        });
        Self(Arc::new(Namespaces { name: name.to_owned(), holder, pid }))
    }

    /// The name given to `new`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The host's pid 1, as seen by this process.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// A command that runs inside, in the working directory `/`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.0.pid));
        command.args(["--net", "--mount", "--pid", "--"]).arg(program);
        command
    }

    /// Runs a shell line inside and returns the result.
    pub fn attempt(&self, line: impl AsRef<str>) -> Outcome {
        let output = self
            .command("timeout")
            .args(["--kill-after=2", COMMAND_LIMIT, "bash", "-c", line.as_ref()])
            .stdin(Stdio::null())
            .output()
            .expect("nsenter is installed (make deps)");
        Outcome::from(output)
    }

    /// Runs a shell line inside and returns its output.
    ///
    /// # Panics
    /// If it fails; use [`Host::attempt`] for a command that may fail.
    pub fn run(&self, line: impl AsRef<str>) -> String {
        let line = line.as_ref();
        let outcome = self.attempt(line);
        assert!(
            outcome.ok,
            "on {}: `{line}` failed\n{}{}",
            self.0.name, outcome.stdout, outcome.stderr
        );
        outcome.stdout
    }

    /// The path of a host's file for this process, from its absolute path inside.
    pub fn outside(&self, inside: impl AsRef<Path>) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.0.pid));
        let inside = inside.as_ref();
        root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Writes a file that is removed with the host; returns its path inside.
    pub fn write(&self, name: &str, text: &str) -> String {
        let inside = format!("/run/rig/{name}");
        fs::write(self.outside(&inside), text).expect("the host's /run/rig is writable");
        inside
    }

    /// Writes a file that only its user may read; returns its path inside.
    pub fn write_secret(&self, name: &str, text: &str) -> String {
        self.write_with_mode(name, text, 0o600)
    }

    /// Writes a program that wg-quick and linerate find before others of its name; returns its path
    /// inside.
    pub fn write_program(&self, name: &str, text: &str) -> String {
        self.write_with_mode(&format!("bin/{name}"), text, 0o755)
    }

    /// Writes a program that runs these lines of sh(1) and then the real program of its name.
    pub fn wrap_program(&self, name: &str, lines: &str) -> String {
        let real = self.run(format!("command -v {name}"));
        self.write_program(name, &format!("#!/bin/sh\n{lines}\nexec {} \"$@\"\n", real.trim()))
    }

    fn write_with_mode(&self, name: &str, text: &str, mode: u32) -> String {
        let inside = self.write(name, text);
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.outside(&inside), mode).expect("the file is ours");
        inside
    }

    /// Opens the TUN device to all users, as udev does; a container may restrict it.
    pub fn open_tun(&self) {
        self.run(
            "mkdir /run/rig/net && mknod -m 666 /run/rig/net/tun c 10 200 && \
             mount --bind /run/rig/net /dev/net",
        );
    }

    /// The text of a file inside.
    pub fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.outside(inside))
            .unwrap_or_else(|error| panic!("on {}: {inside}: {error}", self.0.name))
    }

    /// Whether the path exists inside.
    pub fn has(&self, inside: &str) -> bool {
        fs::symlink_metadata(self.outside(inside)).is_ok()
    }

    /// The pid of a process of the host, as seen by this process.
    pub fn outer_pid(&self, inner: u32) -> Option<u32> {
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.0.pid);
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ending = format!("\t{inner}");
        pids.find(|&pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let known = status.lines().find(|line| line.starts_with("NSpid:"));
            known.is_some_and(|pids| pids.ends_with(&ending)) && namespace(pid) == own
        })
    }

    /// The pid, as seen inside, of the process with a TUN interface.
    pub fn daemon_of(&self, interface: &str) -> Option<u32> {
        let pids = fs::read_dir(self.outside("/proc")).ok()?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let wanted = format!("iff:\t{interface}");
        pids.find(|pid| {
            let Ok(files) = fs::read_dir(self.outside(format!("/proc/{pid}/fdinfo"))) else {
                return false;
            };
            let texts = files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
            texts.into_iter().any(|text| text.lines().any(|line| line == wanted))
        })
    }

    /// Whether the network device exists.
    pub fn has_device(&self, device: &str) -> bool {
        self.attempt(format!("ip link show dev {device}")).ok
    }

    /// One of the kernel's counters of a device: `tx_dropped`, ...
    pub fn device_count(&self, device: &str, counter: &str) -> u64 {
        let text = self.read(&format!("/sys/class/net/{device}/statistics/{counter}"));
        text.trim().parse().expect("a count is a number")
    }

    /// The remote addresses of this TCP port's connections.
    pub fn connected_to(&self, port: u16) -> Vec<String> {
        let all = self.run(format!("ss -Htn state established '( sport = :{port} )'"));
        all.lines().filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect()
    }

    /// Whether a program in the host listens on this TCP port.
    pub fn listens(&self, port: u16) -> bool {
        let wanted = format!(":{port:04X}");
        ["tcp", "tcp6"].iter().any(|table| {
            let text = fs::read_to_string(format!("/proc/{}/net/{table}", self.0.pid));
            text.unwrap_or_default().lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default();
                // State 0A is TCP_LISTEN.
                local.ends_with(&wanted) && fields.nth(1) == Some("0A")
            })
        })
    }
}

/// Runs a program as the user nobody, with the only right that an interface needs.
pub const AS_NOBODY: &str = "setpriv --reuid=nobody --regid=nogroup --clear-groups \
                             --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin \
                             --bounding-set=-all,+net_admin";

/// Whether hosts have only one user, as in a user namespace of an unprivileged user. Then the
/// calling test skips its part with a second user, which is announced.
pub fn lacks_users() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").expect("proc is mounted");
    let is_lacking = map.split_whitespace().nth(2) == Some("1");
    if is_lacking {
        skips::skip("a second user");
    }
    is_lacking
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The process has ended. If waiting fails, the kernel cleans up.
        let _ = self.holder.wait();
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            ok: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
