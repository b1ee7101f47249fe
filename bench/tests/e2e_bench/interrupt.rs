//! `make bench` and `linerate bench`: one that is interrupted leaves nothing behind: no process, and with them no namespace and no
//! file of a host.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netns::{Implementation, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// All that the bench starts has it in its environment. linerate keeps variables that begin with `WG_`.
const MARK: &str = "WG_BENCH_MARK";

/// Until the tunnel is up and traffic runs, and until all is over.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of the processes that carry the mark.
fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let is_marked = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    };
    let named = processes.map(|entry| entry.path()).filter(|path| is_marked(path));
    named.filter_map(|path| fs::read_to_string(path.join("comm")).ok()).collect()
}

fn start(program: &Path, arguments: &[&str], mark: &str) -> Child {
    // Whoever runs the tests in the background may ignore these signals.
    Command::new("env")
        .arg("--default-signal=INT,TERM,HUP")
        .arg(program)
        .args(arguments)
        .env(MARK, mark)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program is built")
}

/// Interrupts it by each signal, once these run.
fn leaves_nothing(program: &Path, arguments: &[&str], of_it: &[&str]) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mark = format!("{}-{signal}-{}", std::process::id(), of_it.len());
        let mut program = start(program, arguments, &mark);
        let runs = |name: &&str| marked(&mark).iter().any(|one| one.trim() == *name);
        eventually("traffic runs", PATIENCE, || of_it.iter().all(runs));
        kill(Pid::from_raw(program.id() as i32), signal).expect("it runs");
        let ended = program.wait().expect("a child can be waited for");
        assert!(!ended.success(), "{signal}: {ended}");
        eventually("nothing is left", PATIENCE, || marked(&mark).is_empty());
    }
}

#[test]
fn the_bench_leaves_nothing_behind_whatever_ends_it() {
    let arguments = ["--only", "tcp", "--seconds", "30", "--beside", "none"];
    leaves_nothing(Path::new(env!("CARGO_BIN_EXE_bench")), &arguments, &["iperf3", "linerate"]);
}

#[test]
fn the_users_bench_leaves_nothing_behind_whatever_ends_it() {
    let linerate = Implementation::Linerate.path();
    leaves_nothing(&linerate, &["bench", "--seconds", "60"], &["unshare", "nsenter", "linerate"]);
}

#[test]
fn the_users_bench_measures_something_with_the_binary_alone() {
    let ran = Command::new(Implementation::Linerate.path())
        .args(["bench", "--seconds", "1"])
        .output()
        .expect("linerate is built (make build)");
    let (text, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{text}{errors}");
    for what in
        ["TCP through the tunnel, forward", "TCP through the tunnel, reverse", "received", "MB"]
    {
        let line = text.lines().find(|line| line.contains(what)).expect("it is told");
        let figure = line.split_whitespace().rev().nth(1).and_then(|word| word.parse::<f64>().ok());
        assert!(figure > Some(0.0), "{line}");
    }
}
