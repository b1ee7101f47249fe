//! Sheds most of a flood in the kernel, by a filter of the socket (classic BPF, socket(7)).
//! Dropped datagrams take neither buffer space, nor a copy, nor a wake-up.
//!
//! ```text
//!   UDP header, payload ── 1 to 4, little-endian ──► received
//!     |── from an expected address ────────────────► received
//!     |── random share ──────────────────────────────► received
//!     `────────────────────────────────────────────► dropped
//! ```
//!
//! For coalesced datagrams the first one decides.

use std::net::{IpAddr, Ipv6Addr};

use libc::{
    BPF_ABS, BPF_B, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_MEM, BPF_RET, BPF_ST, BPF_W,
    sock_filter,
};
use nix::{
    errno::Errno,
    getsockopt_impl, setsockopt_impl, sockopt_impl,
    sys::socket::{getsockopt, setsockopt},
};
use packet::Flood;

use super::socket::Socket;

/// The maximum number of expected addresses. Each is translated to up to 14 internal instructions
/// of eight bytes, and Linux before 6.7 limits a socket to 20,480 bytes (`net.core.optmem_max`).
const MAX_ADDRESSES: usize = 160;
/// The offset of a datagram's payload, after the UDP header.
const PAYLOAD: u32 = 8;
/// The offset of the IP header.
const IP: u32 = libc::SKF_NET_OFF as u32;
/// The offset from which a load returns a new random number.
const RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
/// Words of an IPv6 address.
const WORDS: u32 = 4;
/// Words of `SO_MEMINFO`.
const MEMINFO: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// A filter program for the socket.
#[derive(Clone, Debug)]
pub(super) struct Program(Vec<sock_filter>);

impl Program {
    pub(super) fn new(flood: &Flood) -> Self {
        let mut program = vec![load(BPF_W, PAYLOAD)];
        for kind in 1_u32..=4 {
            program.extend(accept_if(kind.swap_bytes()));
        }
        let mut v4 = vec![load(BPF_W, IP + 12)];
        let mut v6: Vec<_> = (0..WORDS).flat_map(store_word).collect();
        for address in flood.expected.iter().take(MAX_ADDRESSES) {
            match address.to_canonical() {
                IpAddr::V4(address) => v4.extend(accept_if(address.to_bits())),
                IpAddr::V6(address) => v6.extend(accept_if_source(address)),
            }
        }
        let chance = [load(BPF_W, RANDOM), jump(BPF_JGE, flood.share, 1, 0), ACCEPT, DROP];
        // The version is in the upper four bits.
        program.push(load(BPF_B, IP));
        program.push(jump(BPF_JGE, 0x60, 0, 1));
        program.push(skip(v4.len() + chance.len()));
        program.extend(v4);
        program.extend(chance);
        program.extend(v6);
        program.extend(chance);
        Self(program)
    }
}

impl Socket {
    /// Attaches a program and removes the previous one. If the kernel refuses it, the socket has
    /// no filter.
    pub(super) fn set_filter(&self, program: Option<&Program>) -> Result<(), Errno> {
        // Both together would exceed the limit of a socket.
        if self.sheds() {
            setsockopt(self, DetachFilter, &0)?;
            self.end_shedding(self.memory().map(|memory| memory.drops));
        }
        let Some(Program(program)) = program else { return Ok(()) };
        let program = libc::sock_fprog {
            len: program.len() as u16,
            // The kernel only reads the program.
            filter: program.as_ptr().cast_mut(),
        };
        setsockopt(self, AttachFilter, &program)?;
        self.begin_shedding();
        Ok(())
    }

    /// Whether the receive buffer is more than half full although a batch was received. Then the
    /// filter did not cause all drops.
    pub(super) fn is_crowded(&self) -> bool {
        self.memory().is_ok_and(|memory| memory.queued > memory.capacity / 2)
    }

    fn memory(&self) -> Result<Memory, Errno> {
        let info: [u32; MEMINFO] = getsockopt(self, Meminfo)?;
        let [queued, capacity, drops] =
            [libc::SK_MEMINFO_RMEM_ALLOC, libc::SK_MEMINFO_RCVBUF, libc::SK_MEMINFO_DROPS]
                .map(|number| info[number as usize]);
        Ok(Memory { queued, capacity, drops })
    }
}

/// Used and maximum size of a socket's receive queue, in bytes of kernel memory, and the number of
/// dropped datagrams.
struct Memory {
    queued: u32,
    capacity: u32,
    drops: u32,
}

const ACCEPT: sock_filter = instruction(BPF_RET | BPF_K, u32::MAX, 0, 0);
const DROP: sock_filter = instruction(BPF_RET | BPF_K, 0, 0, 0);

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Loads from an offset. Beyond the end of the datagram, the kernel drops it.
const fn load(width: u32, at: u32) -> sock_filter {
    instruction(BPF_LD | width | BPF_ABS, at, 0, 0)
}

const fn jump(condition: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(BPF_JMP | condition | BPF_K, value, then, otherwise)
}

fn skip(instructions: usize) -> sock_filter {
    instruction(BPF_JMP | libc::BPF_JA, instructions as u32, 0, 0)
}

fn accept_if(value: u32) -> [sock_filter; 2] {
    [jump(BPF_JEQ, value, 0, 1), ACCEPT]
}

/// Stores a word of the IPv6 source address in scratch memory. A load from the packet takes eight
/// internal instructions, a load from scratch memory one.
fn store_word(number: u32) -> [sock_filter; 2] {
    [load(BPF_W, IP + 8 + 4 * number), instruction(BPF_ST, number, 0, 0)]
}

/// Compares the IPv6 source address word by word.
fn accept_if_source(address: Ipv6Addr) -> [sock_filter; 9] {
    let bits = address.to_bits();
    let word = |number: u32| instruction(BPF_LD | BPF_MEM, number, 0, 0);
    let or_continue =
        |number: u32, skipped| jump(BPF_JEQ, (bits >> (96 - 32 * number)) as u32, 0, skipped);
    [
        word(0),
        or_continue(0, 7),
        word(1),
        or_continue(1, 5),
        word(2),
        or_continue(2, 3),
        word(3),
        or_continue(3, 1),
        ACCEPT,
    ]
}

sockopt_impl!(
    /// Attaches a filter program.
    AttachFilter,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_FILTER,
    libc::sock_fprog
);
sockopt_impl!(
    /// Removes the filter program.
    DetachFilter,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_DETACH_FILTER,
    libc::c_int
);
sockopt_impl!(
    /// The memory of the socket, and the number of dropped datagrams.
    Meminfo,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_MEMINFO,
    [u32; MEMINFO]
);
