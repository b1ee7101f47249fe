use std::{io::ErrorKind, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{B, NOBODY, Pair, at, soon, speech};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_is_dropped_fails_its_sockets_and_tells_its_peers() {
    let Pair { a, b } = Pair::start().await;
    let listener = b.listen(at(B[0], 80)).unwrap();
    let (near, far) =
        soon(async { tokio::join!(a.connect(at(B[0], 80)), listener.accept()) }).await;
    let ((mut read, mut write), mut far) = (near.unwrap().into_split(), far.unwrap().0);
    let writing = tokio::spawn(async move {
        let bytes = speech(100_000, 1);
        loop {
            if let Err(error) = write.write_all(&bytes).await {
                break error;
            }
        }
    });
    let hearing = tokio::spawn(async move {
        let mut bytes = vec![0; 10_000];
        loop {
            match far.read(&mut bytes).await {
                Ok(0) => panic!("as if all were said"),
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    });
    let reading = tokio::spawn(async move { read.read(&mut [0; 9]).await });
    let near_listener = a.listen(at("0.0.0.0", 0)).unwrap();
    let accepting = tokio::spawn(async move { near_listener.accept().await.map(drop) });
    let datagrams = a.bind_udp(at("0.0.0.0", 0)).unwrap();
    let receiving = tokio::spawn(async move { datagrams.recv_from(&mut [0; 9]).await.map(drop) });
    let dialing = {
        let a = a.clone();
        // Polled once, and then without the tunnel.
        let mut dialing = Box::pin(async move { a.connect(at(NOBODY, 80)).await.map(drop) });
        let patience = Duration::from_millis(50);
        assert!(tokio::time::timeout(patience, &mut dialing).await.is_err());
        tokio::spawn(dialing)
    };
    a.clone().close().await;
    drop(a);
    let reset = [soon(hearing).await.unwrap(), soon(dialing).await.unwrap().unwrap_err()];
    assert_eq!(reset.map(|error| error.kind()), [ErrorKind::ConnectionReset; 2]);
    let gone =
        [soon(accepting).await.unwrap().unwrap_err(), soon(receiving).await.unwrap().unwrap_err()];
    assert_eq!(gone.map(|error| error.kind()), [ErrorKind::NotConnected; 2]);
    // Of the two halves one has the reset, the other finds the connection gone.
    let (read, write) = (soon(reading).await.unwrap(), soon(writing).await.unwrap());
    let kinds = (read.map_err(|error| error.kind()), write.kind());
    let first = (Err(ErrorKind::ConnectionReset), ErrorKind::BrokenPipe);
    assert!(kinds == first || kinds == (Ok(0), ErrorKind::ConnectionReset), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_last_arrives_before_a_tunnel_closes() {
    const LEN: usize = 3_000_000;
    let Pair { a, b } = Pair::start().await;
    let listener = b.listen(at(B[0], 80)).unwrap();
    let (near, far) =
        soon(async { tokio::join!(a.connect(at(B[0], 80)), listener.accept()) }).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
    let hearing = tokio::spawn(async move {
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).await.map(|_| heard)
    });
    near.write_all(&speech(LEN, 1)).await.unwrap();
    drop(near);
    soon(a.close()).await;
    assert!(soon(hearing).await.unwrap().unwrap() == speech(LEN, 1));
}
