//! The resident memory of the program's code.
#![expect(unsafe_code, reason = "madvise on the mappings of code")]

use std::{ffi::c_void, fs, io, ptr::NonNull};

use nix::sys::mman::{MmapAdvise, madvise};

/// Releases the code pages of the program and its libraries. Code that runs again is loaded from
/// the page cache. Code that only the start needs (arguments, files, netlink) stays unloaded: 3 of
/// 5 MB.
///
/// # Errors
/// `/proc` is not mounted.
pub fn release_code() -> io::Result<()> {
    for (start, len) in fs::read_to_string("/proc/self/maps")?.lines().filter_map(code) {
        // SAFETY: these pages are not writable, so they have the file's contents before and after.
        // (A debugger may write to them. Its breakpoints are lost.)
        unsafe { madvise(start, len, MmapAdvise::MADV_DONTNEED) }?;
    }
    Ok(())
}

/// Start and length of a mapping, from a line of `/proc/PID/maps` (proc_pid_maps(5)). `None` if it
/// is not the code of a file.
fn code(line: &str) -> Option<(NonNull<c_void>, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp";
    let is_of_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
    let (start, len) = (start?, end?.checked_sub(start?)?);
    (is_code && is_of_file).then_some((NonNull::new(start as *mut c_void)?, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_released() {
        let line = |flags: &str, path: &str| format!("1000-3000 {flags} 0000 fe:00 7 {path}");
        let found = code(&line("r-xp", "/usr/bin/x")).map(|(start, len)| (start.addr().get(), len));
        assert_eq!(found, Some((0x1000, 0x2000)));
        // Relocated pages and pages without a file would be lost.
        for (flags, path) in [("r--p", "/x"), ("rw-p", "/x"), ("r-xs", "/x"), ("r-xp", "[vdso]")] {
            assert_eq!(code(&line(flags, path)), None, "{flags} {path}");
        }
        assert_eq!(code("1000-3000 r-xp 0000 fe:00 0"), None);
    }

    #[test]
    fn released_code_is_loaded_again_when_it_runs() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u32>().unwrap()
        };
        let before = resident();
        release_code().unwrap();
        let after = resident();
        assert!(after < before, "{before} KB, then {after}");
        assert!(release_code().is_ok());
    }
}
