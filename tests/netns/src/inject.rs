//! System calls that a running process makes for us, by ptrace(2): what code could ask of the
//! kernel that came to run in it.
//!
//! ```text
//!   attach      a thread that waits in the kernel stands still
//!   call        it makes one call, with all that confines it, and stands still again
//!   ask         from here on nothing that it calls is carried out, and we are told whether its
//!               filters let it through:
//!                 ours (SECCOMP_RET_TRACE)  ->  we stop it before the call, and skip that
//!                 its own (SECCOMP_RET_ERRNO) count for more, and answer without us
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

/// How often a thread is looked at, and the pause after one that runs: 10 s in all.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the room for arguments.
const ROOM: u64 = 64 * 1024;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `include/uapi/linux/ptrace.h` of Linux: filters are not run. It takes CAP_SYS_ADMIN of the
/// first user namespace, and a kernel with CONFIG_CHECKPOINT_RESTORE.
const SUSPEND_SECCOMP: libc::c_int = 1 << 21;
/// A filter of one instruction: return SECCOMP_RET_TRACE.
const TRACE_ALL: [u8; 8] = [0x06, 0, 0, 0, 0, 0, 0xf0, 0x7f];

/// The arguments of a call.
pub type Arguments = [u64; 6];

/// Stops a thread, where it waits in the kernel; else it goes on for a while. The registers, and the
/// process's memory.
fn stop_in_the_kernel(thread: Pid) -> Option<(user_regs_struct, File)> {
    ptrace::interrupt(thread).expect("it is there");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    let saved = ptrace::getregs(thread).expect("it stands still");
    let memory = File::options().read(true).write(true).open(format!("/proc/{thread}/mem"));
    let memory = memory.expect("root may write to it");
    let mut found = [0; 2];
    memory.read_exact_at(&mut found, saved.rip - 2).expect("it runs code");
    if found == SYSCALL {
        return Some((saved, memory));
    }
    ptrace::cont(thread, None).expect("it stands still");
    thread::sleep(PAUSE);
    None
}

/// A thread of another process that makes calls for us. The process goes on as it was when this
/// is dropped, unless [`Injected::ask`] was used: then it is ended.
pub struct Injected {
    thread: Pid,
    saved: user_regs_struct,
    memory: File,
    /// Where there is a `syscall`.
    instruction: u64,
    /// Where there is room for arguments.
    room: u64,
    used: u64,
    asking: bool,
}

impl Injected {
    /// Stops a thread that waits in the kernel.
    ///
    /// # Panics
    /// It cannot be traced, or waits nowhere.
    pub fn attach(thread: u32) -> Self {
        let thread = Pid::from_raw(thread.cast_signed());
        ptrace::seize(thread, Options::empty()).expect("root may trace");
        let Some((saved, memory)) = (0..ATTEMPTS).find_map(|_| stop_in_the_kernel(thread)) else {
            // Else its parent would never hear of its end.
            let _ = ptrace::interrupt(thread);
            let _ = waitpid(thread, Some(WaitPidFlag::__WALL));
            let _ = ptrace::detach(thread, None);
            panic!("it does not wait in the kernel");
        };
        let instruction = saved.rip - 2;
        let mut this = Self { thread, saved, memory, instruction, room: 0, used: 0, asking: false };
        let (read_write, own) = (0x3, 0x22);
        let room = this.call(libc::SYS_mmap, [0, ROOM, read_write, own, u64::MAX, 0]);
        this.room = room.expect("memory is to be had").cast_unsigned();
        this
    }

    /// Has it make a call; the kernel's answer.
    ///
    /// # Errors
    /// The kernel's, or a filter's.
    pub fn call(&mut self, number: i64, arguments: Arguments) -> Result<i64, Errno> {
        self.begin(number, arguments);
        assert!(self.step(), "the call returns");
        let answer = self.registers().rax.cast_signed();
        if (-4095..0).contains(&answer) { Err(Errno::from_raw(-answer as i32)) } else { Ok(answer) }
    }

    /// Puts bytes where it can read them, for the next call; where they are.
    ///
    /// # Panics
    /// There is no room any more.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room + self.used;
        self.used += (bytes.len() as u64).next_multiple_of(16);
        assert!(self.used <= ROOM, "the room is used up");
        self.memory.write_all_at(bytes, at).expect("it has this memory");
        at
    }

    /// Bytes of its memory.
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at).expect("it has this memory");
        bytes
    }

    /// Forgets what was put.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Goes over to asking what its filters let through. `false` where this kernel, or the rights
    /// of this test, do not allow for it.
    pub fn ask(&mut self) -> bool {
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
        ptrace::setoptions(self.thread, Options::PTRACE_O_TRACESECCOMP).expect("it stands still");
        // By turns on one core they need no other to wake up: ten times as many calls a second.
        let mut core = CpuSet::new();
        core.set(0).expect("there is a first core");
        for thread in [self.thread, Pid::from_raw(0)] {
            // Where that core is not to be had, it takes longer.
            let _ = sched_setaffinity(thread, &core);
        }
        self.asking = true;
        true
    }

    /// Whether its filters let a call through. It is not made.
    pub fn passes(&mut self, number: i64, arguments: Arguments) -> bool {
        assert!(self.asking, "see `ask`");
        self.begin(number, arguments);
        if self.step() {
            return false;
        }
        let skipped = user_regs_struct { orig_rax: u64::MAX, ..self.registers() };
        ptrace::setregs(self.thread, skipped).expect("it stands still");
        assert!(self.step(), "it is skipped");
        true
    }

    fn begin(&self, number: i64, [rdi, rsi, rdx, r10, r8, r9]: Arguments) {
        let registers = user_regs_struct {
            rip: self.instruction,
            rax: number.cast_unsigned(),
            // The call that it waits in is not to be taken up again here.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.saved
        };
        ptrace::setregs(self.thread, registers).expect("it stands still");
    }

    /// One instruction. `false` where it stands before the call, which the filters let through.
    fn step(&self) -> bool {
        ptrace::step(self.thread, None).expect("it stands still");
        match waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("it is there") {
            // Of the call before; it is not to end by what we do.
            WaitStatus::Stopped(_, Signal::SIGPIPE) => self.step(),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_SECCOMP) => false,
            other => panic!("{other:?} at call {:#x}", self.registers().orig_rax),
        }
    }

    fn registers(&self) -> user_regs_struct {
        ptrace::getregs(self.thread).expect("it stands still")
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        // Where it is gone, there is nothing to put back.
        if self.asking {
            let _ = kill(self.thread, Signal::SIGKILL);
            // Its parent hears of its end when we did.
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
