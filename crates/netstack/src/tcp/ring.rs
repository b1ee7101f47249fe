//! A stream buffer that allocates memory where bytes are written, and frees it when they are
//! consumed.
//!
//! ```text
//!   offset 0                                written anywhere from 0 on
//!      v
//!   [..xxxxx][xxxxxxxx][   -   ][xx......]  chunks; an empty one is not allocated
//! ```

use std::collections::VecDeque;

use crate::budget::{Budget, CHUNK, Chunk, FIRST};

/// The largest table of chunks that an empty buffer retains.
const MAX_IDLE_CAPACITY: usize = 8;

#[derive(Debug)]
pub(super) struct Ring {
    chunks: VecDeque<Option<Chunk>>,
    /// Position of offset 0 in the first chunk.
    head: usize,
    /// Bytes from offset 0 to the end of the last written byte.
    len: usize,
    /// Bytes of all chunks.
    held: usize,
    budget: Budget,
}

impl Ring {
    pub(super) fn new(budget: Budget) -> Self {
        budget.begin();
        Self { chunks: VecDeque::new(), head: 0, len: 0, held: 0, budget }
    }

    /// Bytes from offset 0 to the end of the last written byte.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that `push` would accept.
    pub(super) fn room(&self) -> usize {
        let more = self.budget.allowance(self.held) - self.held;
        let started = self.chunks.len().saturating_sub(1);
        let size = self.size(started);
        let last = within(size + more);
        let whole = if last == CHUNK { (more - (CHUNK - size)) / CHUNK * CHUNK } else { 0 };
        (started * CHUNK + last.max(size) + whole).saturating_sub(self.head + self.len)
    }

    /// Allocates `len` bytes at `offset`. Returns the number of bytes that fit.
    pub(super) fn reserve(&mut self, offset: usize, len: usize) -> usize {
        let end = self.head + offset + len;
        let mut at = self.head + offset;
        while at < end {
            let index = at / CHUNK;
            let start = index * CHUNK;
            if index >= self.chunks.len() {
                self.chunks.resize_with(index + 1, || None);
            }
            let size = self.grow(index, (end - start).min(CHUNK));
            at = at.max(start + size);
            if size < CHUNK {
                break;
            }
        }
        at.min(end) - self.head - offset
    }

    /// Bytes of a chunk.
    fn size(&self, index: usize) -> usize {
        self.chunks.get(index).and_then(Option::as_ref).map_or(0, |chunk| chunk.len())
    }

    /// Extends a chunk to `wanted` bytes, as far as the budget allows. Returns its length. A buffer
    /// with little data has a small chunk.
    fn grow(&mut self, index: usize, wanted: usize) -> usize {
        let size = self.size(index);
        if size >= wanted {
            return size;
        }
        let is_single = self.chunks.len() == 1;
        let wanted = if is_single { wanted.next_power_of_two().max(FIRST) } else { CHUNK };
        let most = within(size + self.budget.allowance(self.held) - self.held);
        let grown = wanted.min(most);
        if grown <= size {
            return size;
        }
        let mut chunk = self.budget.take(self.held, size, grown);
        if let Some(old) = &self.chunks[index] {
            chunk[..size].copy_from_slice(old);
        }
        self.held += grown - size;
        self.chunks[index] = Some(chunk);
        grown
    }

    /// Writes at `offset`, where bytes must have been reserved.
    pub(super) fn write(&mut self, offset: usize, mut bytes: &[u8]) {
        self.len = self.len.max(offset + bytes.len());
        let mut at = self.head + offset;
        while !bytes.is_empty() {
            let within = at % CHUNK;
            let part = bytes.len().min(CHUNK - within);
            let chunk = self.chunks[at / CHUNK].as_mut().expect("room was reserved");
            chunk[within..within + part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            at += part;
        }
    }

    /// Appends as many bytes as fit. Returns their number.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        let room = self.reserve(self.len, bytes.len());
        self.write(self.len, &bytes[..room]);
        room
    }

