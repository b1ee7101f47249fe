//! Flame graphs: where both daemons spend their time during one test, kernel and userland.
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

/// Samples a second, beside whatever the machine does a hundred or a thousand times a second.
const FREQUENCY: &str = "499";

/// By frame pointers the stacks of a release build, which has none, would end in their first frame.
/// With each sample so many bytes of stack are kept, and unwound by the tables of the binary.
const CALL_GRAPH: &str = "dwarf,32768";

/// Without the period, so that what is folded are samples, and not what each of them stands for.
const FIELDS: &str = "comm,pid,tid,time,event,ip,sym,dso";

/// Within this perf begins, or says why not.
const SOON: Duration = Duration::from_secs(10);

/// Where a host has what perf writes; it is gone with the host.
const DATA: &str = "/run/rig/perf.data";
const LOG: &str = "/run/rig/perf.log";

/// A flame graph of one end.
#[derive(Clone, Debug)]
pub struct Flame {
    /// Which end, and of what.
    pub title: String,
    /// `left` or `right`.
    pub end: &'static str,
    /// The picture, which needs nothing beside itself.
    pub svg: String,
}

impl Flame {
    /// Its height in pixels, whatever its width.
    pub fn height(&self) -> Option<u32> {
        let value = self.svg.split(" height=\"").nth(1)?;
        value.split('"').next()?.parse().ok()
    }
}

/// A profiler that looks at a daemon.
pub(crate) struct Profiler {
    host: Host,
    perf: Child,
}

impl Profiler {
    /// Starts it with a daemon's pid in the host; an error says why it does not run.
    pub fn start(host: &Host, daemon: u32) -> Result<Profiler, String> {
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
        let mut profiler = Profiler { host: host.clone(), perf };
        let is_reply = |profiler: &mut Profiler| profiler.host.has(DATA) || profiler.has_ended();
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

    /// Ends it and draws what it saw.
    pub fn finish(mut self, title: String, end: &'static str) -> Result<Flame, String> {
        // What does not take the signal is waited for in vain, and ends with the host.
        self.host.attempt(format!("kill -INT $(cat {DATA}.pid)"));
        let _ = self.perf.wait();
        let mut command = self.host.command("perf");
        command.args(["script", "--no-inline", "-F", FIELDS, "-i", DATA]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut script = command.spawn().map_err(|error| format!("nsenter: {error}"))?;
        let stacks = script.stdout.take().expect("stdout is piped");
        let svg = draw(stacks, &title);
        let _ = script.wait();
        let svg = svg.ok_or_else(|| format!("perf saw nothing: {}", self.log()))?;
        Ok(Flame { title, end, svg })
    }
}

/// Draws what `perf script` printed; nothing if it has no stacks.
fn draw(stacks: impl Read, title: &str) -> Option<String> {
    let mut fold = Fold::default();
    fold.annotate_kernel = true;
    fold.nthreads = 1;
    let mut folded = Vec::new();
    Folder::from(fold).collapse(BufReader::new(stacks), &mut folded).ok()?;
    let mut options = Options::default();
    options.title = title.to_owned();
    // The kernel is orange, what has a Rust path is yellow, the rest is red.
    options.colors = Palette::Multi(MultiPalette::Java);
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The same picture of the same stacks.
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
    fn without_stacks_there_is_no_picture() {
        assert_eq!(draw(&b""[..], "left"), None);
    }
}
