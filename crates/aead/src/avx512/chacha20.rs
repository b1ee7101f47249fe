//! ChaCha20 (RFC 8439 section 2.3), 16 or 32 blocks at a time: a register holds one
//! word of 16 blocks, and after the rounds it is transposed, one block of keystream a
//! row.
//!
//! Two states side by side fill all 32 registers and leave none free, which no round
//! needs: 570 cycles for 16 blocks instead of 645 (Zen 4). All of it is macros, since
//! functions around so many registers spilled them.

use std::arch::x86_64::{
    __m512i, __mmask16, _mm512_add_epi32, _mm512_mask_add_epi32, _mm512_mask_set1_epi32,
    _mm512_rol_epi32, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_setzero_si512,
    _mm512_shuffle_i32x4, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::register::{load, store};
use crate::{
    Key,
    group::{Packet, Run},
    row::Row,
};

/// Blocks of one state.
pub(super) const LANES: usize = 16;

/// "expand 32-byte k".
const CONSTANTS: [i32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// What is not the same in every state: word by word, a lane for each block.
#[derive(Clone, Copy, Default)]
pub(super) struct Lanes {
    pub(super) key: [Row; 8],
    /// The block counter.
    block: Row,
    /// The nonce: 32 zero bits, then the packet counter's halves.
    low: Row,
    high: Row,
}

impl Lanes {
    /// Takes of the runs what is in the lanes from `begin` on.
    #[target_feature(enable = "avx512f")]
    pub(super) fn assign(
        &mut self,
        packets: &[Packet<'_>],
        runs: &[Run],
        begin: usize,
        one_key: bool,
    ) {
        let zero = _mm512_setzero_si512();
        let [mut block, mut low, mut high] = [zero; 3];
        let iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for run in runs.iter().filter(|run| run.lane + run.blocks > begin) {
            let lane = run.lane.saturating_sub(begin);
            if lane >= LANES {
                break;
            }
            // From its first lane to the end: later runs overwrite.
            let mask = 0xffff << lane;
            let from = _mm512_set1_epi32((run.block + begin) as i32 - run.lane as i32);
            block = _mm512_mask_add_epi32(block, mask, iota, from);
            let counter = packets[run.packet].counter;
            low = _mm512_mask_set1_epi32(low, mask, counter as i32);
            high = _mm512_mask_set1_epi32(high, mask, (counter >> 32) as i32);
        }
        store(&mut self.block, block);
        store(&mut self.low, low);
        store(&mut self.high, high);
        if one_key {
            self.assign_key(packets[0].key, 0xffff);
        } else {
            for run in runs.iter().filter(|run| run.lane + run.blocks > begin) {
                let lane = run.lane.saturating_sub(begin);
                if lane >= LANES {
                    break;
                }
                self.assign_key(packets[run.packet].key, 0xffff << lane);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn assign_key(&mut self, key: &Key, mask: __mmask16) {
        for (row, word) in self.key.iter_mut().zip(key.words()) {
            let value = _mm512_mask_set1_epi32(load(row), mask, *word as i32);
            store(row, value);
        }
    }
}

// Quarter rounds side by side: within one, each instruction waits for the one before.
macro_rules! quarter_rounds {
    ($($a:ident $b:ident $c:ident $d:ident),+) => {
        quarter_rounds!(@ 16 $($a $b $d),+);
        quarter_rounds!(@ 12 $($c $d $b),+);
        quarter_rounds!(@ 8 $($a $b $d),+);
        quarter_rounds!(@ 7 $($c $d $b),+);
    };
    (@ $by:literal $($a:ident $b:ident $d:ident),+) => {
        $($a = _mm512_add_epi32($a, $b);)+
        $($d = _mm512_xor_si512($d, $a);)+
        $($d = _mm512_rol_epi32::<$by>($d);)+
    };
}

// The state before the rounds, in new variables.
macro_rules! begin {
    ($lanes:expr => $a0:ident $a1:ident $a2:ident $a3:ident $b0:ident $b1:ident $b2:ident
     $b3:ident $c0:ident $c1:ident $c2:ident $c3:ident $d0:ident $d1:ident $d2:ident
     $d3:ident) => {
        let [mut $a0, mut $a1, mut $a2, mut $a3] = constants();
        let [mut $b0, mut $b1, mut $b2, mut $b3, mut $c0, mut $c1, mut $c2, mut $c3] =
            load_key(&$lanes.key);
        let (mut $d0, mut $d1) = (load(&$lanes.block), _mm512_setzero_si512());
        let (mut $d2, mut $d3) = (load(&$lanes.low), load(&$lanes.high));
    };
}

// Adds the state from before the rounds, and stores block by block.
macro_rules! end {
    ($lanes:expr, $rows:expr; $a0:ident $a1:ident $a2:ident $a3:ident $b0:ident $b1:ident
     $b2:ident $b3:ident $c0:ident $c1:ident $c2:ident $c3:ident $d0:ident $d1:ident
     $d2:ident $d3:ident) => {
        let [k0, k1, k2, k3, k4, k5, k6, k7] = load_key(&$lanes.key);
        let [a0, a1, a2, a3] = constants();
        let (a0, a1) = (_mm512_add_epi32($a0, a0), _mm512_add_epi32($a1, a1));
        let (a2, a3) = (_mm512_add_epi32($a2, a2), _mm512_add_epi32($a3, a3));
        let [a0, a1, a2, a3] = quarters(a0, a1, a2, a3);
        let (b0, b1) = (_mm512_add_epi32($b0, k0), _mm512_add_epi32($b1, k1));
        let (b2, b3) = (_mm512_add_epi32($b2, k2), _mm512_add_epi32($b3, k3));
        let [b0, b1, b2, b3] = quarters(b0, b1, b2, b3);
        let (c0, c1) = (_mm512_add_epi32($c0, k4), _mm512_add_epi32($c1, k5));
        let (c2, c3) = (_mm512_add_epi32($c2, k6), _mm512_add_epi32($c3, k7));
        let [c0, c1, c2, c3] = quarters(c0, c1, c2, c3);
        let d0 = _mm512_add_epi32($d0, load(&$lanes.block));
        let d2 = _mm512_add_epi32($d2, load(&$lanes.low));
        let d3 = _mm512_add_epi32($d3, load(&$lanes.high));
        let [d0, d1, d2, d3] = quarters(d0, $d1, d2, d3);
        store_rows($rows, 0, [a0, b0, c0, d0]);
        store_rows($rows, 1, [a1, b1, c1, d1]);
        store_rows($rows, 2, [a2, b2, c2, d2]);
        store_rows($rows, 3, [a3, b3, c3, d3]);
    };
}

/// The keystream of 16 blocks.
#[target_feature(enable = "avx512f")]
pub(super) fn keystream(lanes: &Lanes, rows: &mut [Row; LANES]) {
    begin!(lanes => a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 d0 d1 d2 d3);
    for _ in 0..10 {
        quarter_rounds!(a0 b0 c0 d0, a1 b1 c1 d1, a2 b2 c2 d2, a3 b3 c3 d3);
        quarter_rounds!(a0 b1 c2 d3, a1 b2 c3 d0, a2 b3 c0 d1, a3 b0 c1 d2);
    }
    end!(lanes, rows; a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 d0 d1 d2 d3);
}

/// The keystream of 32 blocks.
#[target_feature(enable = "avx512f")]
pub(super) fn keystream_two(lanes: &[Lanes; 2], rows: [&mut [Row; LANES]; 2]) {
    let [first, second] = lanes;
    begin!(first => a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 d0 d1 d2 d3);
    begin!(second => e0 e1 e2 e3 f0 f1 f2 f3 g0 g1 g2 g3 h0 h1 h2 h3);
    for _ in 0..10 {
        quarter_rounds!(a0 b0 c0 d0, a1 b1 c1 d1, a2 b2 c2 d2, a3 b3 c3 d3,
                        e0 f0 g0 h0, e1 f1 g1 h1, e2 f2 g2 h2, e3 f3 g3 h3);
        quarter_rounds!(a0 b1 c2 d3, a1 b2 c3 d0, a2 b3 c0 d1, a3 b0 c1 d2,
                        e0 f1 g2 h3, e1 f2 g3 h0, e2 f3 g0 h1, e3 f0 g1 h2);
    }
    let [first_rows, second_rows] = rows;
    end!(first, first_rows; a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 d0 d1 d2 d3);
    end!(second, second_rows; e0 e1 e2 e3 f0 f1 f2 f3 g0 g1 g2 g3 h0 h1 h2 h3);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_key(key: &[Row; 8]) -> [__m512i; 8] {
    let [a, b, c, d, e, f, g, h] = key;
    [load(a), load(b), load(c), load(d), load(e), load(f), load(g), load(h)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn constants() -> [__m512i; 4] {
    let [a, b, c, d] = CONSTANTS;
    [_mm512_set1_epi32(a), _mm512_set1_epi32(b), _mm512_set1_epi32(c), _mm512_set1_epi32(d)]
}

/// Four words of 16 blocks to four times the same quarter of four blocks: of blocks 0,
/// 4, 8 and 12 in the first register, of the next four in the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Four quarters of four blocks to four blocks, `at` the first of them.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_rows(rows: &mut [Row; LANES], at: usize, [a, b, c, d]: [__m512i; 4]) {
    let ab_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
    let ab_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
    let cd_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d);
    let cd_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d);
    store(&mut rows[at], _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_low, cd_low));
    store(&mut rows[at + 4], _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_low, cd_low));
    store(&mut rows[at + 8], _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high));
    store(&mut rows[at + 12], _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high));
}
