//! A host: network, mounts and processes of its own, by unshare(1), nsenter(1) and
//! ip(8).

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

/// The first process of a host: it says its pid as this process knows it, and ends
/// with its standard input. The kernel ends with it all others of the host.
const INIT: &str = "set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
mount -t tmpfs -o mode=0700 tmpfs /run
mkdir /run/lock
ip link set lo up
echo \"$pid\"
read -r end || true";

/// The kernel's USER_HZ, the unit of processor time in /proc.
const TICKS: f64 = 100.0;

pub(super) struct Host {
    init: Child,
    pid: u32,
}

/// A linerate that serves a host.
pub(super) struct Daemon {
    nsenter: Child,
    /// Its folder in /proc.
    folder: PathBuf,
}

/// The file of this program, also where its name is another one's by now.
pub(super) fn own_binary() -> PathBuf {
    fs::read_link("/proc/self/exe").unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

impl Host {
    pub fn start(name: &str) -> anyhow::Result<Host> {
        let mut init = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--", "sh", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare (util-linux) is not there")?;
        let mut line = String::new();
        if let Some(stdout) = init.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().with_context(|| {
            format!("{name}: no namespaces; be root, or allow user namespaces to make them")
        })?;
        Ok(Host { init, pid })
    }

    /// Runs `work` in the host's network: its sockets stay there.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let network = File::open(format!("/proc/{}/ns/net", self.pid)).context("the host ended")?;
        thread::scope(|scope| {
            let enter = || setns(&network, CloneFlags::CLONE_NEWNET).map(|()| work());
            let thread = thread::Builder::new().spawn_scoped(scope, enter)?;
            let done = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            done.context("entering a host")
        })
    }

    /// Has a linerate serve the host as a file of wg-quick's says, once it is ready.
    pub fn up(&self, conf: &str) -> anyhow::Result<Daemon> {
        fs::write(format!("/proc/{}/root/run/wg0.conf", self.pid), conf)?;
        let mut command = self.command(&own_binary().display().to_string());
        command.args(["up", "-f", "/run/wg0.conf"]);
        let nsenter = command.spawn().context("nsenter (util-linux) is not there")?;
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
    let ended = command.status().context("ip (iproute2) is not there")?;
    ensure!(ended.success(), "ip failed");
    Ok(())
}

/// Lays a veth cable between two hosts.
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
        // It ends by itself; the namespaces are gone when it has.
        let _ = self.init.wait();
    }
}

impl Daemon {
    /// Processor time so far, in seconds.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(self.folder.join("stat")).unwrap_or_default();
        // Behind the name in parentheses utime and stime are the 12th and 13th.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
    }

    /// The most that was resident, in megabytes.
    pub fn peak_memory(&self) -> f64 {
        let status = fs::read_to_string(self.folder.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kibibytes.unwrap_or(f64::NAN) * 1024.0 / 1e6
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // nsenter hands its own end on to nobody; the daemon ends with its host.
        let _ = self.nsenter.kill();
        let _ = self.nsenter.wait();
    }
}
