//! A peer without a filter; see `linerate_bench::filtered`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use linerate_bench::filtered::peer;

fn main() -> ExitCode {
    peer(None)
}
