use std::hint::black_box;

use packet::checksum;

use crate::measure::{Times, table, work};

const LENGTHS: [usize; 10] = [64, 128, 256, 512, 576, 1024, 1420, 1500, 4096, 9001];

/// The baseline: four bytes a step.
fn scalar(bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<4>();
    let mut sum = 0u64;
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    sum += u64::from(u32::from_be_bytes(last));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(crate) fn sum() {
    let bytes = noise();
    let rows = LENGTHS.map(|len| {
        let bytes = &bytes[..len];
        assert_eq!(checksum::sum(bytes), scalar(bytes));
        let times = Times::of([
            work(|| checksum::sum(black_box(bytes))),
            work(|| scalar(black_box(bytes))),
        ]);
        row(len, &times)
    });
    table("checksum", ["bytes", "ns", "scalar ns", "ratio", "GB/s"], &rows);
}

pub(crate) fn copy() {
    let bytes = noise();
    let mut copies = [vec![0; bytes.len()], vec![0; bytes.len()]];
    let rows = LENGTHS.map(|len| {
        let bytes = &bytes[..len];
        let [fused, twice] = copies.each_mut().map(|copy| &mut copy[..len]);
        let times = Times::of([
            work(|| checksum::copy_sum(black_box(&mut *fused), black_box(bytes))),
            work(|| {
                black_box(&mut *twice).copy_from_slice(black_box(bytes));
                checksum::sum(black_box(&*twice))
            }),
        ]);
        row(len, &times)
    });
    let headings = ["bytes", "ns", "memcpy, sum ns", "ratio", "GB/s"];
    table("checksum with a copy", headings, &rows);
}

fn row(len: usize, times: &Times) -> [String; 5] {
    [
        len.to_string(),
        format!("{:.1}", times.ns(0)),
        format!("{:.1}", times.ns(1)),
        format!("{:.2}x", times.faster(0, 1)),
        format!("{:.1}", len as f64 / times.ns(0)),
    ]
}

fn noise() -> Vec<u8> {
    (0..9001u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 21) as u8).collect()
}
