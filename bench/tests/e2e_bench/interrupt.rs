//! An interrupted `make bench` or `linerate bench` leaves no process, and therefore no namespace and no
//! file of a host.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netns::{Implementation, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Environment variable of all processes that the bench starts. linerate keeps variables that begin
/// with `WG_`.
const MARK: &str = "WG_BENCH_MARK";

/// Time until the tunnel is up and traffic runs, and until all processes have ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of the processes with the mark.
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
    // Tests that run in the background may ignore these signals.
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

/// Interrupts the program by each signal, once these processes run.
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
fn an_interrupted_bench_leaves_no_process() {
    let arguments = ["--only", "tcp", "--seconds", "30", "--beside", "none"];
    leaves_nothing(Path::new(env!("CARGO_BIN_EXE_bench")), &arguments, &["iperf3", "linerate"]);
}

#[test]
fn an_interrupted_linerate_bench_leaves_no_process() {
    let linerate = Implementation::Linerate.path();
    leaves_nothing(&linerate, &["bench", "--seconds", "60"], &["unshare", "nsenter", "linerate"]);
}

#[test]
fn linerate_bench_measures_with_the_binary_alone() {
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
        let line = text.lines().find(|line| line.contains(what)).expect("the line is printed");
        let figure = line.split_whitespace().rev().nth(1).and_then(|word| word.parse::<f64>().ok());
        assert!(figure > Some(0.0), "{line}");
    }
}
