//! A buffered reader that keeps nothing of what was read: requests have keys.

use std::io::{self, BufRead, Read};

use zeroize::{Zeroize, Zeroizing};

/// Bytes read at a time.
const ROOM: usize = 4096;

/// As `BufReader`, with a buffer in which what was taken is wiped, at once.
pub(crate) struct WipingReader<R> {
    inner: R,
    buffer: Zeroizing<Box<[u8]>>,
    /// What of the buffer was read and not yet taken.
    start: usize,
    end: usize,
}

impl<R: Read> WipingReader<R> {
    pub fn new(inner: R) -> Self {
        let buffer = Zeroizing::new(vec![0; ROOM].into_boxed_slice());
        Self { inner, buffer, start: 0, end: 0 }
    }

    pub fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }
}

impl<R: Read> BufRead for WipingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.end = self.inner.read(&mut self.buffer)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, amount: usize) {
        let taken = self.start..(self.start + amount).min(self.end);
        self.start = taken.end;
        self.buffer[taken].zeroize();
    }
}

impl<R: Read> Read for WipingReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_and_nothing_of_them_stays() {
        let text: String = (0..1000).map(|line| format!("private_key={line}\n")).collect();
        let mut reader = WipingReader::new(text.as_bytes());
        let mut read = String::new();
        for line in text.split_inclusive('\n') {
            read.clear();
            reader.read_line(&mut read).unwrap();
            assert_eq!(read, line);
            let (taken, rest) = (&reader.buffer[..reader.start], &reader.buffer[reader.end..]);
            assert!(taken.iter().all(|byte| *byte == 0));
            assert!(rest.iter().all(|byte| *byte == 0), "a longer line was there before");
        }
        assert_eq!(reader.read_line(&mut read).unwrap(), 0);
        assert!(reader.buffer.iter().all(|byte| *byte == 0));
    }
}
