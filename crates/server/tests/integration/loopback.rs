//! Servers in this process, on loopback.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use server::{configuration::Configuration, serve::serve};
use tailnet::ts2021::{
    noise_handshake::{Initiation, REPLY, REPLY_HEADER, Reply},
    noise_stream::NoiseStream,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};

/// Maximum time for a server to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// An unused address.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a server, and waits until it listens at this address.
pub(crate) async fn start(configuration: Configuration, at: SocketAddr) {
    let mut serving = tokio::spawn(serve(configuration));
    let answers = async {
        while TcpStream::connect(at).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = &mut serving => panic!("the server ended: {ended:?}"),
        answered = timeout(PATIENCE, answers) => answered.expect("the server listens"),
    }
}

/// Reads the server's reply to the Noise handshake, and returns the stream.
pub(crate) async fn inside<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    initiation: Initiation,
) -> NoiseStream<S> {
    let mut header = [0; REPLY_HEADER];
    stream.read_exact(&mut header).await.unwrap();
    assert_eq!(Reply::read(header), Ok(Reply::Accepted));
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).await.unwrap();
    let (sealer, opener) = initiation.finish(&reply).unwrap();
    NoiseStream::of_member(stream, sealer, opener)
}
