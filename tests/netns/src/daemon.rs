//! A running daemon: one implementation with one interface of one host.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::host::Host;
use crate::implementation::{Implementation, Program};
use crate::service::wake;
use crate::show::{ShowOutput, forced_off};
use crate::wait::{Stopwatch, eventually};

/// Time until a daemon is usable, and until it ends after a signal; both take milliseconds on an
/// idle machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lines of its log that a failed test prints.
const LOG_TAIL: usize = 20;

/// The kernel's USER_HZ: the unit of /proc/PID/stat, 100 on every Linux architecture but alpha.
const TICKS_PER_SECOND: u64 = 100;

/// A daemon in the foreground; it is killed when dropped.
pub struct Daemon {
    host: Host,
    interface: String,
    process: Child,
    pid: u32,
}

impl Daemon {
    /// Starts it and waits until wg(8) can connect to it. For linerate, checks that the offloads that the
    /// run disables are off.
    ///
    /// # Panics
    /// If it is not installed, ends early, or is not usable in time; its log is in the message.
    pub fn start(host: &Host, program: impl Into<Program>, interface: &str) -> Self {
        let program = program.into();
        let implementation = program.implementation;
        let daemon = Self::start_program(host, &program, interface);
        if let Some(names) = forced_off().filter(|_| implementation == Implementation::Linerate) {
            let shown = ShowOutput::of(host, interface);
            assert!(shown.has_off(&names), "{names} is forced off: {:?}", shown.offloads);
        }
        daemon
    }

    fn start_program(host: &Host, program: &Program, interface: &str) -> Self {
        let log = File::create(host.outside(log_path(interface))).expect("/run/rig is writable");
        let errors = log.try_clone().expect("a file handle can be doubled");
        let pid_file = format!("/run/rig/{interface}.pid");
        // The shell writes its pid and becomes the daemon, so this is the pid inside.
        let process = host
            .command("sh")
            .args(["-c", "echo $$ >\"$0\"; exec \"$@\"", &pid_file])
            .arg(&program.path)
            .args(program.implementation.arguments(interface, true))
            .envs(program.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("nsenter is installed (make deps)");
        let mut daemon =
            Self { host: host.clone(), interface: interface.to_owned(), process, pid: 0 };
        eventually("the daemon responds to wg(8)", PATIENCE, || daemon.is_ready());
        daemon.pid = host.read(&pid_file).trim().parse().expect("the shell wrote its pid");
        daemon
    }

    fn is_ready(&mut self) -> bool {
        if let Ok(Some(status)) = self.process.try_wait() {
            panic!("the daemon on {} ended: {status}\n{}", self.host.name(), self.log());
        }
        self.host.attempt(format!("wg show {}", self.interface)).ok
    }

    /// Its pid inside the host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal by name: `TERM`, `INT`, `KILL`, `STOP`, ... `CONT` resumes a stopped daemon.
    pub fn signal(&self, signal: &str) {
        self.host.run(format!("kill -{signal} {}", self.pid));
        if signal == "CONT" {
            wake(&self.process);
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let watch = Stopwatch::start();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return status;
            }
            assert!(watch.elapsed() < PATIENCE, "the daemon did not end\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processor time of all its threads.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(self.proc("stat")).unwrap_or_default();
        // The command name may contain spaces. Fields are counted after its closing parenthesis,
        // where utime and stime are the 12th and 13th (proc(5) numbers them 14 and 15).
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|n| n.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    /// Context switches of all its threads: voluntary and involuntary.
    pub fn switches(&self) -> [u64; 2] {
        let threads = fs::read_dir(self.proc("task")).into_iter().flatten().flatten();
        let statuses: Vec<String> = threads
            .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
            .collect();
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|field| {
            let lines = statuses.iter().flat_map(|status| status.lines());
            let counts =
                lines.filter_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok());
            counts.sum()
        })
    }

    /// Highest resident memory in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:") * 1024
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:") * 1024
    }

    /// Number of threads.
    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    /// Number of open files.
    pub fn files(&self) -> u64 {
        fs::read_dir(self.proc("fd")).map_or(0, |files| files.count() as u64)
    }

    /// A number of proc_pid_status(5); memory is in KiB.
    fn status(&self, field: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Its output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.host.outside(log_path(&self.interface))).unwrap_or_default()
    }

    fn proc(&self, file: &str) -> PathBuf {
        self.host.outside(format!("/proc/{}/{file}", self.pid))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            let (host, interface, log) = (self.host.name(), &self.interface, self.log());
            let skipped = log.lines().count().saturating_sub(LOG_TAIL);
            let tail: Vec<&str> = log.lines().skip(skipped).collect();
            eprintln!("--- end of the log of {interface} on {host} ---\n{}", tail.join("\n"));
        }
        if self.pid != 0 && self.is_running() {
            self.host.attempt(format!("kill -KILL {}", self.pid));
            // It has been killed; the host's end would end it as well.
            let _ = self.process.wait();
        }
        self.host.attempt(format!("rm -f /run/wireguard/{}.sock", self.interface));
    }
}

fn log_path(interface: &str) -> String {
    format!("/run/rig/{interface}.log")
}
