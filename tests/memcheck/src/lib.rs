//! Tests that no branch and no address depends on a secret. A test marks secrets as undefined memory, and
//! valgrind's memcheck counts the branches and addresses that undefined memory decides.
//!
//! `make memcheck` runs these tests. Their names begin with `memcheck`, and without valgrind they are
//! ignored. Valgrind does not know AVX-512, so code for AVX-512 is not among what runs.

use std::hint::black_box;

/// `RUNNING_ON_VALGRIND` and `VALGRIND_COUNT_ERRORS` of `valgrind.h`, and two of `memcheck.h`.
const RUNNING: usize = 0x1001;
const COUNT_ERRORS: usize = 0x1201;
const MAKE_UNDEFINED: usize = 0x4d43_0001;
const MAKE_DEFINED: usize = 0x4d43_0002;

/// `VALGRIND_DO_CLIENT_REQUEST_EXPR`: without valgrind it does nothing and returns 0.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "assembly")]
fn request(request: usize, address: usize, len: usize) -> usize {
    let arguments = [request, address, len, 0, 0, 0];
    let mut result = 0;
    // SAFETY: the rotations add up to 128 bits, and the register is exchanged with itself. Nothing
    // changes except under valgrind, which reads the arguments and sets the result.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdi") 0usize => _,
            in("rax") std::ptr::from_ref(&arguments),
            inout("rdx") result,
        );
    }
    result
}

/// Other processors: no request.
#[cfg(not(target_arch = "x86_64"))]
fn request(_: usize, _: usize, _: usize) -> usize {
    0
}

/// Marks bytes as secret.
pub fn hide(bytes: &[u8]) {
    request(MAKE_UNDEFINED, bytes.as_ptr().addr(), bytes.len());
}

/// Marks bytes as public.
pub fn show(bytes: &[u8]) {
    request(MAKE_DEFINED, bytes.as_ptr().addr(), bytes.len());
}

/// The same value, marked as public.
pub fn shown(verdict: bool) -> bool {
    let place = [u8::from(verdict)];
    show(black_box(&place));
    black_box(&place)[0] == 1
}

/// The number of decisions by secrets in `work`.
pub fn decisions(work: impl FnOnce()) -> usize {
    let before = request(COUNT_ERRORS, 0, 0);
    work();
    request(COUNT_ERRORS, 0, 0) - before
}

/// Begins a test.
///
/// # Panics
/// The test does not run under valgrind, or valgrind does not count a decision that exists.
pub fn begin() {
    assert!(request(RUNNING, 0, 0) > 0, "run this by `make memcheck`");
    let secret = black_box([3u8; 32]);
    hide(&secret);
    let branch = || {
        if black_box(&secret)[7] == 3 {
            black_box(&secret);
        }
    };
    assert_eq!(decisions(branch), 1, "memcheck sees a decision");
}
