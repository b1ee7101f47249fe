//! The time since data last arrived over a TCP connection.

use std::{
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    getsockopt_impl, libc, sockopt_impl,
    sys::socket::{MsgFlags, getsockopt, recv},
};

sockopt_impl!(
    /// The state of a TCP connection (tcp(7)).
    TcpInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info
);

/// The time since data last arrived, or since the connection was established. Zero if received
/// data is unread, if the other end has closed its half, or if this is not a TCP connection.
pub fn receive_idle_time(socket: &impl AsFd) -> Duration {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    if recv(socket.as_fd().as_raw_fd(), &mut [0], flags) != Err(Errno::EAGAIN) {
        return Duration::ZERO;
    }
    let info = getsockopt(&socket.as_fd(), TcpInfo);
    info.map_or(Duration::ZERO, |info| Duration::from_millis(info.tcpi_last_data_recv.into()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
        thread::sleep,
    };

    use super::*;

    #[test]
    fn idle_time_counts_from_the_connection_until_data_arrives() {
        const WAITED: Duration = Duration::from_millis(60);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sleep(WAITED);
        let (accepted, _) = listener.accept().unwrap();
        let silent = receive_idle_time(&accepted);
        assert!(silent >= WAITED / 2 && silent < Duration::from_secs(60), "{silent:?}");
        client.write_all(b"?").unwrap();
        while receive_idle_time(&accepted) > Duration::ZERO {}
        let closed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        drop(closed);
        while receive_idle_time(&accepted) > Duration::ZERO {}
        let (unix, _other) = UnixStream::pair().unwrap();
        assert_eq!(receive_idle_time(&unix), Duration::ZERO);
    }
}
