//! Tests the stack with the kernel's TCP, through two engines and a TUN device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod rig;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread::{self, JoinHandle},
    time::Duration,
};

use netstack::CongestionControl;
use rig::{KERNEL, Rig, STACK};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
};

const MEMORY: usize = 64 << 20;

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}

/// Creates the rig and a runtime in its namespace, or prints why the test is skipped.
fn rig() -> Option<(Rig, Runtime)> {
    let Some(rig) = Rig::new(MEMORY, CongestionControl::default()) else {
        skips::skip("CAP_NET_ADMIN and a TUN device");
        return None;
    };
    Some((rig, Runtime::new().unwrap()))
}

fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().name("kernel".into()).spawn(body).unwrap()
}

/// The kernel's end: writes all data while it reads all data.
fn exchange_kernel(stream: TcpStream, len: usize) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let writing = spawn(move || {
        writer.write_all(&data(len)).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    let mut reader = stream;
    reader.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    received
}

/// The stack's end.
async fn exchange_stack(mut stream: netstack::TcpStream, len: usize) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let mut received = Vec::new();
    let sent = data(len);
    let write_all = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let (got, ()) = tokio::join!(read.read_to_end(&mut received), write_all);
    got.unwrap();
    received
}

#[test]
fn bytes_are_exchanged_for_either_client_with_and_without_offloads() {
    let Some((rig, runtime)) = rig() else { return };
    const LEN: usize = 20_000_000;
    let mut port = 80;
    for offloads in [true, false] {
        rig.stack.set_offloads(offloads, offloads);
        for family in 0..2 {
            port += 2;
            let listener = TcpListener::bind(at(KERNEL[family], port)).unwrap();
            let kernel = spawn(move || exchange_kernel(listener.accept().unwrap().0, LEN));
            let dial = rig.stack.connect(at(KERNEL[family], port));
            let received =
                runtime.block_on(async { exchange_stack(dial.await.unwrap(), LEN).await });
            assert!(received == data(LEN) && kernel.join().unwrap() == data(LEN));

            let to = at(STACK[family], port + 1);
            let listener = rig.stack.listen(to).unwrap();
            let kernel = spawn(move || exchange_kernel(TcpStream::connect(to).unwrap(), LEN));
            let received = runtime.block_on(async {
                let (stream, _) = listener.accept().await.unwrap();
                exchange_stack(stream, LEN).await
            });
            assert!(received == data(LEN) && kernel.join().unwrap() == data(LEN));
        }
    }
    assert_eq!(rig.stack.memory_used(), 0);
}

#[test]
fn refusals_and_resets_work_in_both_directions() {
    let Some((rig, runtime)) = rig() else { return };
    let refused = runtime.block_on(rig.stack.connect(at(KERNEL[0], 81))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let refused = TcpStream::connect(at(STACK[1], 81)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    let listener = TcpListener::bind(at(KERNEL[0], 82)).unwrap();
    let dialled = runtime.block_on(rig.stack.connect(at(KERNEL[0], 82))).unwrap();
    let (mut kernel, _) = listener.accept().unwrap();
    kernel.write_all(b"unread").unwrap();
    // The answers to two echo requests arrive after it.
    for _ in 0..2 {
        runtime.block_on(rig.stack.ping(KERNEL[0].parse().unwrap())).unwrap();
    }
    drop(dialled);
    let reset = kernel.read(&mut [0; 9]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    let mut dialled = runtime.block_on(rig.stack.connect(at(KERNEL[0], 82))).unwrap();
    let (kernel, _) = listener.accept().unwrap();
    runtime.block_on(dialled.write_all(b"unread")).unwrap();
    kernel.peek(&mut [0; 9]).unwrap();
    drop(kernel);
    let reset = runtime.block_on(dialled.read(&mut [0; 9])).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_kernel_that_pauses_reading_stops_the_stack_and_resumes() {
    let Some((rig, runtime)) = rig() else { return };
    let listener = TcpListener::bind(at(KERNEL[1], 83)).unwrap();
    let mut dialled = runtime.block_on(rig.stack.connect(at(KERNEL[1], 83))).unwrap();
    let (mut kernel, _) = listener.accept().unwrap();
    const LEN: usize = 40_000_000;
    let writing = runtime.spawn(async move {
        dialled.write_all(&data(LEN)).await.unwrap();
        dialled.shutdown().await.unwrap();
    });
    thread::sleep(Duration::from_secs(2));
    assert!(!writing.is_finished());
    let mut received = Vec::new();
    kernel.read_to_end(&mut received).unwrap();
    assert!(received == data(LEN));
}

#[test]
fn datagrams_and_echoes_work_in_both_directions() {
    let Some((rig, runtime)) = rig() else { return };
    for family in 0..2 {
        let kernel = UdpSocket::bind(at(KERNEL[family], 53)).unwrap();
        let ours = rig.stack.bind_udp(at(STACK[family], 53)).unwrap();
        // The kernel drops packets until it has a route to its new address.
        kernel.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        runtime.block_on(async {
            let mut to = [0; 100];
            let mut asked = 0;
            let (len, from) = loop {
                asked += 1;
                ours.send_to(b"question", at(KERNEL[family], 53)).await.unwrap();
                match kernel.recv_from(&mut to) {
                    Err(error) => assert!(asked < 50, "{error}"),
                    Ok(question) => break question,
                }
            };
            assert_eq!((&to[..len], from), (&b"question"[..], at(STACK[family], 53)));
            kernel.send_to(b"answer", from).unwrap();
            let (len, from) = ours.recv_from(&mut to).await.unwrap();
            assert_eq!((&to[..len], from), (&b"answer"[..], at(KERNEL[family], 53)));
            let ping = rig.stack.ping(KERNEL[family].parse().unwrap());
            let took = tokio::time::timeout(Duration::from_secs(5), ping).await.unwrap().unwrap();
            assert!(took < Duration::from_secs(1));
        });
    }
    // A connected socket of the kernel receives the error about a closed port.
    let kernel = UdpSocket::bind(at(KERNEL[0], 0)).unwrap();
    kernel.connect(at(STACK[0], 9)).unwrap();
    kernel.send(b"?").unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(kernel.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
