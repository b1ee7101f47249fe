//! Reads a client's requests, with limits on time and length.

use std::{
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sys::{Errno, clock::boottime_nanos, poll::readable_until};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the longest request. A peer with a preshared key, an endpoint and a network of each
/// family takes at most about 370, so a request has room for over 180,000 peers.
const MAX_REQUEST: usize = 64 << 20;
/// Bytes that are reserved for each client: about 170 peers.
const OWN_BUDGET: usize = 64 << 10;
/// Bytes of all requests together beyond the reserved ones: enough for one of the longest.
const SHARED_BUDGET: usize = MAX_REQUEST - OWN_BUDGET;
/// Bytes of one read, and the initial capacity for a request.
const CHUNK: usize = 4096;
/// The time limit of a request, from its first byte on.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// The time limit between requests.
const SILENCE: Duration = Duration::from_secs(60);

/// The remaining bytes for all clients together.
#[derive(Clone, Debug)]
pub(super) struct SharedBudget(Arc<AtomicUsize>);

impl Default for SharedBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(SHARED_BUDGET)))
    }
}

/// The requests of a client.
pub(super) struct Requests<'a> {
    client: &'a UnixStream,
    budget: SharedBudget,
    /// The last read. It contains keys.
    chunk: Zeroizing<Vec<u8>>,
    /// The unparsed part of the chunk.
    rest: std::ops::Range<usize>,
    times: Times,
}

/// Time limits.
#[derive(Clone, Copy, Debug)]
struct Times {
    request: Duration,
    silence: Duration,
}

impl<'a> Requests<'a> {
    pub(super) fn new(client: &'a UnixStream, budget: SharedBudget) -> Self {
        let times = Times { request: REQUEST_TIME, silence: SILENCE };
        let chunk = Zeroizing::new(vec![0; CHUNK]);
        Self { client, budget, chunk, rest: 0..0, times }
    }

    /// Reads the next request, up to its empty line. Lines may end with CRLF. Returns `None` at
    /// the end of the connection. A request that is too long is read to its end, and the errno for
    /// the answer is returned.
    ///
    /// # Errors
    /// The client is too slow, disconnected within a request, or sent invalid UTF-8.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<Text, i32>>> {
        if self.rest.is_empty() && !self.read(after(self.times.silence))? {
            return Ok(None);
        }
        let deadline = after(self.times.request);
        let mut text = Ok(Text::new(self.budget.clone()));
        let mut starts_line = true;
        loop {
            let bytes = &self.chunk[self.rest.clone()];
            let end = bytes.iter().position(|byte| match byte {
                b'\n' => std::mem::replace(&mut starts_line, true),
                b'\r' => false,
                _ => {
                    starts_line = false;
                    false
                }
            });
            let part = &bytes[..end.unwrap_or(bytes.len())];
            text = text.and_then(|text: Text| text.push(part));
            let taken = self.rest.start..end.map_or(self.rest.end, |end| self.rest.start + end + 1);
            self.rest.start = taken.end;
            self.chunk[taken].zeroize();
            if end.is_some() {
                return Ok(Some(match text {
                    Ok(text) => Ok(text.check()?),
                    Err(errno) => Err(errno),
                }));
            }
            if !self.read(deadline)? {
                return Err(io::Error::from_raw_os_error(Errno::EPROTO as i32));
            }
        }
    }

    /// Reads the next chunk. Returns false at the end of the connection.
    fn read(&mut self, deadline: u64) -> io::Result<bool> {
        if !readable_until(self.client.as_fd(), deadline)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let len = self.client.read(&mut self.chunk)?;
        self.rest = 0..len;
        Ok(len > 0)
    }
}

fn after(time: Duration) -> u64 {
    boottime_nanos() + time.as_nanos() as u64
}

/// The text of a request. It contains keys: when it grows, the previous buffer is wiped.
#[derive(Debug)]
pub(super) struct Text {
    bytes: Zeroizing<Vec<u8>>,
    budget: SharedBudget,
    /// Bytes of the shared budget that it uses.
    taken: usize,
}

impl Text {
    fn new(budget: SharedBudget) -> Self {
        Self { bytes: Zeroizing::new(Vec::with_capacity(CHUNK)), budget, taken: 0 }
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("`check` validated it")
    }

