//! Searches a process's memory, as root can read it, for pieces of secrets.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use netns::{Host, base64};

/// Bytes of a raw or base64 piece: at least 48 random bits, which 100 MB of other data contain by
/// chance once in a million searches.
const PIECE: usize = 8;
/// Digits of a hexadecimal piece.
const HEX_PIECE: usize = 2 * PIECE;
/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
const ZEROS: [u8; PAGE] = [0; PAGE];

/// Secrets with their names.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<(String, Vec<u8>, usize)>);

impl Secrets {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds a secret in its binary form.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8; 32]) {
        self.0.push((name.to_owned(), bytes.to_vec(), PIECE));
    }

    pub(super) fn with(mut self, name: &str, bytes: &[u8; 32]) -> Self {
        self.add(name, bytes);
        self
    }

    /// Adds the base64 and hexadecimal forms of a secret.
    pub(super) fn with_texts(mut self, name: &str, bytes: &[u8; 32]) -> Self {
        self.0.push((format!("{name} in base64"), base64(bytes).into_bytes(), PIECE));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.push((format!("{name} in hexadecimal"), hex.into_bytes(), HEX_PIECE));
        self
    }

    pub(super) fn and(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }

    /// The places of their pieces in the memory of a process of `host`.
    pub(super) fn found_in(&self, host: &Host, pid: u32) -> BTreeSet<Found> {
        let needles = Needles::of(self);
        let maps = host.read(&format!("/proc/{pid}/maps"));
        let memory =
            File::open(host.outside(format!("/proc/{pid}/mem"))).expect("root may read it");
        let mut found = BTreeSet::new();
        for line in maps.lines() {
            let mut fields = line.split_whitespace();
            let range = fields.next().expect("a mapping has a range");
            let rights = fields.next().expect("a mapping has rights");
            let name = fields.nth(3).unwrap_or("anonymous");
            // Memory that is not writable is equal to the program's file.
            let is_of_file = name.starts_with('/') && !rights.contains('w');
            if !rights.starts_with('r') || name.starts_with("[v") || is_of_file {
                continue;
            }
            let (start, end) = range.split_once('-').expect("a range");
            let address = |hex| u64::from_str_radix(hex, 16).expect("an address");
            scan(&memory, address(start)..address(end), |at, piece| {
                for (secret, piece) in needles.at(piece) {
                    let place = format!("{name} {range} at {at:x}");
                    let name = self.0[secret].0.clone();
                    found.insert(Found { secret: name, piece, place });
                }
            });
        }
        found
    }
}

/// A piece of a secret in a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub secret: String,
    /// Its offset in the secret.
    pub piece: usize,
    pub place: String,
}

/// Calls `see` with every place that could be a piece, and its address.
fn scan(memory: &File, range: Range<u64>, mut see: impl FnMut(u64, &[u8])) {
    let mut bytes = vec![0; CHUNK + HEX_PIECE];
    let mut at = range.start;
    while at < range.end {
        let wanted = (CHUNK + HEX_PIECE).min((range.end - at) as usize);
        // Unreadable memory, such as a mapping beyond the end of its file, contains no secret.
        let Ok(length) = memory.read_at(&mut bytes[..wanted], at) else {
            at += PAGE as u64;
            continue;
        };
        for (page, text) in bytes[..length.min(CHUNK)].chunks(PAGE).enumerate() {
            if *text == ZEROS[..text.len()] {
                continue;
            }
            for place in page * PAGE..page * PAGE + text.len() {
                see(at + place as u64, &bytes[place..length]);
            }
        }
        at += length.clamp(1, CHUNK) as u64;
    }
}

/// The pieces of secrets by their first bytes.
struct Needles<'a> {
    begins: Vec<bool>,
    pieces: HashMap<[u8; PIECE], Vec<Needle<'a>>>,
}

/// The number of its secret, its offset, and the piece.
type Needle<'a> = (usize, usize, &'a [u8]);

impl<'a> Needles<'a> {
    fn of(secrets: &'a Secrets) -> Self {
        let mut needles = Self { begins: vec![false; 1 << 16], pieces: HashMap::new() };
        for (number, (_, bytes, size)) in secrets.0.iter().enumerate() {
            for (piece, bytes) in bytes.chunks_exact(*size).enumerate() {
                let first = *bytes.first_chunk().expect("a piece is as long");
                needles.begins[begin(bytes)] = true;
                needles.pieces.entry(first).or_default().push((number, piece, bytes));
            }
        }
        needles
    }

    /// The secrets with a piece at this place.
    fn at(&self, bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        let first = bytes.first_chunk().filter(|_| self.begins[begin(bytes)]);
        let here = first.and_then(|first| self.pieces.get(first)).into_iter().flatten();
        here.filter(|(_, _, piece)| bytes.starts_with(piece))
            .map(|&(secret, piece, _)| (secret, piece))
    }
}

fn begin(bytes: &[u8]) -> usize {
    bytes.first_chunk().map_or(0, |first| u16::from_le_bytes(*first).into())
}

/// The processes of `host` that run our program, with their commands.
pub(super) fn processes(host: &Host) -> Vec<(String, u32)> {
    let entries = fs::read_dir(host.outside("/proc")).expect("a host has processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = |pid: u32| {
        let name = fs::read_to_string(host.outside(format!("/proc/{pid}/comm"))).ok()?;
        Some((name.trim().to_owned(), pid))
    };
    let mut found: Vec<_> =
        pids.filter_map(named).filter(|(name, _)| name.starts_with("linerate")).collect();
    found.sort_by_key(|(_, pid)| *pid);
    found
}
