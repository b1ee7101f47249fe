//! System calls that a running process makes for us, by ptrace(2). They show what code in that
//! process could request from the kernel.
//!
//! ```text
//!   attach           stops a thread that waits in the kernel
//!   call             it makes one call with its own confinement, and stops again
//!   observe_filters  from here on no call is executed, and we learn whether its filters allow it:
//!                      ours (SECCOMP_RET_TRACE)  ->  we stop it before the call, and skip that
//!                      its own (SECCOMP_RET_ERRNO) have precedence and return an error without us
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Attempts to stop a thread in the kernel, and the pause between them: 10 s in all.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of memory for arguments.
const ROOM: u64 = 64 * 1024;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `include/uapi/linux/ptrace.h` of Linux: suspends the filters. It needs CAP_SYS_ADMIN of the
/// initial user namespace, and a kernel with CONFIG_CHECKPOINT_RESTORE.
const SUSPEND_SECCOMP: libc::c_int = 1 << 21;
/// A filter of one instruction: return SECCOMP_RET_TRACE.
const TRACE_ALL: [u8; 8] = [0x06, 0, 0, 0, 0, 0, 0xf0, 0x7f];

/// The arguments of a call.
pub type Arguments = [u64; 6];

/// Stops a thread if it waits in the kernel; otherwise lets it continue. Returns the registers and
/// the process's memory.
fn stop_in_the_kernel(thread: Pid) -> Option<(user_regs_struct, File)> {
    ptrace::interrupt(thread).expect("it is there");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    let saved = ptrace::getregs(thread).expect("it is stopped");
    let memory = File::options().read(true).write(true).open(format!("/proc/{thread}/mem"));
    let memory = memory.expect("root may write to it");
    let mut found = [0; 2];
    memory.read_exact_at(&mut found, saved.rip - 2).expect("it runs code");
    if found == SYSCALL {
        return Some((saved, memory));
    }
    ptrace::cont(thread, None).expect("it is stopped");
    thread::sleep(PAUSE);
    None
}

/// A thread of another process that makes calls for us. Dropping this resumes the process, unless
/// [`Injected::observe_filters`] was used: then the process is killed.
pub struct Injected {
    thread: Pid,
    saved: user_regs_struct,
    memory: File,
    /// Address of a `syscall` instruction.
    instruction: u64,
    /// Address of memory for arguments.
    room: u64,
    used: u64,
    observing: bool,
}

impl Injected {
    /// Stops a thread that waits in the kernel.
    ///
    /// # Panics
    /// If it cannot be traced, or does not wait in the kernel.
    pub fn attach(thread: u32) -> Self {
        let thread = Pid::from_raw(thread.cast_signed());
        ptrace::seize(thread, Options::empty()).expect("root may trace");
        let Some((saved, memory)) = (0..ATTEMPTS).find_map(|_| stop_in_the_kernel(thread)) else {
            // Otherwise its parent would not learn of its end.
            let _ = ptrace::interrupt(thread);
            let _ = waitpid(thread, Some(WaitPidFlag::__WALL));
            let _ = ptrace::detach(thread, None);
            panic!("it does not wait in the kernel");
        };
        let instruction = saved.rip - 2;
        let mut this =
            Self { thread, saved, memory, instruction, room: 0, used: 0, observing: false };
        let (read_write, own) = (0x3, 0x22);
        let room = this.call(libc::SYS_mmap, [0, ROOM, read_write, own, u64::MAX, 0]);
        this.room = room.expect("memory is to be had").cast_unsigned();
        this
    }

    /// Makes a call and returns the kernel's result.
    ///
    /// # Errors
    /// The kernel's, or a filter's.
    pub fn call(&mut self, number: i64, arguments: Arguments) -> Result<i64, Errno> {
        self.begin(number, arguments);
        assert!(self.step(), "the call returns");
        let answer = self.registers().rax.cast_signed();
        if (-4095..0).contains(&answer) { Err(Errno::from_raw(-answer as i32)) } else { Ok(answer) }
    }

