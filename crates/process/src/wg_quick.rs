//! Detects that wg-quick(8) started this program as its userspace implementation. Then only
//! wg-quick may take the interface down, because it manages the rules, name servers and hooks.

use std::path::Path;

use sys::process::ancestor_arguments;

/// Whether this process was started by `wg-quick up` of the interface. Call it before the process
/// goes to the background.
pub fn runs_under_wg_quick(interface: &str) -> bool {
    ancestor_arguments().any(|arguments| brings_up(&arguments, interface))
}

/// Whether these are the arguments of `wg-quick up`, with or without an interpreter. The target is
/// the interface or a file named after it.
fn brings_up(arguments: &[String], interface: &str) -> bool {
    arguments.windows(3).any(|words| {
        let [program, verb, which] = words else { return false };
        let is_program = Path::new(program).file_name().is_some_and(|name| name == "wg-quick");
        let which = Path::new(which);
        let name = match which.extension() {
            Some(end) if end == "conf" => which.file_stem(),
            _ => which.file_name(),
        };
        is_program && verb == "up" && name.is_some_and(|name| name == interface)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wg_quick_is_recognized_by_its_name_verb_and_interface() {
        let brings_up = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
            brings_up(&arguments, "wg0")
        };
        for line in [
            "/bin/bash /usr/bin/wg-quick up wg0 ",
            "bash -- /usr/bin/wg-quick up /etc/wireguard/wg0.conf",
            "wg-quick up ./wg0.conf",
            "/nix/store/x/bin/bash /nix/store/x/bin/wg-quick up wg0",
        ] {
            assert!(brings_up(line), "{line}");
        }
        for line in [
            "/bin/bash /usr/bin/wg-quick up wg1",
            "/bin/bash /usr/bin/wg-quick down wg0",
            "/bin/bash /usr/bin/awg-quick up wg0",
            "wg-quick up",
            "linerate wg0",
        ] {
            assert!(!brings_up(line), "{line}");
        }
    }
}