    fn check(self) -> io::Result<Self> {
        match std::str::from_utf8(&self.bytes) {
            Ok(_) => Ok(self),
            Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn push(mut self, part: &[u8]) -> Result<Self, i32> {
        let len = self.bytes.len() + part.len();
        if len > MAX_REQUEST {
            return Err(Errno::E2BIG as i32);
        }
        if len > self.bytes.capacity() {
            let capacity = (2 * self.bytes.capacity()).max(len).min(MAX_REQUEST);
            self.take(capacity.saturating_sub(OWN_BUDGET))?;
            let mut larger = Zeroizing::new(Vec::with_capacity(capacity));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(part);
        Ok(self)
    }

    /// Reserves this number of bytes in total of the shared budget.
    fn take(&mut self, wanted: usize) -> Result<(), i32> {
        let more = wanted - self.taken;
        let take = |left: usize| left.checked_sub(more);
        let taken = self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| Errno::ENOMEM as i32)?;
        self.taken = wanted;
        Ok(())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, thread};

    use super::*;

    fn next(requests: &mut Requests<'_>) -> Option<Result<String, i32>> {
        let next = requests.next().unwrap();
        next.map(|text| text.map(|text| text.as_str().to_owned()))
    }

    #[test]
    fn requests_end_with_an_empty_line_for_any_split_of_the_input() {
        let input = b"get=1\n\nset=1\na=b\n\n\nx\n\n";
        for cut in 1..=input.len() {
            let (mut client, ours) = UnixStream::pair().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || {
                    input.chunks(cut).for_each(|part| client.write_all(part).unwrap());
                });
                let mut requests = Requests::new(&ours, SharedBudget::default());
                for wanted in ["get=1\n", "set=1\na=b\n", "", "x\n"] {
                    assert_eq!(next(&mut requests), Some(Ok(wanted.to_owned())), "{cut}");
                }
                assert_eq!(next(&mut requests), None);
            });
        }
    }

    #[test]
    fn requests_with_crlf_end_with_an_empty_line() {
        let input = b"get=1\r\n\r\nset=1\r\na=b\r\n\r\nget=1\r\n\n";
        for cut in 1..=input.len() {
            let (mut client, ours) = UnixStream::pair().unwrap();
            input.chunks(cut).for_each(|part| client.write_all(part).unwrap());
            let mut requests = Requests::new(&ours, SharedBudget::default());
            for wanted in ["get=1\r\n\r", "set=1\r\na=b\r\n\r", "get=1\r\n"] {
                assert_eq!(next(&mut requests), Some(Ok(wanted.to_owned())), "{cut}");
            }
            drop(client);
            assert_eq!(next(&mut requests), None);
        }
    }

    #[test]
    fn parsed_bytes_are_wiped() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let request = |lines: usize| {
            let lines = (0..lines).map(|line| format!("private_key={line}\n"));
            lines.collect::<String>() + "\n"
        };
        // The first ends within a chunk that begins the second.
        let input = [request(100), request(300), request(1)].concat();
        client.write_all(input.as_bytes()).unwrap();
        let mut requests = Requests::new(&ours, SharedBudget::default());
        for _ in 0..3 {
            next(&mut requests).unwrap().unwrap();
            let mut outside = requests.chunk.to_vec();
            outside[requests.rest.clone()].fill(0);
            assert!(outside.iter().all(|byte| *byte == 0));
        }
        assert!(requests.rest.is_empty());
    }

    #[test]
    fn incomplete_or_invalid_request_is_an_error() {
        for (input, kind) in
            [(&b"get=1\n"[..], None), (&b"get=\xff\n\n"[..], Some(io::ErrorKind::InvalidData))]
        {
            let (mut client, ours) = UnixStream::pair().unwrap();
            client.write_all(input).unwrap();
            drop(client);
            let error = Requests::new(&ours, SharedBudget::default()).next().unwrap_err();
            match kind {
                Some(kind) => assert_eq!(error.kind(), kind),
                None => assert_eq!(error.raw_os_error(), Some(Errno::EPROTO as i32)),
            }
        }
    }

    #[test]
    fn silent_or_endless_client_times_out() {
        let times = |request, silence| Times {
            request: Duration::from_millis(request),
            silence: Duration::from_millis(silence),
        };
        let (mut client, ours) = UnixStream::pair().unwrap();
        let mut requests = Requests::new(&ours, SharedBudget::default());
        requests.times = times(60_000, 20);
        assert_eq!(requests.next().unwrap_err().kind(), io::ErrorKind::TimedOut);

        requests.times = times(50, 60_000);
        thread::scope(|scope| {
            // Single bytes do not extend the limit.
            scope.spawn(move || {
                while client.write_all(b"a").is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            assert_eq!(requests.next().unwrap_err().kind(), io::ErrorKind::TimedOut);
            ours.shutdown(std::net::Shutdown::Both).unwrap();
        });
    }

    #[test]
    fn too_long_request_is_rejected_and_its_memory_is_freed() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let budget = SharedBudget::default();
        let line = [&[b'a'; 65_535][..], b"\n"].concat();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..=MAX_REQUEST / line.len() {
                    client.write_all(&line).unwrap();
                }
                client.write_all(b"\nget=1\n\n").unwrap();
            });
            let mut requests = Requests::new(&ours, budget.clone());
            assert_eq!(next(&mut requests), Some(Err(Errno::E2BIG as i32)));
            assert_eq!(next(&mut requests), Some(Ok("get=1\n".into())));
        });
        assert_eq!(budget.0.load(Ordering::Relaxed), SHARED_BUDGET);
    }

    #[test]
    fn long_request_leaves_the_reserved_bytes_of_other_clients() {
        let budget = SharedBudget::default();
        let long = Text::new(budget.clone()).push(&vec![b'a'; MAX_REQUEST]).unwrap();
        let own = Text::new(budget.clone()).push(&[b'a'; OWN_BUDGET]).unwrap();
        assert_eq!(own.push(b"a").unwrap_err(), Errno::ENOMEM as i32);
        assert_eq!(long.push(b"a").unwrap_err(), Errno::E2BIG as i32);
        assert_eq!(budget.0.load(Ordering::Relaxed), SHARED_BUDGET);
        Text::new(budget).push(&vec![b'a'; OWN_BUDGET + 1]).unwrap();
    }
}