    /// Writes bytes to its memory for the next call, and returns the address.
    ///
    /// # Panics
    /// If the memory for arguments is used up.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room + self.used;
        self.used += (bytes.len() as u64).next_multiple_of(16);
        assert!(self.used <= ROOM, "the memory for arguments is used up");
        self.memory.write_all_at(bytes, at).expect("it has this memory");
        at
    }

    /// Reads bytes of its memory.
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at).expect("it has this memory");
        bytes
    }

    /// Frees the memory for arguments.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Starts checking the filters with [`Injected::is_allowed`]. Returns `false` if the kernel or
    /// the rights of this test do not permit it.
    pub fn observe_filters(&mut self) -> bool {
        let suspended = Options::from_bits_retain(SUSPEND_SECCOMP);
        match ptrace::setoptions(self.thread, suspended) {
            Ok(()) => {}
            Err(Errno::EPERM | Errno::EINVAL) => return false,
            Err(error) => panic!("{error}"),
        }
        let filter = self.put(&TRACE_ALL);
        let mut program = [0; 16];
        program[0] = 1;
        program[8..].copy_from_slice(&filter.to_ne_bytes());
        let program = self.put(&program);
        let set_mode_filter = 1;
        let set = self.call(libc::SYS_seccomp, [set_mode_filter, 0, program, 0, 0, 0]);
        set.expect("a filter more is taken");
        ptrace::setoptions(self.thread, Options::PTRACE_O_TRACESECCOMP).expect("it is stopped");
        // With both on one core, ten times as many calls a second are possible.
        let mut core = CpuSet::new();
        core.set(0).expect("there is a first core");
        for thread in [self.thread, Pid::from_raw(0)] {
            // If the core is not available, it takes longer.
            let _ = sched_setaffinity(thread, &core);
        }
        self.observing = true;
        true
    }

    /// Whether its filters allow a call. The call is not executed.
    pub fn is_allowed(&mut self, number: i64, arguments: Arguments) -> bool {
        assert!(self.observing, "see `observe_filters`");
        self.begin(number, arguments);
        if self.step() {
            return false;
        }
        let skipped = user_regs_struct { orig_rax: u64::MAX, ..self.registers() };
        ptrace::setregs(self.thread, skipped).expect("it is stopped");
        assert!(self.step(), "it is skipped");
        true
    }

    fn begin(&self, number: i64, [rdi, rsi, rdx, r10, r8, r9]: Arguments) {
        let registers = user_regs_struct {
            rip: self.instruction,
            rax: number.cast_unsigned(),
            // The call in which it waited must not be restarted here.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.saved
        };
        ptrace::setregs(self.thread, registers).expect("it is stopped");
    }

    /// Executes one instruction. Returns `false` if it stopped before a call that the filters
    /// allow.
    fn step(&self) -> bool {
        ptrace::step(self.thread, None).expect("it is stopped");
        match waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("it is there") {
            // From the previous call; it must not end the process.
            WaitStatus::Stopped(_, Signal::SIGPIPE) => self.step(),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_SECCOMP) => false,
            other => panic!("{other:?} at call {:#x}", self.registers().orig_rax),
        }
    }

    fn registers(&self) -> user_regs_struct {
        ptrace::getregs(self.thread).expect("it is stopped")
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        // If the process has ended, there is nothing to restore.
        if self.observing {
            let _ = kill(self.thread, Signal::SIGKILL);
            // Its parent learns of its end after us.
            let ended = |status| {
                matches!(
                    status,
                    Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(..)) | Err(Errno::ECHILD)
                )
            };
            while !ended(waitpid(self.thread, Some(WaitPidFlag::__WALL))) {}
            return;
        }
        let _ = ptrace::setregs(self.thread, self.saved);
        let _ = ptrace::detach(self.thread, None);
    }
}
