//! Observes a node during attacks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netns::{Family, Member, Pinging, eventually, in_background};

use crate::tailnet::PATIENCE;

/// A ping fifty times a second.
const OFTEN: &str = "-i 0.02";

/// Pings answered before the first attack.
const FIRST: usize = 10;

/// Pings answered at the end.
const LAST: usize = 10;

/// Sampling interval of memory.
const LOOK: Duration = Duration::from_millis(10);

/// The observed values: pings to another node, processes and their memory.
pub(crate) struct Watched<'a> {
    node: &'a Member,
    pinging: Pinging,
    pids: BTreeSet<u32>,
    memory: Memory,
}

impl<'a> Watched<'a> {
    pub(crate) fn start([node, other]: &'a [Member; 2]) -> Self {
        let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
        let pinging = Pinging::start(&node.host, "hostile", &target);
        pinging.wait_for_replies(FIRST, PATIENCE);
        Watched { node, pinging, pids: pids(&proc(node)), memory: Memory::watch(proc(node)) }
    }

    /// The status, which must be safe for a terminal.
    pub(crate) fn status(&self) -> String {
        let status = self.node.attempt("status");
        assert!(status.ok, "{status:?}");
        let control = |letter: &char| letter.is_control() && *letter != '\n';
        assert_eq!(status.stdout.chars().find(control), None, "{:?}", status.stdout);
        status.stdout
    }

    /// Waits until a line of the status contains this.
    pub(crate) fn wait_for_status(&self, what: &str) {
        let mut status = String::new();
        eventually(&format!("the status contains: {what}"), PATIENCE, || {
            status = self.status();
            status.lines().any(|line| line.starts_with("! ") && line.contains(what))
        });
    }

    /// Waits until the status is free of problems.
    pub(crate) fn recovers(&self) {
        eventually("the status has no problem", PATIENCE, || !self.status().contains("\n! "));
    }

    /// Waits for more answered pings.
    pub(crate) fn wait_for_replies(&self, pings: usize) {
        self.pinging.wait_for_replies(pings, PATIENCE);
    }

    /// Checks that no packet was lost, no process ended, and all processes together never had more
    /// than `bound` bytes of memory.
    pub(crate) fn finish(self, bound: u64) {
        self.wait_for_replies(LAST);
        let most = self.memory.finish();
        let pings = self.pinging.finish();
        let mut lost = pings.lost();
        // Pings before the attack do not count.
        lost.retain(|number| *number > FIRST as u32);
        assert!(pings.received > 0 && lost.is_empty(), "{lost:?} of {}", pings.sent);
        assert_eq!(pids(&proc(self.node)), self.pids, "no process ended");
        assert!(most <= bound, "{} KiB", most >> 10);
        println!("{}: {} KiB at most", self.node.host.name(), most >> 10);
    }
}

/// The peak of the anonymous memory of all processes of a host's linerate.
struct Memory {
    ends: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Memory {
    fn watch(proc: PathBuf) -> Self {
        let (ends, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, seen) = (Arc::clone(&ends), Arc::clone(&most));
        let thread = in_background("memory", move || {
            while !is_over.load(Ordering::Relaxed) {
                let all = pids(&proc).into_iter().filter_map(|pid| anonymous(&proc, pid)).sum();
                seen.fetch_max(all, Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        });
        Self { ends, most, thread }
    }

    fn finish(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only reads");
        self.most.load(Ordering::Relaxed)
    }
}

fn proc(node: &Member) -> PathBuf {
    node.host.outside("/proc")
}

/// The processes of a node, without commands that query it.
fn pids(proc: &Path) -> BTreeSet<u32> {
    let all = fs::read_dir(proc).into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_node = |pid: &u32| {
        let words = fs::read(proc.join(format!("{pid}/cmdline"))).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        let first = words.split('\0').next().unwrap_or_default();
        first.rsplit('/').next().is_some_and(|name| name.starts_with("linerate"))
            && !words.contains("\0status")
    };
    all.filter(is_node).collect()
}

/// Its anonymous memory in bytes.
fn anonymous(proc: &Path, pid: u32) -> Option<u64> {
    let status = fs::read_to_string(proc.join(format!("{pid}/status"))).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}
