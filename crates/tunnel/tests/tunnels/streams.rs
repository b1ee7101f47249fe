use std::{io::ErrorKind, net::SocketAddr, thread, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{TcpStream, Tunnel};

use crate::{
    block_on::block_on,
    tunnel_pair::{A, B, Pair, UNUSED, at, in_time, pattern},
};

/// Both ends of a connection to b.
async fn connected(pair: &Pair, to: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = pair.b.listen(to).unwrap();
    let both = async { tokio::join!(pair.a.connect(to), listener.accept()) };
    let (near, far) = in_time(both).await;
    (near.unwrap(), far.unwrap().0)
}

/// Sends some bytes and expects others, up to both ends of the stream.
async fn exchange(stream: TcpStream, sent: Vec<u8>, expected: Vec<u8>) {
    let (mut read, mut write) = stream.into_split();
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let ((), reading) = tokio::join!(writing, read.read_to_end(&mut received));
    reading.unwrap();
    assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_transfers_run_both_ways_at_once_over_both_families() {
    const LEN: usize = 8_000_000;
    let pair = Pair::start().await;
    for to in B {
        let (near, far) = connected(&pair, at(to, 80)).await;
        assert_eq!(near.peer_addr().unwrap(), at(to, 80));
        assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
        let (one, other) = (pattern(LEN, 1), pattern(LEN, 2));
        let far = tokio::spawn(exchange(far, other.clone(), one.clone()));
        in_time(exchange(near, one, other)).await;
        in_time(far).await.unwrap();
    }
    assert!(pair.a.peers()[0].tx_bytes > 2 * LEN as u64, "the bytes did not pass the tunnel");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_concurrent_streams_arrive() {
    let pair = Pair::start().await;
    let listener = pair.b.listen(at(B[0], 80)).unwrap();
    let accepting = tokio::spawn(async move {
        let mut served = Vec::new();
        for _ in 0..200 {
            let (mut stream, _) = listener.accept().await.unwrap();
            served.push(tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(&mut stream);
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                stream.shutdown().await.unwrap();
            }));
        }
        for one in served {
            one.await.unwrap();
        }
    });
    let streams = (0..200).map(|number| {
        let tunnel = pair.a.clone();
        tokio::spawn(async move {
            let bytes = pattern(60_000 + number as usize, number);
            let stream = tunnel.connect(at(B[0], 80)).await.unwrap();
            exchange(stream, bytes.clone(), bytes).await;
        })
    });
    for stream in streams.collect::<Vec<_>>() {
        in_time(stream).await.unwrap();
    }
    in_time(accepting).await.unwrap();
    // Waits for the last acknowledgements.
    in_time(async {
        while pair.a.memory_used() + pair.b.memory_used() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_stream_still_receives() {
    let pair = Pair::start().await;
    let (mut near, mut far) = connected(&pair, at(B[1], 80)).await;
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(near.write(b"?").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut received = String::new();
    in_time(far.read_to_string(&mut received)).await.unwrap();
    assert_eq!(received, "question");
    far.write_all(b"answer").await.unwrap();
    drop(far);
    received.clear();
    in_time(near.read_to_string(&mut received)).await.unwrap();
    assert_eq!(received, "answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_refusal_and_missing_route_have_their_error_kinds() {
    let pair = Pair::start().await;
    let (near, mut far) = connected(&pair, at(B[0], 80)).await;
    let reading = tokio::spawn(async move { far.read(&mut [0; 9]).await });
    near.set_zero_linger().unwrap();
    drop(near);
    let reset = in_time(reading).await.unwrap().unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    let refused = in_time(pair.a.connect(at(B[0], 81))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let nowhere = in_time(pair.a.connect(at("192.0.2.1", 80))).await.unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NetworkUnreachable);
    let elsewhere = pair.a.listen(at(B[0], 80)).unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::AddrNotAvailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_connect_leaves_no_connection() {
    let pair = Pair::start().await;
    for _ in 0..50 {
        let patience = Duration::from_millis(2);
        let dialing = pair.a.connect(at(UNUSED, 80));
        assert!(tokio::time::timeout(patience, dialing).await.is_err());
    }
    assert_eq!(pair.a.connections(), 0);
    in_time(connected(&pair, at(B[0], 80))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_waits_for_a_reader_that_does_not_read() {
    let pair = Pair::start().await;
    let (mut near, mut far) = connected(&pair, at(B[0], 80)).await;
    let bytes = pattern(100_000, 3);
    let (mut whole, mut part) = (0, 0);
    let patience = Duration::from_millis(300);
    // A cancelled write has written the bytes of its last completed call.
    'writing: loop {
        while part < bytes.len() {
            match tokio::time::timeout(patience, near.write(&bytes[part..])).await {
                Ok(written) => part += written.unwrap(),
                Err(_) => break 'writing,
            }
        }
        (whole, part) = (whole + 1, 0);
        assert!(whole < 500, "the writer never waits");
    }
    let held = pair.a.memory_used() + pair.b.memory_used();
    assert!(held < 34_000_000, "{held} bytes");
    drop(near);
    let mut received = vec![0; bytes.len()];
    for _ in 0..whole {
        in_time(far.read_exact(&mut received)).await.unwrap();
        assert!(received == bytes);
    }
    received.clear();
    in_time(far.read_to_end(&mut received)).await.unwrap();
    assert!(received == bytes[..part]);
}

/// The wakers are not those of tokio.
#[test]
fn sockets_work_on_any_executor() {
    let Pair { a, b } = block_on(Pair::start());
    let listener = b.listen(at(B[0], 80)).unwrap();
    let serving = thread::Builder::new().spawn(move || {
        block_on(async {
            let (stream, from) = listener.accept().await.unwrap();
            assert_eq!(from.ip(), A[0].parse::<std::net::IpAddr>().unwrap());
            exchange(stream, pattern(1_000_000, 1), pattern(1_000_000, 2)).await;
        });
    });
    let dial = |tunnel: &Tunnel| block_on(tunnel.connect(at(B[0], 80))).unwrap();
    block_on(exchange(dial(&a), pattern(1_000_000, 2), pattern(1_000_000, 1)));
    serving.unwrap().join().unwrap();
    block_on(a.close());
    block_on(b.close());
}
