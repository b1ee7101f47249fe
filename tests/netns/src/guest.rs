//! A virtual machine with the kernel's WireGuard: Debian's kernel under QEMU, without KVM.
//!
//! ```text
//!   host                          guest                            behind
//!   device ==== tap, virtio ====  eth0  (router)  eth1  ==== tap ====  eth0
//!              10.1.0.1  fd01::1  10.1.0.2  fd01::2     10.4.0.254  fd04::254     10.4.0.2  fd04::2
//! ```
//!
//! QEMU runs inside the first host and ends with it. The guest receives commands line by line over
//! its second serial port (`tests/kernel/init`). Traffic through it does not use that port.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::background::in_background;
use crate::host::{Host, Outcome};
use crate::pair::{Addresses, Family};
use crate::wait::Stopwatch;

/// Names the folder that `tests/kernel/guest` printed.
const GUEST: &str = "LINERATE_GUEST";

/// Time until the guest answers. On an idle machine it boots in five seconds and runs a command at
/// once.
const PATIENCE: Duration = Duration::from_secs(180);

/// A running guest.
pub struct Guest {
    host: Host,
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    console: PathBuf,
}

impl Guest {
    /// Boots a guest on a cable with `device` of one host, in front of the other host. All have
    /// addresses; the host behind has its default routes through the guest.
    ///
    /// # Panics
    /// If QEMU is not installed, no guest was built, or it does not answer.
    pub fn boot(host: &Host, device: &str, behind: &Host) -> Self {
        let folder = env::var_os(GUEST).map(PathBuf::from);
        let folder = folder.unwrap_or_else(|| panic!("{GUEST} is not set: make kernel-test"));
        for tap in [device, "behind"] {
            host.run(format!("ip tuntap add dev {tap} mode tap"));
        }
        let pid_file = "/run/rig/guest.pid";
        let mut process = host
            .command("sh")
            .args(["-c", "echo $$ >\"$0\"; exec \"$@\"", pid_file, "qemu-system-x86_64"])
            .args(arguments(&folder, device))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter is installed (make deps)");
        let input = process.stdin.take().expect("stdin is piped");
        let output = process.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        in_background("guest", move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        let console = host.outside(CONSOLE);
        let guest = Self { host: host.clone(), process, input, lines, console };
        guest.answer("boot");
        guest.wire(device, behind);
        guest
    }

    fn wire(&self, device: &str, behind: &Host) {
        // Only by its network namespace: the pid belongs to this process's namespace.
        let network = format!("--net=/proc/{}/ns/net", self.host.pid());
        let pid = behind.pid().to_string();
        let moved = Command::new("nsenter")
            .args([&network, "ip", "link", "set", "behind", "netns", &pid, "name", "eth0"])
            .status()
            .expect("nsenter is installed (make deps)");
        assert!(moved.success(), "the tap does not go to {}", behind.name());
        for (end, device, addresses) in
            [(&self.host, device, Addresses::new(1, 1)), (behind, "eth0", Addresses::new(4, 2))]
        {
            addresses.assign(end, device);
            end.run(format!("ip link set {device} up"));
        }
        self.assign("eth0", &Addresses::new(1, 2));
        let gateway = Addresses::new(4, 254);
        self.assign("eth1", &gateway);
        for family in Family::ALL {
            behind.run(format!("ip route add default via {}", gateway.of(family)));
        }
    }

    /// Gives addresses to a device of the guest, as /24 and /64, and brings it up.
    pub fn assign(&self, device: &str, addresses: &Addresses) {
        let (v4, v6) = (addresses.of(Family::V4), addresses.of(Family::V6));
        self.run(format!("ip address add {v4}/24 dev {device}"));
        self.run(format!("ip address add {v6}/64 dev {device}"));
        self.run(format!("ip link set {device} up"));
    }

    /// Runs a line of busybox's sh in the guest; `stdout` contains both outputs.
    ///
    /// # Panics
    /// If the guest does not answer; the end of its console is in the message.
    pub fn attempt(&self, line: impl AsRef<str>) -> Outcome {
        let line = line.as_ref();
        assert!(!line.contains('\n'), "one line at a time: {line}");
        writeln!(&self.input, "{line}").expect("the guest runs");
        self.answer(line)
    }

    /// Runs a line in the guest and returns its output.
    ///
    /// # Panics
    /// If it fails, or as [`Guest::attempt`].
    pub fn run(&self, line: impl AsRef<str>) -> String {
        let line = line.as_ref();
        let outcome = self.attempt(line);
        assert!(outcome.ok, "in the guest: `{line}` failed\n{}", outcome.stdout);
        outcome.stdout
    }

    /// Reads up to the next `=== STATUS`.
    fn answer(&self, line: &str) -> Outcome {
        let watch = Stopwatch::start();
        let mut text = String::new();
        loop {
            let left = PATIENCE.saturating_sub(watch.elapsed());
            let Ok(read) = self.lines.recv_timeout(left) else {
                panic!("no answer to `{line}`\n{text}\n--- console ---\n{}", self.console());
            };
            if let Some(status) = read.strip_prefix("=== ") {
                let ok = matches!(status.trim(), "0" | "ready");
                return Outcome { ok, stdout: text.trim().to_owned(), stderr: String::new() };
            }
            text = text + read.trim_end() + "\n";
        }
    }

    /// The log of its kernel.
    pub fn console(&self) -> String {
        std::fs::read_to_string(&self.console).unwrap_or_default()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- console of the guest ---\n{}", self.console());
        }
        self.host.attempt("kill -KILL $(cat /run/rig/guest.pid)");
        // It has been killed; the host's end would end it as well.
        let _ = self.process.wait();
    }
}

/// The log of the guest's kernel, inside the host.
const CONSOLE: &str = "/run/rig/guest.console";

fn arguments(folder: &Path, device: &str) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments: Vec<String> =
        "-accel tcg -m 256 -nodefaults -display none -monitor none -no-reboot"
            .split(' ')
            .map(str::to_owned)
            .collect();
    arguments.extend(["-kernel".to_owned(), file("vmlinuz"), "-initrd".to_owned()]);
    arguments.extend([file("initramfs"), "-append".to_owned()]);
    arguments.push("console=ttyS0 quiet panic=1".to_owned());
    arguments.extend(["-serial".to_owned(), format!("file:{CONSOLE}")]);
    arguments.extend(["-serial".to_owned(), "stdio".to_owned()]);
    for tap in [device, "behind"] {
        arguments.push("-netdev".to_owned());
        arguments.push(format!("tap,id={tap},ifname={tap},script=no,downscript=no"));
        arguments.extend(["-device".to_owned(), format!("virtio-net-pci,netdev={tap},romfile=")]);
    }
    arguments
}
