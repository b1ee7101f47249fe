//! `linerate`; see the library of the same package.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    cli::main()
}
