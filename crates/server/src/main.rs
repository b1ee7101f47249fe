//! `linerate-server`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    server::program::main()
}
