//! The generator of TCP connections. Each connection is opened, carries one byte each way, and is
//! reset, so that none waits in TIME_WAIT for a port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use netns::Stopwatch;
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;

/// Threads at each end, so the number of concurrent connections.
const THREADS: usize = 16;

/// A connection without an answer fails after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers connections until the process ends.
pub fn serve(at: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(at)?;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let answer = || listener.incoming().flatten().for_each(answer);
            thread::Builder::new().name("answer".to_owned()).spawn_scoped(scope, answer)?;
        }
        Ok(())
    })
}

fn answer(mut connection: TcpStream) {
    let mut byte = [0];
    // The caller resets the connection afterwards.
    let _ = connection.read_exact(&mut byte).and_then(|()| connection.write_all(&byte));
    // Waits for the reset.
    let _ = connection.read(&mut byte);
}

/// Opens connections for `seconds` seconds. Returns the number of answered connections a second.
pub fn call(to: SocketAddr, seconds: f64) -> std::io::Result<f64> {
    let answered = AtomicU64::new(0);
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let call = || -> std::io::Result<()> {
            while watch.elapsed().as_secs_f64() < seconds {
                call_once(to)?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let callers: std::io::Result<Vec<_>> = (0..THREADS)
            .map(|_| thread::Builder::new().name("call".to_owned()).spawn_scoped(scope, call))
            .collect();
        callers?.into_iter().try_for_each(|caller| caller.join().expect("a caller ends"))
    })?;
    Ok(answered.into_inner() as f64 / watch.elapsed().as_secs_f64())
}

fn call_once(to: SocketAddr) -> std::io::Result<()> {
    let mut connection = TcpStream::connect_timeout(&to, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [1];
    connection.write_all(&byte)?;
    connection.read_exact(&mut byte)?;
    setsockopt(&connection, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::{call, serve};

    #[test]
    fn connections_are_answered_and_fail_without_a_server() {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(call(at, 0.05).is_err());
        thread::Builder::new().spawn(move || serve(at)).unwrap();
        while call(at, 0.01).is_err() {}
        assert!(call(at, 0.1).unwrap() > 100.0);
    }
}
