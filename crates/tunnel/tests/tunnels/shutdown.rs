use std::{io::ErrorKind, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::tunnel_pair::{B, Pair, UNUSED, at, in_time, pattern};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_tunnel_fails_its_sockets_and_resets_its_connections() {
    let Pair { a, b } = Pair::start().await;
    let listener = b.listen(at(B[0], 80)).unwrap();
    let (near, far) =
        in_time(async { tokio::join!(a.connect(at(B[0], 80)), listener.accept()) }).await;
    let ((mut read, mut write), mut far) = (near.unwrap().into_split(), far.unwrap().0);
    let writing = tokio::spawn(async move {
        let bytes = pattern(100_000, 1);
        loop {
            if let Err(error) = write.write_all(&bytes).await {
                break error;
            }
        }
    });
    // The far side does not read, so the stream stops, and no datagram is lost when the reset is sent.
    let mut buffered = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = buffered;
        buffered = a.memory_used() + b.memory_used();
        if buffered == before && buffered > 100_000 {
            break;
        }
    }
    let reading = tokio::spawn(async move { read.read(&mut [0; 9]).await });
    let near_listener = a.listen(at("0.0.0.0", 0)).unwrap();
    let accepting = tokio::spawn(async move { near_listener.accept().await.map(drop) });
    let datagrams = a.bind_udp(at("0.0.0.0", 0)).unwrap();
    let receiving = tokio::spawn(async move { datagrams.recv_from(&mut [0; 9]).await.map(drop) });
    let dialing = {
        let a = a.clone();
        // Polled once while the tunnel exists.
        let mut dialing = Box::pin(async move { a.connect(at(UNUSED, 80)).await.map(drop) });
        let patience = Duration::from_millis(50);
        assert!(tokio::time::timeout(patience, &mut dialing).await.is_err());
        tokio::spawn(dialing)
    };
    a.clone().close().await;
    drop(a);
    let far_reading = tokio::spawn(async move {
        let mut bytes = vec![0; 10_000];
        loop {
            match far.read(&mut bytes).await {
                Ok(0) => panic!("the stream ended without a reset"),
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    });
    let reset = [in_time(far_reading).await.unwrap(), in_time(dialing).await.unwrap().unwrap_err()];
    assert_eq!(reset.map(|error| error.kind()), [ErrorKind::ConnectionReset; 2]);
    let gone = [
        in_time(accepting).await.unwrap().unwrap_err(),
        in_time(receiving).await.unwrap().unwrap_err(),
    ];
    assert_eq!(gone.map(|error| error.kind()), [ErrorKind::NotConnected; 2]);
    // One half gets the reset, the other one finds the connection closed.
    let (read, write) = (in_time(reading).await.unwrap(), in_time(writing).await.unwrap());
    let kinds = (read.map_err(|error| error.kind()), write.kind());
    let first = (Err(ErrorKind::ConnectionReset), ErrorKind::BrokenPipe);
    assert!(kinds == first || kinds == (Ok(0), ErrorKind::ConnectionReset), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_bytes_arrive_before_a_tunnel_closes() {
    const LEN: usize = 3_000_000;
    let Pair { a, b } = Pair::start().await;
    let listener = b.listen(at(B[0], 80)).unwrap();
    let (near, far) =
        in_time(async { tokio::join!(a.connect(at(B[0], 80)), listener.accept()) }).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
    let reading = tokio::spawn(async move {
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.map(|_| received)
    });
    near.write_all(&pattern(LEN, 1)).await.unwrap();
    drop(near);
    in_time(a.close()).await;
    assert!(in_time(reading).await.unwrap().unwrap() == pattern(LEN, 1));
}
