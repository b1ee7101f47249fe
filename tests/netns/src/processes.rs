//! Cost of a daemon: processor time, context switches and memory, each summed over its process
//! tree, so that helper processes count.
//!
//! Memory is private memory: anonymous pages and shared memory, including swapped-out pages. Mapped
//! clean file pages (mostly a program's own code) are left out for every contender: the kernel can
//! drop them at any time, so a program that asks for this saves no memory. PSS, which counts them
//! in proportion to the number of mapping processes, is reported as well.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::host::Host;
use crate::service::Service;

/// The kernel's USER_HZ: the unit of /proc/PID/stat.
const TICKS_PER_SECOND: f64 = 100.0;

/// Sampling interval of memory; a sample takes well under a millisecond.
const LOOK: Duration = Duration::from_millis(250);

/// A daemon and the processes that it started.
#[derive(Clone, Debug)]
pub struct Processes {
    /// The /proc of its host, as a path of this process.
    proc: PathBuf,
    /// The daemon's pid inside its host.
    pid: u32,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Memory of the processes alone that cannot be dropped.
    pub private: f64,
    /// Including mapped file pages: PSS.
    pub pss: f64,
}

impl Processes {
    /// The daemon with this pid inside a host.
    pub fn of(host: &Host, pid: u32) -> Self {
        Self { proc: host.outside("/proc"), pid }
    }

    /// A program that the rig runs.
    pub fn of_service(service: &Service) -> Self {
        Self::of(service.host(), service.pid())
    }

    /// Processor time in seconds.
    pub fn cpu(&self) -> f64 {
        let ticks = |pid: &u32| -> f64 {
            // utime and stime are the 12th and 13th field after the parenthesis.
            let stat = self.read(*pid, "stat");
            let times = after_name(&stat).skip(11).take(2);
            times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
        };
        self.all().iter().map(ticks).sum::<f64>() / TICKS_PER_SECOND
    }

    /// Context switches of all threads: voluntary and involuntary.
    pub fn switches(&self) -> [f64; 2] {
        let statuses: Vec<String> =
            self.all().iter().flat_map(|pid| self.thread_statuses(*pid)).collect();
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|field| {
            let lines = statuses.iter().flat_map(|status| status.lines());
            let counts =
                lines.filter_map(|line| line.strip_prefix(field)?.trim().parse::<f64>().ok());
            counts.sum::<f64>()
        })
    }

    /// Current memory; `None` if the kernel does not provide it.
    pub fn memory(&self) -> Option<Memory> {
        let mut sum = Memory::default();
        for pid in self.all() {
            match fs::read_to_string(self.path(pid, "smaps_rollup")) {
                Ok(text) => sum = sum + Memory::parse(&text)?,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        (sum.private > 0.0).then_some(sum)
    }

    /// The daemon, its descendants, and other processes of its host with the same program: a
    /// helper's parent may be the host's pid 1.
    fn all(&self) -> BTreeSet<u32> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let parent = |pid| after_name(&self.read(pid, "stat")).nth(1)?.parse::<u32>().ok();
        let program = self.program(self.pid);
        let mut all = BTreeSet::from([self.pid]);
        let mut others = Vec::new();
        for pid in pids {
            if program.is_some() && self.program(pid) == program {
                all.insert(pid);
            } else {
                others.push((pid, parent(pid)));
            }
        }
        loop {
            let before = all.len();
            let children =
                others.iter().filter(|(_, parent)| parent.is_some_and(|one| all.contains(&one)));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            all.extend(children);
            if all.len() == before {
                return all;
            }
        }
    }

    fn program(&self, pid: u32) -> Option<PathBuf> {
        fs::read_link(self.path(pid, "exe")).ok()
    }

    fn thread_statuses(&self, pid: u32) -> Vec<String> {
        let threads = fs::read_dir(self.path(pid, "task")).into_iter().flatten().flatten();
        threads.filter_map(|one| fs::read_to_string(one.path().join("status")).ok()).collect()
    }

    fn read(&self, pid: u32, file: &str) -> String {
        fs::read_to_string(self.path(pid, file)).unwrap_or_default()
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(file)
    }
}

/// The fields of /proc/PID/stat after the name, which may contain spaces: state, parent, ...
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(')').next().unwrap_or_default().split_whitespace()
}

impl Memory {
    /// From /proc/PID/smaps_rollup; `None` if a field is missing, as before Linux 5.2.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line?.split_whitespace().next()?.parse::<f64>().ok()?;
            Some(kib * 1024.0)
        };
        let swapped = field("SwapPss").unwrap_or(0.0);
        Some(Self {
            private: field("Pss_Anon")? + field("Pss_Shmem")? + swapped,
            pss: field("Pss")? + swapped,
        })
    }

    fn or_more(self, other: Self) -> Self {
        Self { private: self.private.max(other.private), pss: self.pss.max(other.pss) }
    }
}

