//! Flame graphs of both daemons during one test, kernel and userland.
//!
//! ```text
//!   perf record -p DAEMON  -->  perf script  -->  folded stacks  -->  SVG
//!   in the host of each end, while the test runs
//! ```

use std::io::{BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options as Fold};
use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{Options, Palette, TextTruncateDirection, from_reader};
use netns::{Host, eventually};

/// Samples a second; not a multiple of 100 or 1000, to avoid sampling in step with timers.
const FREQUENCY: &str = "499";

/// A release build lacks frame pointers, so perf could only record the first frame. Instead this
/// many bytes of stack are stored with each sample and unwound by the tables of the binary.
const CALL_GRAPH: &str = "dwarf,32768";

/// Without the period, so that samples are counted and not weighted.
const FIELDS: &str = "comm,pid,tid,time,event,ip,sym,dso";

/// Time in which perf starts or reports an error.
const SOON: Duration = Duration::from_secs(10);

/// The host's file for perf's data, which is removed with the host.
const DATA: &str = "/run/rig/perf.data";
const LOG: &str = "/run/rig/perf.log";

/// A flame graph of one end.
#[derive(Clone, Debug)]
pub struct Flame {
    /// The end and the contender.
    pub title: String,
    /// `left` or `right`.
    pub end: &'static str,
    /// The picture, a self-contained document.
    pub svg: String,
}

impl Flame {
    /// Height in pixels, independent of the width.
    pub fn height(&self) -> Option<u32> {
        let value = self.svg.split(" height=\"").nth(1)?;
        value.split('"').next()?.parse().ok()
    }
}

/// A profiler of one daemon.
pub(crate) struct Profiler {
    host: Host,
    perf: Child,
}

impl Profiler {
    /// Starts perf for a daemon's pid in the host.
    pub(crate) fn start(host: &Host, daemon: u32) -> Result<Self, String> {
        if Command::new("perf").arg("--version").output().is_err() {
            return Err("perf is not installed (Debian: apt-get install linux-perf)".to_owned());
        }
        let line = format!(
            "echo $$ >{DATA}.pid; exec perf record -B -N -F {FREQUENCY} --call-graph {CALL_GRAPH} \
             -p {daemon} -o {DATA} >{LOG} 2>&1"
        );
        let mut command = host.command("bash");
        command.args(["-c", &line]).stdin(Stdio::null());
        let perf = command.spawn().map_err(|error| format!("nsenter: {error}"))?;
        let mut profiler = Self { host: host.clone(), perf };
        let is_reply = |profiler: &mut Self| profiler.host.has(DATA) || profiler.has_ended();
        eventually("perf begins", SOON, || is_reply(&mut profiler));
        if profiler.has_ended() {
            return Err(format!("perf was refused: {}", profiler.log()));
        }
        Ok(profiler)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.perf.try_wait(), Ok(None))
    }

    fn log(&self) -> String {
        self.host.attempt(format!("grep -v '^$' {LOG} | head -n 4")).stdout.trim().to_owned()
    }

    /// Stops perf and draws the samples.
    pub(crate) fn finish(mut self, title: String, end: &'static str) -> Result<Flame, String> {
        // A perf that ignores the signal ends with the host.
        self.host.attempt(format!("kill -INT $(cat {DATA}.pid)"));
        let _ = self.perf.wait();
        let mut command = self.host.command("perf");
        command.args(["script", "--no-inline", "-F", FIELDS, "-i", DATA]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut script = command.spawn().map_err(|error| format!("nsenter: {error}"))?;
        let stacks = script.stdout.take().expect("stdout is piped");
        let svg = draw(stacks, &title);
        let _ = script.wait();
        let svg = svg.ok_or_else(|| format!("perf recorded no samples: {}", self.log()))?;
        Ok(Flame { title, end, svg })
    }
}

/// Draws the output of `perf script`; `None` without stacks.
fn draw(stacks: impl Read, title: &str) -> Option<String> {
    let mut fold = Fold::default();
    fold.annotate_kernel = true;
    fold.nthreads = 1;
    let mut folded = Vec::new();
    Folder::from(fold).collapse(BufReader::new(stacks), &mut folded).ok()?;
    let mut options = Options::default();
    options.title = title.to_owned();
    // The kernel is orange, Rust paths are yellow, the rest is red.
    options.colors = Palette::Multi(MultiPalette::Java);
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The same stacks give the same picture.
    options.hash = true;
    let mut svg = Vec::new();
    from_reader(&mut options, &folded[..], &mut svg).ok()?;
    String::from_utf8(svg).ok()
}

#[cfg(test)]
mod tests {
    use super::{Flame, draw};

    const SCRIPT: &str = "\
linerate    12 100.000001:    2004008 cpu-clock:ppp: \n\
\tffffffff81d335f7 udp_sendmsg+0x77 ([kernel.kallsyms])\n\
\t    55d0c0ffee00 linerate_sys::udp::send+0x10 (/usr/bin/linerate)\n\
\n\
linerate    12 100.002001:    2004008 cpu-clock:ppp: \n\
\t    55d0c0ffee40 linerate_aead::seal+0x10 (/usr/bin/linerate)\n\
\n";

    #[test]
    fn stacks_of_kernel_and_userland_are_drawn_with_their_names() {
        let svg = draw(SCRIPT.as_bytes(), "left").unwrap();
        for name in ["udp_sendmsg", "linerate_sys::udp::send", "linerate_aead::seal"] {
            assert!(svg.contains(name), "no {name} in {svg}");
        }
        assert!(svg.starts_with("<?xml"));
        let height = Flame { title: String::new(), end: "left", svg }.height();
        assert!(height.is_some_and(|height| (50..500).contains(&height)), "{height:?}");
    }

    #[test]
    fn without_stacks_no_picture_is_drawn() {
        assert_eq!(draw(&b""[..], "left"), None);
    }
}
