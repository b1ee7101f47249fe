//! Offloads as arguments.

use clap::{Args, builder::PossibleValuesParser};
use sys::Offloads;

/// The name that means every offload.
const ALL: &str = "all";

#[derive(Args)]
pub(crate) struct OffloadsOff {
    /// Start without these offloads of the kernel. May be repeated; `set IFACE offload NAME on`
    /// enables them again.
    #[arg(long = "offload-off", value_name = "NAME,...", value_delimiter = ',')]
    #[arg(value_parser = names())]
    off: Vec<String>,
}

impl OffloadsOff {
    /// All offloads. The named ones are off.
    pub(crate) fn rest(&self) -> Offloads {
        let offloads = Offloads::default();
        for (name, switch) in offloads.all() {
            switch.set_enabled(!self.off.iter().any(|off| off == ALL || off == name));
        }
        offloads
    }
}

/// A parser of the valid names. It refuses others with a list of the valid ones.
pub(crate) fn names() -> PossibleValuesParser {
    let each = Offloads::default().all().map(|(name, _)| name);
    std::iter::once(ALL).chain(each).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        offloads: OffloadsOff,
    }

    fn on(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let line = ["linerate"].iter().chain(arguments);
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        let offloads = line.offloads.rest();
        let on = offloads.all().into_iter().filter(|(_, switch)| switch.is_enabled());
        Ok(on.map(|(name, _)| name).collect())
    }

    #[test]
    fn named_offloads_are_off_and_the_rest_on() {
        assert_eq!(on(&[]).unwrap().len(), 7);
        let named = ["--offload-off", "tun-tso,udp-gro", "--offload-off=udp-gso"];
        assert_eq!(
            on(&named).unwrap(),
            ["tun-uso", "tun-tunnel-gso", "tun-tcp-gro", "tun-udp-gro"]
        );
        assert!(on(&["--offload-off", "all"]).unwrap().is_empty());
    }

    #[test]
    fn unknown_offload_is_refused_with_the_valid_names() {
        let error = on(&["--offload-off", "tun-tso,tun-sto"]).unwrap_err();
        assert!(error.contains("'tun-sto'"), "{error}");
        for name in ["all", "tun-tso", "tun-uso", "tun-tcp-gro", "tun-udp-gro", "udp-gso"] {
            assert!(error.contains(name), "no {name} in {error}");
        }
    }
}