impl std::ops::Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { private: self.private + other.private, pss: self.pss + other.pss }
    }
}

/// Samples the memory of daemons until it is dropped. The kernel records a peak of resident memory
/// but not of private memory.
pub struct Watch {
    daemons: Vec<Processes>,
    peak: Arc<Mutex<Option<Memory>>>,
    _stop: Sender<()>,
}

impl Watch {
    /// Samples these daemons together.
    pub fn start(daemons: Vec<Processes>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let peak = Arc::new(Mutex::new(None));
        let watch = Self { daemons: daemons.clone(), peak: peak.clone(), _stop: stop };
        let look = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                raise(&peak, sum(&daemons));
            }
        };
        // Without the thread the peak is the maximum of the samples at the end of each test.
        let _ = thread::Builder::new().name("memory".to_owned()).spawn(look);
        watch
    }

    /// The current memory of all.
    pub fn now(&self) -> Option<Memory> {
        let now = sum(&self.daemons);
        raise(&self.peak, now);
        now
    }

    /// The highest sample.
    pub fn peak(&self) -> Option<Memory> {
        self.now();
        *self.peak.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(daemons: &[Processes]) -> Option<Memory> {
    let all: Option<Vec<Memory>> = daemons.iter().map(Processes::memory).collect();
    all?.into_iter().reduce(|a, b| a + b)
}

fn raise(peak: &Mutex<Option<Memory>>, now: Option<Memory>) {
    let Some(now) = now else { return };
    let mut peak = peak.lock().unwrap_or_else(PoisonError::into_inner);
    *peak = Some(peak.map_or(now, |before| before.or_more(now)));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;
    use std::time::Duration;

    use super::{Memory, Processes, Watch, after_name, raise};
    use crate::wait::eventually;

    const ROLLUP: &str = "\
55ada7af5000-7ffeecefa000 ---p 00000000 00:00 0                          [rollup]
Rss:               17040 kB
Pss:                5568 kB
Pss_Dirty:          4148 kB
Pss_Anon:           4000 kB
Pss_File:           1468 kB
Pss_Shmem:           100 kB
Private_Clean:      1312 kB
Swap:                 40 kB
SwapPss:              20 kB
";

    #[test]
    fn private_memory_excludes_clean_file_pages_and_pss_includes_them() {
        let memory = Memory::parse(ROLLUP).unwrap();
        assert_eq!(memory.private, 4120.0 * 1024.0);
        assert_eq!(memory.pss, 5588.0 * 1024.0);
        // More or fewer clean file pages change nothing.
        let dropped = ROLLUP.replace("Rss:               17040", "Rss:               12040");
        let dropped = dropped.replace("Pss_File:           1468", "Pss_File:              0");
        assert_eq!(Memory::parse(&dropped).unwrap().private, memory.private);
    }

    #[test]
    fn a_rollup_without_a_field_is_rejected() {
        assert_eq!(Memory::parse("Rss: 1 kB\nPss: 1 kB\n"), None);
        assert_eq!(Memory::parse(""), None);
        assert_eq!(Memory::parse(&ROLLUP.replace("4000 kB", "many kB")), None);
    }

    /// A shell and its child, which both end with their stdin.
    fn parent_with_child() -> Child {
        let mut parent = Command::new("sh");
        parent.args(["-c", "cat; true"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        parent.spawn().expect("sh is installed")
    }

    #[test]
    fn helper_processes_are_counted() {
        let mut parent = parent_with_child();
        let tree = Processes { proc: PathBuf::from("/proc"), pid: parent.id() };
        let is_child = |pid: &u32| {
            after_name(&tree.read(*pid, "stat")).nth(1) == Some(&parent.id().to_string())
        };
        eventually("the shell has its child", Duration::from_secs(10), || {
            tree.all().iter().any(is_child)
        });
        let (all, watch) = (tree.all(), Watch::start(vec![tree.clone()]));
        let alone = std::fs::read_to_string(tree.path(parent.id(), "smaps_rollup")).unwrap();
        let (alone, now, peak) = (Memory::parse(&alone).unwrap(), watch.now(), watch.peak());
        drop(parent.stdin.take());
        parent.wait().unwrap();
        assert!(all.contains(&parent.id()), "{all:?}");
        assert!(now.unwrap().private > alone.private, "{now:?}, {alone:?}");
        assert!(peak.unwrap().private >= now.unwrap().private, "{peak:?}, {now:?}");
    }

    #[test]
    fn a_peak_does_not_decrease() {
        let peak = Mutex::new(None);
        for private in [2.0, 5.0, 3.0] {
            raise(&peak, Some(Memory { private, pss: 10.0 - private }));
        }
        raise(&peak, None);
        assert_eq!(*peak.lock().unwrap(), Some(Memory { private: 5.0, pss: 8.0 }));
    }
}
