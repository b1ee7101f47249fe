//! The resident memory that only the start needed: of code, of the heap, of the main thread's stack.
#![expect(unsafe_code, reason = "madvise on the mappings of code and the stack")]

use std::{
    ffi::c_void,
    fs, hint, io,
    ops::Range,
    ptr::{self, NonNull},
};

use nix::{
    sys::mman::{MmapAdvise, madvise},
    unistd::{SysconfVar, sysconf},
};

use super::release_heap;

/// Bytes of the stack below a function's own frame that are left alone: what it calls has its frames
/// there, and no signal has a handler that needs more.
const DEEPER: usize = 16 << 10;

/// Releases what only the start needed (arguments, files, netlink), 3 of 5 MB: the code pages of the
/// program and its libraries, of which those that are used again come back from the page cache; freed
/// memory of the heap; and, on the main thread, the stack below the caller.
///
/// # Errors
/// `/proc` is not mounted.
pub fn release_unused() -> io::Result<()> {
    release_heap();
    let here = 0_u8;
    let here = ptr::from_ref(hint::black_box(&here)).addr();
    let page = sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(65_536) as usize;
    for mapping in fs::read_to_string("/proc/self/maps")?.lines().filter_map(Mapping::parse) {
        let Some(Range { start, end }) = mapping.unused(here, page) else { continue };
        let Some(at) = NonNull::new(start as *mut c_void) else { continue };
        // SAFETY: what is not writable is the file's contents before and after (a debugger may write
        // to it; its breakpoints are lost). Of this thread's stack nothing is in use so far below.
        unsafe { madvise(at, end - start, MmapAdvise::MADV_DONTNEED) }?;
    }
    Ok(())
}

/// A line of `/proc/PID/maps` (proc_pid_maps(5)).
struct Mapping<'a> {
    bytes: Range<usize>,
    flags: &'a str,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Mapping<'a>> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
        let flags = fields.next()?;
        Some(Mapping { bytes: start?..end?, flags, path: fields.nth(3).unwrap_or_default() })
    }

    /// Its bytes that are not in use: all of a file's code, and of the main thread's stack the pages
    /// below an address in it.
    fn unused(self, here: usize, page: usize) -> Option<Range<usize>> {
        let Range { start, end } = self.bytes.clone();
        let is_stack = self.path == "[stack]" && self.bytes.contains(&here);
        let end = if is_stack { here.saturating_sub(DEEPER) & !(page - 1) } else { end };
        let is_code = self.flags == "r-xp" && self.path.starts_with('/');
        ((is_code || is_stack) && start < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In kB.
    fn resident(what: &str) -> u32 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn unused(flags: &str, path: &str, here: usize) -> Option<Range<usize>> {
        let line = format!("10000-30000 {flags} 0000 fe:00 7 {path}");
        Mapping::parse(&line).unwrap().unused(here, 4096)
    }

    #[test]
    fn code_of_files_is_let_go_of_and_nothing_else_that_is_mapped() {
        assert_eq!(unused("r-xp", "/usr/bin/x", 0), Some(0x10000..0x30000));
        // Relocated pages and pages without a file would be lost.
        for (flags, path) in [("r--p", "/x"), ("rw-p", "/x"), ("r-xs", "/x"), ("r-xp", "[vdso]")] {
            assert_eq!(unused(flags, path, 0), None, "{flags} {path}");
        }
        let nameless = Mapping::parse("10000-30000 r-xp 0000 fe:00 0").unwrap();
        assert_eq!(nameless.unused(0, 4096), None);
    }

    #[test]
    fn the_main_threads_stack_is_let_go_of_far_below_what_it_uses() {
        let stack = |here| unused("rw-p", "[stack]", here);
        assert_eq!(stack(0x2f123), Some(0x10000..0x2b000));
        assert_eq!(stack(0x14fff), None);
        assert_eq!(stack(0x15000), Some(0x10000..0x11000));
        // Another thread asks.
        assert_eq!(stack(0x40000), None);
    }

    #[test]
    fn what_was_let_go_of_comes_back_when_it_is_used() {
        let before = resident("RssFile:");
        release_unused().unwrap();
        let after = resident("RssFile:");
        assert!(after < before, "{before} KB, then {after}");
        assert!(release_unused().is_ok());
    }
}
