//! A host: namespaces for network, mounts and processes, by unshare(1), nsenter(1) and ip(8).

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    panic::resume_unwind,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns};

/// The first process of a host. It prints its pid as this process sees it, and exits when its standard
/// input is closed. Then the kernel kills the other processes of the host.
const INIT: &str = "set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
mount -t tmpfs -o mode=0700 tmpfs /run
mkdir /run/lock
ip link set lo up
echo \"$pid\"
read -r end || true";

/// The kernel's USER_HZ: ticks of processor time per second in /proc.
const TICKS: f64 = 100.0;

pub(super) struct Host {
    init: Child,
    pid: u32,
}

/// A linerate daemon in a host.
pub(super) struct Daemon {
    nsenter: Child,
    /// Its folder in /proc.
    folder: PathBuf,
}

/// The path of this program.
pub(super) fn own_binary() -> PathBuf {
    fs::read_link("/proc/self/exe").unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

impl Host {
    pub(super) fn start(name: &str) -> anyhow::Result<Self> {
        let mut init = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--", "sh", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run unshare (util-linux)")?;
        let mut line = String::new();
        if let Some(stdout) = init.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().with_context(|| {
            format!("{name}: cannot create namespaces: run as root, or allow user namespaces")
        })?;
        Ok(Self { init, pid })
    }

    /// Runs `work` in the host's network namespace, where its sockets stay.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let network = File::open(format!("/proc/{}/ns/net", self.pid)).context("the host ended")?;
        thread::scope(|scope| {
            let enter = || setns(&network, CloneFlags::CLONE_NEWNET).map(|()| work());
            let thread = thread::Builder::new().spawn_scoped(scope, enter)?;
            let done = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            done.context("entering a host")
        })
    }

    /// Starts a daemon with a wg-quick file, and waits until it is ready.
    pub(super) fn up(&self, conf: &str) -> anyhow::Result<Daemon> {
        fs::write(format!("/proc/{}/root/run/wg0.conf", self.pid), conf)?;
        let mut command = self.command(&own_binary().display().to_string());
        command.args(["up", "-f", "/run/wg0.conf"]);
        let nsenter = command.spawn().context("cannot run nsenter (util-linux)")?;
        let id = nsenter.id();
        let children = format!("/proc/{id}/task/{id}/children");
        let mut daemon = Daemon { nsenter, folder: PathBuf::new() };
        let socket = format!("/proc/{}/root/run/wireguard/wg0.sock", self.pid);
        while fs::metadata(&socket).is_err() || daemon.folder.as_os_str().is_empty() {
            let ended = daemon.nsenter.try_wait()?;
            ensure!(ended.is_none(), "the daemon did not start");
            let child = fs::read_to_string(&children).unwrap_or_default();
            daemon.folder = child
                .split_whitespace()
                .next()
                .map_or(PathBuf::new(), |pid| PathBuf::from("/proc").join(pid));
            thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.pid));
        command.args(["--net", "--mount", "--pid", "--", program]).stdin(Stdio::null());
        command
    }

    fn ip(&self, line: &str) -> anyhow::Result<()> {
        run(self.command("ip").args(line.split(' ')))
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let ended = command.status().context("cannot run ip (iproute2)")?;
    ensure!(ended.success(), "ip failed");
    Ok(())
}

/// Connects two hosts by a veth pair.
pub(super) fn cable(left: &Host, right: &Host) -> anyhow::Result<()> {
    let [a, b] = [left, right].map(|host| host.pid.to_string());
    let ends = ["link", "add", "eth0", "netns", &a, "type", "veth", "peer", "eth0", "netns", &b];
    run(Command::new("ip").args(ends))?;
    for (number, host) in [(1, left), (2, right)] {
        host.ip(&format!("address add 10.1.0.{number}/24 dev eth0"))?;
        host.ip("link set eth0 up")?;
    }
    Ok(())
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.init.stdin.take());
        // The process exits because its input is closed, and the namespaces end with it.
        let _ = self.init.wait();
    }
}

impl Daemon {
    /// The processor time since the start, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(self.folder.join("stat")).unwrap_or_default();
        // After the name in parentheses utime and stime are the 12th and 13th fields.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
    }

    /// The peak resident memory, in megabytes.
    pub(super) fn peak_memory(&self) -> f64 {
        let status = fs::read_to_string(self.folder.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kibibytes.unwrap_or(f64::NAN) * 1024.0 / 1e6
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ends nsenter only; the daemon ends with its host.
        let _ = self.nsenter.kill();
        let _ = self.nsenter.wait();
    }
}
