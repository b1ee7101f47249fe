//! A bench that is interrupted leaves nothing behind: no process, and with them no namespace and no
//! file of a host.

#![forbid(unsafe_code)]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netns::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// All that the bench starts has it in its environment.
const MARK: &str = "LINERATE_BENCH_MARK";

/// Until the tunnel is up and traffic runs, and until all is over.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of the processes that carry the mark.
fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let is_marked = |path: &std::path::Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    };
    let named = processes.map(|entry| entry.path()).filter(|path| is_marked(path));
    named.filter_map(|path| fs::read_to_string(path.join("comm")).ok()).collect()
}

fn bench(mark: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--only", "tcp", "--seconds", "30", "--beside", "none"])
        .env(MARK, mark)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bench is built with its tests")
}

#[test]
fn nothing_is_left_behind_whatever_signal_ends_it() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mark = format!("{}-{signal}", std::process::id());
        let mut bench = bench(&mark);
        let is_there = |name: &str| marked(&mark).iter().any(|one| one.trim() == name);
        eventually("traffic runs", PATIENCE, || is_there("iperf3") && is_there("linerate"));
        kill(Pid::from_raw(bench.id() as i32), signal).expect("it runs");
        let ended = bench.wait().expect("a child can be waited for");
        assert!(!ended.success(), "{signal}: {ended}");
        eventually("nothing is left", PATIENCE, || marked(&mark).is_empty());
    }
}
