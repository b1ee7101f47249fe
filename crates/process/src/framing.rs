//! Messages over a stream, each preceded by its length in bytes. Nothing is read ahead, so that a
//! key is only in the returned buffer, which is wiped.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

use anyhow::{Context, ensure};
use zeroize::Zeroizing;

/// Bytes of the longest message, enough for the state of 200,000 peers with a few networks each.
const MAX: u32 = 64 << 20;

/// Sends a message that consists of these parts.
///
/// # Errors
/// The message is too long, or the connection is closed.
pub(crate) fn send(mut line: &UnixStream, parts: &[&[u8]]) -> io::Result<()> {
    let length = u32::try_from(parts.iter().map(|part| part.len()).sum::<usize>());
    let length = length.ok().filter(|&length| length <= MAX).ok_or(io::ErrorKind::FileTooLarge)?;
    line.write_all(&length.to_ne_bytes())?;
    parts.iter().try_for_each(|part| line.write_all(part))
}

/// Receives the next message; `None` if the connection was closed after the previous one.
///
/// # Errors
/// The message is too long or incomplete.
pub(crate) fn receive(mut line: &UnixStream) -> anyhow::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut length = [0; size_of::<u32>()];
    // An error means that the other end was closed with unread bytes.
    if line.read_exact(&mut length).is_err() {
        return Ok(None);
    }
    let length = u32::from_ne_bytes(length);
    ensure!(length <= MAX, "a message of {length} bytes");
    let mut message = Zeroizing::new(vec![0; length as usize]);
    line.read_exact(&mut message).context("an incomplete message")?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    #[test]
    fn message_is_received_completely_or_fails() {
        let (line, theirs) = UnixStream::pair().unwrap();
        for parts in [&[&b"one"[..], b" and two"][..], &[], &[b"last"]] {
            send(&line, parts).unwrap();
            assert_eq!(**receive(&theirs).unwrap().unwrap(), parts.concat());
        }
        (&line).write_all(&[9, 0, 0, 0, b'x']).unwrap();
        drop(line);
        assert!(receive(&theirs).is_err());
        assert!(receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn longer_message_than_the_limit_is_refused_without_allocation() {
        let (line, theirs) = UnixStream::pair().unwrap();
        (&line).write_all(&(MAX + 1).to_ne_bytes()).unwrap();
        line.shutdown(Shutdown::Write).unwrap();
        let refused = receive(&theirs).unwrap_err().to_string();
        assert!(refused.contains("67108865 bytes"), "{refused}");
        let long = vec![0; MAX as usize];
        assert_eq!(send(&line, &[&long, b"x"]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
