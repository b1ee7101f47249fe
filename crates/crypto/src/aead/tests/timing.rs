//! Measures that no duration depends on a secret, as far as the processor's clock shows. This is
//! the only test of AVX-512, which memcheck does not support.
//!
//! ```text
//!   cargo test --release -p linerate-crypto --lib -- --ignored --nocapture timing
//! ```
//!
//! Uses the method of dudect (Reparaz, Balasch, Verbauwhede: "Dude, is my code constant time?",
//! 2017): two classes of secrets in random order, and Welch's t of their durations. An interrupt
//! makes a measurement longer, so t is also computed of the shortest half, the shortest nine tenths
//! and so on, and the greatest t counts. All measurements use the same memory.
#![expect(unsafe_code, reason = "the time-stamp counter")]

use std::{
    arch::x86_64::{__cpuid, _rdtsc},
    hint::black_box,
};

use arrayvec::ArrayVec;

use super::{long::Random, *};
use crate::aead::group::same;

/// Values below this are noise: dudect's own bound. With a leak, t exceeds it as the number of
/// measurements grows.
const BOUND: f64 = 10.0;

const MEASUREMENTS: usize = 100_000;

/// The first measurements, while caches and clocks stabilize.
const WARM_UP: usize = 1_000;

/// The fractions of the measurements, from the shortest on, of which t is computed.
const PARTS: [f64; 6] = [0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

/// The two classes of secrets: the same each time, or random.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Fixed,
    Random,
}

trait Subject {
    /// Sets the secrets.
    fn prepare(&mut self, class: Class, random: &mut Random);

    /// The measured work.
    fn work(&mut self);
}

#[test]
#[ignore = "takes a minute on an idle machine; see the module"]
fn timing_does_not_depend_on_secrets() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut leaks = Vec::new();
    let mut take = |name: String, subject: &mut dyn Subject| {
        let t = greatest_t(subject, &mut random);
        println!("{name:45} t = {t:8.2}");
        if t >= BOUND {
            leaks.push(name);
        }
        t
    };
    let control = take("control: tags until they differ".into(), &mut Tags::new(until_they_differ));
    take("tags".into(), &mut Tags::new(same));
    for variant in variants() {
        for (shape, lens) in
            [("equal", vec![200; 16]), ("mixed", (1..14).map(|n| 37 * n).collect())]
        {
            for operation in Operation::ALL {
                let name = format!("{variant}: {}, {shape} lengths", operation.name());
                take(name, &mut Batch::new(variant, operation, &lens));
            }
        }
    }
    assert!(control >= BOUND, "the check does not detect the leak of the control");
    assert_eq!(leaks.len(), 1, "only the control leaks: {leaks:?}");
}

fn greatest_t(subject: &mut dyn Subject, random: &mut Random) -> f64 {
    let mut times = Vec::with_capacity(MEASUREMENTS);
    for measurement in 0..WARM_UP + MEASUREMENTS {
        let class = if random.below(2) == 0 { Class::Fixed } else { Class::Random };
        subject.prepare(class, random);
        let start = clock();
        subject.work();
        let time = clock() - start;
        if measurement >= WARM_UP {
            times.push((time, class));
        }
    }
    times.sort_by_key(|(time, _)| *time);
    let parts = PARTS.map(|part| t(&times[..(part * MEASUREMENTS as f64) as usize]));
    parts.into_iter().fold(0.0, f64::max)
}

/// Welch's t, without its sign.
fn t(times: &[(u64, Class)]) -> f64 {
    let [fixed, random] = [Class::Fixed, Class::Random].map(|class| {
        let of_class = times.iter().filter(|(_, other)| *other == class);
        let times: Vec<f64> = of_class.map(|(time, _)| *time as f64).collect();
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        // The variance of the mean.
        (mean, squares / (count - 1.0) / count)
    });
    let difference = (fixed.0 - random.0).abs();
    if difference == 0.0 { 0.0 } else { difference / (fixed.1 + random.1).sqrt() }
}

