//! A peer with a filter of 1,000 rules; see `linerate_bench::filtered`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use linerate_bench::filtered::{peer, policy};

fn main() -> ExitCode {
    peer(Some(policy(1_000)))
}