    /// Copies bytes from `offset` to `to`.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        let mut at = self.head + offset;
        let mut to = to;
        while !to.is_empty() {
            let within = at % CHUNK;
            let part = to.len().min(CHUNK - within);
            let chunk = self.chunks[at / CHUNK].as_ref().expect("only what was written is read");
            let (now, later) = to.split_at_mut(part);
            now.copy_from_slice(&chunk[within..within + part]);
            to = later;
            at += part;
        }
    }

    /// Removes the first `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.head += count;
        self.len = self.len.saturating_sub(count);
        while self.head >= CHUNK {
            self.head -= CHUNK;
            if let Some(chunk) = self.chunks.pop_front().flatten() {
                self.give(chunk);
            }
        }
        if self.len == 0 {
            self.clear();
        }
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        while let Some(chunk) = self.chunks.pop_front() {
            chunk.into_iter().for_each(|chunk| self.give(chunk));
        }
        if self.chunks.capacity() > MAX_IDLE_CAPACITY {
            self.chunks = VecDeque::new();
        }
        (self.head, self.len) = (0, 0);
    }

    fn give(&mut self, chunk: Chunk) {
        let held = self.held;
        self.held -= chunk.len();
        self.budget.give(held, chunk);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.clear();
        self.budget.end();
    }
}

/// The largest chunk of at most `bytes` bytes, or zero.
fn within(bytes: usize) -> usize {
    let power = bytes.checked_ilog2().map_or(0, |log| 1 << log);
    if power < FIRST { 0 } else { power.min(CHUNK) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
    }

    #[test]
    fn bytes_pass_in_order_in_pieces_of_any_size_and_all_memory_is_freed() {
        let budget = Budget::new(8 * CHUNK);
        let mut ring = Ring::new(budget.clone());
        let bytes = noise(20 * CHUNK);
        let (mut written, mut read) = (0, 0);
        let mut piece = 1;
        while read < bytes.len() {
            piece = (piece * 7 + 1) % 40_000;
            written += ring.push(&bytes[written..bytes.len().min(written + piece)]);
            assert!(budget.used() <= 8 * CHUNK);
            let count = (piece / 2 + 1).min(ring.len());
            let mut to = vec![0; count];
            ring.read(0, &mut to);
            assert_eq!(to, bytes[read..read + count]);
            ring.consume(count);
            read += count;
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_gap_uses_no_memory_until_it_is_filled() {
        let budget = Budget::new(100 * CHUNK);
        let mut ring = Ring::new(budget.clone());
        let far = 50 * CHUNK + 5;
        assert_eq!(ring.reserve(far, 10), 10);
        ring.write(far, &[7; 10]);
        assert_eq!(budget.used(), CHUNK);
        let gap = noise(far);
        assert_eq!(ring.reserve(0, far), far);
        ring.write(0, &gap);
        let mut all = vec![0; far + 10];
        ring.read(0, &mut all);
        assert_eq!((&all[..far], &all[far..]), (&gap[..], &[7; 10][..]));
        drop(ring);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn beyond_the_budget_a_buffer_has_only_its_reserved_bytes() {
        let budget = Budget::new(0);
        let mut ring = Ring::new(budget.clone());
        assert_eq!(ring.room(), FIRST);
        assert_eq!(ring.push(&noise(2 * CHUNK)), FIRST);
        assert_eq!((ring.room(), ring.push(&[1])), (0, 0));
        ring.consume(FIRST);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn ten_thousand_buffers_of_one_byte_stay_within_the_budget_and_can_grow() {
        const LIMIT: usize = 10_000 * FIRST;
        let budget = Budget::new(LIMIT);
        let mut rings: Vec<Ring> = Vec::new();
        while budget.has_room_for(1) {
            rings.push(Ring::new(budget.clone()));
        }
        assert_eq!(rings.len(), 10_000);
        for ring in &mut rings {
            assert_eq!(ring.push(&[7]), 1);
        }
        assert_eq!(budget.used(), LIMIT);
        for ring in &mut rings {
            assert_eq!(ring.push(&noise(CHUNK)), FIRST - 1);
            assert!(budget.used() <= LIMIT);
        }
        drop(rings);
        assert_eq!((budget.used(), budget.left()), (0, LIMIT));
    }

    #[test]
    fn a_small_buffer_uses_little_memory_and_grows_without_loss() {
        let budget = Budget::new(100 * CHUNK);
        let mut ring = Ring::new(budget.clone());
        let bytes = noise(3 * CHUNK);
        let mut written = 0;
        for (len, used) in
            [(1, FIRST), (512, FIRST), (513, 1024), (9000, CHUNK), (CHUNK + 1, 2 * CHUNK)]
        {
            written += ring.push(&bytes[written..len]);
            assert_eq!((written, budget.used()), (len, used));
        }
        let mut all = vec![0; written];
        ring.read(0, &mut all);
        assert_eq!(all, bytes[..written]);
    }
}
