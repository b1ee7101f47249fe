//! Bytes from one socket to another without a copy into this process: through a pipe,
//! by splice(2).

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    sys::socket,
    unistd::pipe2,
};

/// Wanted bytes of a pipe. It has a place for each page or fragment of a page, so this
/// is what a super-packet of 64 KiB takes in fragments of one segment each.
const CAPACITY: i32 = 256 * 1024;
/// The most bytes of one fill: a pipe takes what it has places for.
const FILL: usize = 1 << 20;

/// A pipe between two sockets.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl Pipe {
    /// An empty pipe.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // A user without rights has so many pages in pipes only; then 64 KiB have to do.
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(CAPACITY));
        Ok(Self { reader, writer, held: 0 })
    }

    /// Bytes that are in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes what a socket has received, into the empty pipe. Zero is the end.
    ///
    /// # Errors
    /// `WouldBlock` where there is nothing, or what the socket answers.
    pub fn fill(&mut self, from: &impl AsFd) -> io::Result<usize> {
        let taken = uninterrupted(|| splice_all(from, &self.writer, FILL))?;
        self.held += taken;
        Ok(taken)
    }

    /// Gives to a socket what it takes of the pipe's bytes.
    ///
    /// # Errors
    /// `WouldBlock` where it takes nothing, or what the socket answers.
    pub fn drain(&mut self, to: &impl AsFd) -> io::Result<usize> {
        let given = uninterrupted(|| splice_all(&self.reader, to, self.held))?;
        self.held -= given;
        Ok(given)
    }
}

/// Tells the other end of a connection that nothing more comes.
///
/// # Errors
/// The kernel's answer.
pub fn end(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    match socket::shutdown(socket, socket::Shutdown::Write) {
        // It has gone already.
        Err(Errno::ENOTCONN) => Ok(()),
        ended => Ok(ended?),
    }
}

fn splice_all(from: &impl AsFd, to: &impl AsFd, len: usize) -> Result<usize, Errno> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    splice(from, None, to, None, len, flags)
}

fn uninterrupted(call: impl Fn() -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            called => return Ok(called?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_and_their_end_go_from_one_socket_to_the_other() {
        let (mut client, here) = connected();
        let (there, mut server) = connected();
        here.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new().unwrap();
        let nothing = pipe.fill(&here).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let sent: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writing = std::thread::Builder::new().spawn(move || {
            client.write_all(&sent).unwrap();
        });
        let reading = std::thread::Builder::new().spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            got
        });
        loop {
            match pipe.fill(&here) {
                Ok(0) => break,
                Ok(len) => assert_eq!(pipe.held(), len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            while pipe.held() > 0 {
                pipe.drain(&there).unwrap();
            }
        }
        end(&there).unwrap();
        writing.unwrap().join().unwrap();
        assert!(reading.unwrap().join().unwrap() == expected);
    }

    #[test]
    fn a_socket_that_takes_no_more_leaves_the_rest_in_the_pipe() {
        let (mut client, here) = connected();
        let (there, _server) = connected();
        for socket in [&client, &here, &there] {
            socket.set_nonblocking(true).unwrap();
        }
        let mut pipe = Pipe::new().unwrap();
        loop {
            let _ = client.write(&[1; 65_536]);
            match pipe.fill(&here) {
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                Ok(filled) => assert!(filled > 0),
            }
            if pipe.held() > 0
                && let Err(error) = pipe.drain(&there)
            {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
        assert!(pipe.held() > 0);
    }
}
