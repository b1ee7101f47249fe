//! The machine of a run and the versions of programs.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

/// Properties of a machine that matter for figures.
pub(crate) struct Machine {
    cores: usize,
    model: String,
    kernel: String,
}

impl Machine {
    /// This machine.
    pub(crate) fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cores: thread::available_parallelism().map_or(0, usize::from),
            model: model.map_or("an unknown processor", |(_, model)| model).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, model, kernel } = self;
        write!(f, "{cores} cores of {model}, Linux {kernel}")
    }
}

/// The version of a binary. For a Go binary, the version of the module that it was built from: a
/// fork's own version text is that of the original.
pub(crate) fn version(program: &Path) -> String {
    let binary = fs::read(program).unwrap_or_default();
    go_module(&binary).unwrap_or_else(|| {
        let output = Command::new(program).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.unwrap_or_default().lines().next().unwrap_or("an unknown version").to_owned()
    })
}

/// `MODULE VERSION` from the build information of a Go binary.
fn go_module(binary: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"\nmod\t";
    let at = binary.windows(BEFORE.len()).position(|window| window == BEFORE)?;
    let rest = &binary[at + BEFORE.len()..];
    let line = rest.split(|byte| *byte == b'\n').next()?;
    let mut fields = std::str::from_utf8(line).ok()?.split('\t');
    Some(format!("{} {}", fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::go_module;

    #[test]
    fn a_go_binary_names_its_module() {
        let binary = b"\x7fELF\npath\tx\nmod\texample.org/wg\tv1.2\th1:abc=\ndep\ty\tv3\n";
        assert_eq!(go_module(binary).as_deref(), Some("example.org/wg v1.2"));
        assert_eq!(go_module(b"\x7fELF"), None);
    }
}
