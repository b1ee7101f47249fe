//! Sets breakpoints on the functions of our own cryptography. A call to one ends the process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use netns::{Host, Implementation};

/// Prefixes of the functions' names, for each of our crates and for graviola.
const OWN: [&[&str]; 3] = [
    &["crypto::aead::group::", "crypto::aead::avx2::", "crypto::aead::avx512::"],
    &["crypto::x25519::avx512::", "graviola::"],
    &["crypto::blake2s::avx512::"],
];
/// These only detect features of the processor.
const HARMLESS: [&str; 3] = ["::new", "::is_available", "cpu::"];
/// The instruction `int3`: the process ends by SIGTRAP.
const TRAP: [u8; 1] = [0xcc];

/// Writes a trap at the start of each of these functions.
pub(super) fn trap(host: &Host, pid: u32) {
    let program = Implementation::Linerate.path();
    let listed = Command::new("nm").arg("--demangle").arg(&program).output();
    let listed = listed.expect("nm is installed (make deps)").stdout;
    let listed = String::from_utf8_lossy(&listed);
    let maps = host.read(&format!("/proc/{pid}/maps"));
    let base = maps.split('-').next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let base = base.expect("the program is mapped first");
    let memory = host.outside(format!("/proc/{pid}/mem"));
    let memory = File::options().write(true).open(memory).expect("root may write it");
    for prefixes in OWN {
        let functions = listed.lines().filter_map(|line| {
            let (address, rest) = line.split_once(' ')?;
            let name = rest.strip_prefix("t ").or_else(|| rest.strip_prefix("T "))?;
            let name = name.trim_start_matches('<');
            let is_own = prefixes.iter().any(|prefix| name.starts_with(prefix));
            let is_trapped = is_own && !HARMLESS.iter().any(|part| name.contains(part));
            is_trapped.then(|| u64::from_str_radix(address, 16).expect("an address"))
        });
        let mut count = 0;
        for function in functions {
            memory.write_all_at(&TRAP, base + function).expect("root may write code");
            count += 1;
        }
        assert!(count > 0, "no function of {prefixes:?}: have the names changed?");
    }
}
