//! Lists everything that the filters of a process allow, as readable text.

use std::collections::BTreeSet;

use netns::{Arguments, Injected};
use nix::libc;

use crate::confined::names::{call, domain, kind, option};

/// Limit of call numbers: the last call of Linux 6.18 is 469 (`file_setattr`), with room for new
/// ones.
const CALLS: i64 = 512;
/// `uretprobe` and `uprobe`: filters do not apply to them, and outside of the kernel's own trampolines
/// they raise SIGILL (Linux 6.11 and 6.18).
const PROBES_OF_THE_KERNEL: [i64; 2] = [335, 336];
/// The bit of calls in the x32 table of x86-64.
const X32: i64 = 0x4000_0000;
/// Arguments that are invalid for every call.
const PROBES: [u64; 3] = [0, u64::MAX, 0x5a5a_5a5a_5a5a_5a5a];

/// Calls with restricted arguments, which are swept separately.
const BY_ARGUMENTS: [i64; 9] = [
    libc::SYS_socket,
    libc::SYS_setsockopt,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_prctl,
    libc::SYS_clone,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_tgkill,
];

/// Everything that is allowed.
pub(super) fn sweep(injected: &mut Injected, own_pid: u64) -> String {
    let mut text = "system calls, whatever their arguments:\n".to_owned();
    let mut whole = Vec::new();
    for number in calls() {
        if PROBES.iter().all(|&probe| injected.is_allowed(number, [probe; 6])) {
            whole.push(number);
        }
    }
    whole.iter().for_each(|&number| text.push_str(&format!("  {}\n", call(number))));
    text.push_str("system calls, by their arguments:\n");
    let mut add = |lines: Vec<String>| lines.iter().for_each(|line| text += &format!("  {line}\n"));
    for number in BY_ARGUMENTS.iter().filter(|number| !whole.contains(number)) {
        add(match *number {
            libc::SYS_socket => sockets(injected),
            libc::SYS_setsockopt => options(injected),
            libc::SYS_ioctl => numbered(injected, *number, 1, requests()),
            libc::SYS_fcntl => numbered(injected, *number, 1, (0..64).chain(1024..1056)),
            libc::SYS_prctl => {
                let named = [0x5356_4d41, 0x5961_6d61].into_iter();
                numbered(injected, *number, 0, (0..100).chain(named))
            }
            libc::SYS_clone => clones(injected),
            libc::SYS_tgkill => {
                numbered(injected, *number, 0, [own_pid, 1, own_pid + 1].into_iter())
                    .iter()
                    .map(|line| line.replace(&format!(" {own_pid:#x}"), " itself"))
                    .collect()
            }
            number => numbered(injected, number, 2, 0..16),
        });
    }
    add(others(injected, &whole));
    text
}

fn calls() -> impl Iterator<Item = i64> {
    (0..CALLS).filter(|number| !PROBES_OF_THE_KERNEL.contains(number))
}

/// Calls that are allowed by arguments not tried above, and those of the x32 table.
fn others(injected: &mut Injected, whole: &[i64]) -> Vec<String> {
    let is_known = |number: &i64| whole.contains(number) || BY_ARGUMENTS.contains(number);
    let mut found = Vec::new();
    for number in calls().filter(|number| !is_known(number)) {
        for place in 0..3 {
            for value in (0..16).chain([64, 4096, 1 << 16, 1 << 30]) {
                let mut arguments = [0; 6];
                arguments[place] = value;
                if injected.is_allowed(number, arguments) {
                    found.push(format!("{} with {value:#x} at {place}", call(number)));
                }
            }
        }
    }
    for number in (0..CALLS + 64).map(|number| number | X32) {
        if injected.is_allowed(number, [0; 6]) {
            found.push(format!("x32: {}", number & !X32));
        }
    }
    found
}

fn sockets(injected: &mut Injected) -> Vec<String> {
    let protocols = || (0..40).chain([41, 58, 132, 136, 143, 255, 256, 262]);
    let mut lines = Vec::new();
    for (family, of_type) in
        (0..48).flat_map(|family| (0..16).map(move |of_type| (family, of_type)))
    {
        let passing: Vec<u64> = protocols()
            .filter(|&protocol| {
                injected.is_allowed(libc::SYS_socket, [family, of_type, protocol, 0, 0, 0])
            })
            .collect();
        let what = format!("socket {} {}", domain(family), kind(of_type));
        if passing.len() == protocols().count() {
            lines.push(format!("{what} of any protocol"));
        } else {
            lines.extend(passing.iter().map(|protocol| format!("{what} {protocol}")));
        }
    }
    lines
}

fn options(injected: &mut Injected) -> Vec<String> {
    let mut lines = Vec::new();
    for level in 0..320 {
        let is_common = [0, 1, 6, 17, 41, 255, 270].contains(&level);
        for number in 0..if is_common { 160 } else { 16 } {
            if injected.is_allowed(libc::SYS_setsockopt, [0, level, number, 0, 0, 0]) {
                lines.push(format!("setsockopt {}", option(level, number)));
            }
        }
    }
    lines
}

/// The allowed values of one argument, or the denied ones if most are allowed.
fn numbered(
    injected: &mut Injected,
    number: i64,
    place: usize,
    values: impl Iterator<Item = u64>,
) -> Vec<String> {
    let (mut passing, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for value in values {
        let mut arguments: Arguments = [0; 6];
        arguments[place] = value;
        let passes = injected.is_allowed(number, arguments);
        if passes { &mut passing } else { &mut refused }.insert(value);
    }
    let each = |values: &BTreeSet<u64>, but: &str| {
        values.iter().map(|value| format!("{}{but} {value:#x}", call(number))).collect()
    };
    match passing.len() > 64 {
        true => each(&refused, " all but"),
        false => each(&passing, ""),
    }
}

/// ioctl requests of terminals and files, of sockets and devices; and with sizes as a TUN device
/// has.
fn requests() -> impl Iterator<Item = u64> {
    let ways = [0x4000_0000, 0x8000_0000, 0xc000_0000];
    let sizes = [4, 8, 16, 40].map(|size: u64| size << 16);
    let long = ways.into_iter().flat_map(move |way| sizes.map(|size| way | size));
    let old = [0, 0x5400, 0x8900, 0x8b00].into_iter().flat_map(|kind| kind..kind + 256);
    old.chain(long.flat_map(|form| (0..256).map(move |n| form | 0x5400 | n)))
}

/// Each flag alone, and with CLONE_THREAD.
fn clones(injected: &mut Injected) -> Vec<String> {
    let thread = libc::CLONE_THREAD as u64;
    let flags = || (0..32).map(|bit| 1u64 << bit).filter(move |&flag| flag != thread);
    let mut tried = |flags: u64| injected.is_allowed(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]);
    let mut lines = Vec::new();
    if tried(0) {
        lines.push("clone without a flag".to_owned());
    }
    lines.extend(flags().filter(|&flag| tried(flag)).map(|flag| format!("clone {flag:#x}")));
    if tried(thread) {
        lines.push("clone CLONE_THREAD".to_owned());
    }
    lines
}
