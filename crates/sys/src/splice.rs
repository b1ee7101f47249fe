//! Relays bytes between sockets through a pipe, without copying them into this process (splice(2)).

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

/// The size of a pipe in bytes. A pipe has a slot for each page or part of a page. This size is
/// enough for a super-packet of 64 KiB in which each segment is a separate fragment.
const CAPACITY: i32 = 256 * 1024;
/// The maximum size of one fill in bytes. The slots of the pipe may limit it further.
const FILL: usize = 1 << 20;

/// A pipe between two sockets.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    buffered: usize,
}

impl Pipe {
    /// Creates an empty pipe.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Pipe memory is limited per user. Above the limit the size stays at 64 KiB.
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(CAPACITY));
        Ok(Self { reader, writer, buffered: 0 })
    }

    /// The number of bytes in the pipe.
    pub fn buffered(&self) -> usize {
        self.buffered
    }

    /// Moves received data of a socket into the empty pipe. Returns zero at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no data is available, or the socket's error.
    pub fn fill(&mut self, from: &impl AsFd) -> io::Result<usize> {
        let moved = uninterrupted(|| splice_all(from, &self.writer, FILL))?;
        self.buffered += moved;
        Ok(moved)
    }

    /// Moves bytes from the pipe to a socket.
    ///
    /// # Errors
    /// `WouldBlock` if the socket's buffer is full, or its error.
    pub fn drain(&mut self, to: &impl AsFd) -> io::Result<usize> {
        let moved = uninterrupted(|| splice_all(&self.reader, to, self.buffered))?;
        self.buffered -= moved;
        Ok(moved)
    }
}

/// Shuts down the sending direction of a connection.
pub fn shutdown_write(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    match socket::shutdown(socket, socket::Shutdown::Write) {
        // The connection is closed already.
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
    fn data_and_its_end_are_relayed() {
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
                Ok(len) => assert_eq!(pipe.buffered(), len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            while pipe.buffered() > 0 {
                pipe.drain(&there).unwrap();
            }
        }
        shutdown_write(&there).unwrap();
        writing.unwrap().join().unwrap();
        assert!(reading.unwrap().join().unwrap() == expected);
    }

    #[test]
    fn data_stays_in_the_pipe_if_the_target_socket_is_full() {
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
            if pipe.buffered() > 0
                && let Err(error) = pipe.drain(&there)
            {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
        assert!(pipe.buffered() > 0);
    }
}
