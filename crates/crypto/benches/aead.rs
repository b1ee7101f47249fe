//! Measures every variant and the library with batches of packets of equal length.
//!
//! ```text
//!   cargo bench -p linerate-crypto --bench aead                        all of it, some minutes
//!   cargo bench -p linerate-crypto --bench aead -- seal 16 1420        one operation, batch, length
//! ```
//!
//! A round times every variant once. The output shows medians over the rounds: of the time of a
//! packet, and of the ratio of the library's time to the variant's in the same round. Cycles are
//! those of the time-stamp counter, which has a constant rate, independent of the core's clock.

use std::{env, hint::black_box, time::Instant};

use crypto::aead::{Key, Open, Seal, TAG_LEN, Variant};

const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 45, 64, 128];
const LENGTHS: [usize; 10] = [0, 64, 128, 256, 512, 1024, 1420, 1452, 4096, 9000];

/// Number of rounds of a measurement.
const ROUNDS: usize = 31;

/// Approximate number of bytes in a sample: enough for the clock's resolution, and within the
/// cache.
const SAMPLE: usize = 64 << 10;

/// Number of bytes before a packet's text, like the header of a datagram.
const HEADER: usize = 16;

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str, place: usize| args.get(place).is_none_or(|args| args == name);
    let contenders = contenders();
    let mut worst = (f64::MAX, String::new());
    for operation in [Operation::Seal, Operation::Open] {
        if !wanted(operation.name(), 0) {
            continue;
        }
        println!("\n{}", heading(operation, &contenders));
        for len in LENGTHS {
            for packets in BATCHES {
                if wanted(&packets.to_string(), 1) && wanted(&len.to_string(), 2) {
                    let times = Batch::new(packets, len).measure(operation, &contenders);
                    let ratio = print(packets, len, &contenders, &times);
                    if ratio < worst.0 {
                        worst = (ratio, format!("{} {packets} x {len}", operation.name()));
                    }
                }
            }
        }
    }
    println!("\nlowest ratio of the chosen variant: {:.2} ({})", worst.0, worst.1);
}

#[derive(Clone, Copy)]
enum Operation {
    Seal,
    Open,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Open => "open",
        }
    }
}

/// The measured implementation: a variant, or the choice of `aead::seal` and `aead::open`.
type Contender = Option<Variant>;

/// Returns the library first and the choice last.
fn contenders() -> Vec<Contender> {
    let variants = Variant::ALL.into_iter().filter(|variant| variant.is_available());
    variants.map(Some).chain([None]).collect()
}

fn heading(operation: Operation, contenders: &[Contender]) -> String {
    let mut line = format!("{:>4} batch len", operation.name());
    for contender in contenders {
        let name = match contender {
            Some(variant) => variant.to_string(),
            None => format!("chosen ({})", crypto::aead::variant()),
        };
        line += &format!(" | {name:^32}");
    }
    line += &format!("\n{:14}", "");
    for _ in contenders {
        line += " | ns/packet   GB/s  cycles/B  ratio";
    }
    line
}

fn print(packets: usize, len: usize, contenders: &[Contender], times: &[Vec<Sample>]) -> f64 {
    let mut line = format!("{packets:>9} {len:>4}");
    let mut last = 0.0;
    for samples in &times[..contenders.len()] {
        let nanos = median(samples.iter().map(|sample| sample.nanos / packets as f64));
        let cycles = median(samples.iter().map(|sample| sample.cycles / packets as f64));
        let ratios = samples.iter().zip(&times[0]);
        last = median(ratios.map(|(sample, library)| library.nanos / sample.nanos));
        line += &format!(" | {nanos:>9.0} {:>6.2}", len as f64 / nanos);
        line += &format!(" {:>9.2} {last:>6.2}", cycles / len.max(1) as f64);
    }
    println!("{line}");
    last
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Cost of one batch.
struct Sample {
    nanos: f64,
    cycles: f64,
}

/// Several batches of packets of equal length, so that a sample is not too short.
struct Batch {
    key: Key,
    packets: usize,
    len: usize,
    repeats: usize,
    data: Vec<u8>,
    sealed: Vec<u8>,
}

impl Batch {
    fn new(packets: usize, len: usize) -> Self {
        let stride = HEADER + len + TAG_LEN;
        let repeats = (SAMPLE / (packets * stride)).clamp(1, 64);
        let data = vec![0x5a; repeats * packets * stride];
        let sealed = data.clone();
        let mut batch = Self { key: Key::new(&[7; 32]), packets, len, repeats, data, sealed };
        batch.run(Operation::Seal, Some(Variant::Library));
        batch.sealed.clone_from(&batch.data);
        batch
    }

    fn measure(&mut self, operation: Operation, contenders: &[Contender]) -> Vec<Vec<Sample>> {
        let mut times: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (contender, samples) in contenders.iter().zip(&mut times) {
                self.data.copy_from_slice(&self.sealed);
                samples.push(self.run(operation, *contender));
            }
        }
        times
    }

    fn run(&mut self, operation: Operation, contender: Contender) -> Sample {
        let stride = HEADER + self.len + TAG_LEN;
        let packets = self.data.chunks_exact_mut(stride).zip(0..);
        let key = &self.key;
        let per_batch = self.packets;
        match operation {
            Operation::Seal => {
                let mut packets: Vec<Seal<'_>> = packets
                    .map(|(data, at)| {
                        let counter = at % per_batch as u64;
                        Seal { key, counter, data: &mut data[HEADER..] }
                    })
                    .collect();
                time(self.repeats, || {
                    for batch in packets.chunks_exact_mut(per_batch) {
                        match contender {
                            Some(variant) => variant.seal(black_box(batch)),
                            None => crypto::aead::seal(black_box(batch)),
                        }
                    }
                })
            }
            Operation::Open => {
                let mut packets: Vec<Open<'_>> = packets
                    .map(|(data, at)| {
                        let counter = at % per_batch as u64;
                        Open { key, counter, data: &mut data[HEADER..], authentic: false }
                    })
                    .collect();
                let sample = time(self.repeats, || {
                    for batch in packets.chunks_exact_mut(per_batch) {
                        match contender {
                            Some(variant) => variant.open(black_box(batch)),
                            None => crypto::aead::open(black_box(batch)),
                        }
                    }
                });
                assert!(packets.iter().all(|packet| packet.authentic));
                sample
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn time(repeats: usize, work: impl FnOnce()) -> Sample {
    let (start, first) = (Instant::now(), cycles());
    work();
    let (cycles, time) = (cycles() - first, start.elapsed());
    Sample {
        nanos: time.as_nanos() as f64 / repeats as f64,
        cycles: cycles as f64 / repeats as f64,
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the time-stamp counter")]
fn cycles() -> u64 {
    // SAFETY: every 64-bit processor has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles() -> u64 {
    0
}
