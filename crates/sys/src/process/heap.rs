//! The resident memory of the heap.
#![expect(unsafe_code, reason = "libc has no wrapper for malloc_trim and mallopt")]

/// The initial threshold of glibc in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Fixes the size above which glibc maps an allocation separately from the heap (mallopt(3)). By
/// default glibc raises this threshold when such an allocation is freed. Later ones are in the
/// heap then, where they leave holes. This does nothing without glibc.
pub fn pin_mmap_threshold() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call only sets a number, under the allocator's lock.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Returns freed pages of all threads to the kernel (malloc_trim(3)). By default glibc returns
/// only the end of its heap, so one live byte may retain megabytes. This does nothing
/// without glibc.
pub fn release_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call accesses only free memory, under the allocator's locks.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, mem};

    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_between_live_allocations_is_released() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u32>().unwrap()
        };
        // Smaller than glibc's threshold for separate mappings.
        let mut many: Vec<Vec<u8>> = (0..256).map(|_| vec![1; 60_000]).collect();
        let alive: Vec<_> = many.iter_mut().step_by(16).map(mem::take).collect();
        drop(many);
        let before = resident();
        release_heap();
        assert!(resident() + 8_000 < before, "{before} kB before, {} kB after", resident());
        drop(alive);
    }
}
