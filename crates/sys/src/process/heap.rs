//! The resident memory of the heap.
#![expect(unsafe_code, reason = "libc has no wrapper for malloc_trim and mallopt")]

/// glibc's threshold to begin with, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Has what is large mapped apart from the heap, always (mallopt(3)). By itself glibc puts it into
/// the heap from the second time on, where it leaves holes once it is freed. Without glibc it does
/// nothing.
pub fn pin_mmap_threshold() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it sets a number, under the allocator's lock.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Returns freed pages of all threads to the kernel (malloc_trim(3)). By itself glibc returns only
/// the end of its heap, so that one live byte may hold on to megabytes. Without glibc it does
/// nothing.
pub fn release_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it touches only free memory, under the allocator's locks.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, mem};

    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_lies_between_things_alive_is_given_back() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u32>().unwrap()
        };
        // Smaller than glibc's threshold for a mapping of its own.
        let mut many: Vec<Vec<u8>> = (0..256).map(|_| vec![1; 60_000]).collect();
        let alive: Vec<_> = many.iter_mut().step_by(16).map(mem::take).collect();
        drop(many);
        let before = resident();
        release_heap();
        assert!(resident() + 8_000 < before, "{before} kB, and then {}", resident());
        drop(alive);
    }
}