/// Reads the clock. Work between two calls cannot be reordered out of them.
fn clock() -> u64 {
    // `cpuid` serializes: no instruction before or after it is executed out of order across it.
    black_box(__cpuid(0));
    // SAFETY: every 64-bit processor has the counter.
    unsafe { _rdtsc() }
}

/// Two tags that differ in the last byte, or in a random byte.
struct Tags {
    compare: fn(&[u8; TAG_LEN], &[u8; TAG_LEN]) -> bool,
    ours: [u8; TAG_LEN],
    theirs: [u8; TAG_LEN],
}

impl Tags {
    fn new(compare: fn(&[u8; TAG_LEN], &[u8; TAG_LEN]) -> bool) -> Self {
        Self { compare, ours: [0; TAG_LEN], theirs: [0; TAG_LEN] }
    }
}

impl Subject for Tags {
    fn prepare(&mut self, class: Class, random: &mut Random) {
        let byte = random.below(TAG_LEN);
        random.fill(&mut self.ours);
        self.theirs = self.ours;
        self.theirs[if class == Class::Fixed { TAG_LEN - 1 } else { byte }] ^= 1;
    }

    fn work(&mut self) {
        for _ in 0..32 {
            black_box((self.compare)(black_box(&self.ours), black_box(&self.theirs)));
        }
    }
}

fn until_they_differ(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    a.iter().zip(b).all(|(a, b)| black_box(a) == b)
}

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    /// Keys and texts are fixed or random.
    Seal,
    Open,
    /// Keys and texts are random. Tags differ in the last byte, or in a random byte.
    OpenForged,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Seal, Self::Open, Self::OpenForged];

    fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Open => "open",
            Self::OpenForged => "open forged",
        }
    }
}

struct Batch {
    variant: Variant,
    operation: Operation,
    key: Key,
    packets: Vec<Vec<u8>>,
}

impl Batch {
    fn new(variant: Variant, operation: Operation, lens: &[usize]) -> Self {
        let packets = lens.iter().map(|len| vec![0; len + TAG_LEN]).collect();
        Self { variant, operation, key: Key::new(&[0; 32]), packets }
    }

    fn seal(&mut self) {
        let mut batch: ArrayVec<Seal<'_>, 16> = ArrayVec::new();
        for (counter, data) in (0..).zip(&mut self.packets) {
            batch.push(Seal { key: &self.key, counter, data });
        }
        self.variant.seal(black_box(&mut batch));
    }

    fn open(&mut self) {
        let mut batch: ArrayVec<Open<'_>, 16> = ArrayVec::new();
        for (counter, data) in (0..).zip(&mut self.packets) {
            batch.push(Open { key: &self.key, counter, data, authentic: false });
        }
        self.variant.open(black_box(&mut batch));
        let expected = self.operation == Operation::Open;
        assert!(batch.iter().all(|packet| packet.authentic == expected));
    }
}

impl Subject for Batch {
    fn prepare(&mut self, class: Class, random: &mut Random) {
        let forged = self.operation == Operation::OpenForged;
        // The same steps for both classes, so that they leave the same state in caches.
        let mask = if class == Class::Fixed && !forged { 0 } else { 0xff };
        let mut bytes = [0; 32];
        random.fill(&mut bytes);
        self.key = Key::new(&bytes.map(|byte| byte & mask));
        for packet in &mut self.packets {
            random.fill(packet);
            packet.iter_mut().for_each(|byte| *byte &= mask);
        }
        if self.operation != Operation::Seal {
            self.seal();
        }
        for packet in &mut self.packets {
            let byte = random.below(TAG_LEN);
            let byte = if class == Class::Fixed { TAG_LEN - 1 } else { byte };
            let at = packet.len() - TAG_LEN + byte;
            packet[at] ^= u8::from(forged);
        }
    }

    fn work(&mut self) {
        match self.operation {
            Operation::Seal => self.seal(),
            Operation::Open | Operation::OpenForged => self.open(),
        }
    }
}
