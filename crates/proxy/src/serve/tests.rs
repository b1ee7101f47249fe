//! Uses real connections over loopback. The client has a small receive buffer, so that the proxy still
//! holds the end of an answer when the service closes.

use sys::process::OpenFiles;
use tokio::{net::TcpStream, runtime::Builder, task::JoinHandle};

use super::*;
use crate::{
    capacity::Capacity, connections::Connections, namespace::KernelStack, test_stack::connected,
};

/// Bytes of an answer that does not fit the client's receive buffer.
const ANSWER: usize = 1 << 20;
/// The client's receive buffer, in bytes.
const ROOM: u32 = 4096;

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A client, a service, and the task that relays between them.
async fn world() -> (TcpStream, TcpStream, JoinHandle<io::Result<()>>) {
    let (client, here) = connected(ROOM).await;
    let (there, service) = connected(1 << 20).await;
    let carried = tokio::spawn(async move {
        let connection =
            admitted(&Connections::new(Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0)));
        carry::<KernelStack>(Stream::Tcp(here), there, &connection).await
    });
    (client, service, carried)
}

/// A connection of one source.
fn admitted(connections: &Connections) -> Connection {
    connections.admit(Group::Exposed(0), Source::Client(Client::User(1)), 4).unwrap()
}

/// Sends small pieces from the client after the service has closed.
async fn send_repeatedly(client: &mut TcpStream) {
    for _ in 0..10 {
        client.write_all(b"more").await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the other end has acknowledged all bytes: a reset discards the others.
async fn acknowledged(stream: &TcpStream) {
    let [here, there] = [stream.local_addr(), stream.peer_addr()].map(|at| at.unwrap().port());
    let ports = [format!(":{here:04X}"), format!(":{there:04X}")];
    let is_waiting = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut ours = lines.filter(|line| (0..2).all(|end| line[1 + end].ends_with(&ports[end])));
        !ours.next().expect("it is connected")[4].starts_with("00000000:")
    };
    timeout(Duration::from_secs(10), async {
        while is_waiting() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it is not acknowledged");
}

/// Reads until the end. Returns the number of bytes, and how the stream ended.
async fn read_to_end(client: &mut TcpStream) -> (usize, io::Result<usize>) {
    let (mut len, mut room) = (0, vec![0; 65_536]);
    loop {
        let read = timeout(Duration::from_secs(10), client.read(&mut room)).await;
        match read.expect("it hangs") {
            Ok(read) if read > 0 => len += read,
            ended => return (len, ended),
        }
    }
}

#[test]
fn answer_arrives_whole_if_the_client_sends_after_the_service_closed() {
    run(async {
        let (mut client, mut service, carried) = world().await;
        client.write_all(b"?").await.unwrap();
        service.read_exact(&mut [0]).await.unwrap();
        service.write_all(&vec![7; ANSWER]).await.unwrap();
        drop(service);
        send_repeatedly(&mut client).await;
        let (len, ended) = read_to_end(&mut client).await;
        assert_eq!((len, ended.unwrap()), (ANSWER, 0));
        drop(client);
        timeout(Duration::from_secs(5), carried).await.expect("it ends").unwrap().unwrap();
    });
}

#[test]
fn bytes_before_a_service_reset_arrive_and_are_followed_by_a_reset() {
    run(async {
        for keeps_sending in [false, true] {
            let (mut client, mut service, carried) = world().await;
            service.write_all(&vec![7; 100_000]).await.unwrap();
            acknowledged(&service).await;
            service.set_zero_linger().unwrap();
            drop(service);
            if keeps_sending {
                client.write_all(b"more").await.unwrap();
            }
            sleep(Duration::from_millis(100)).await;
            let (len, ended) = read_to_end(&mut client).await;
            assert_eq!(len, 100_000);
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(carried.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn client_reset_resets_the_service_connection() {
    run(async {
        let (client, mut service, carried) = world().await;
        service.write_all(b"?").await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        let (_, ended) = read_to_end(&mut service).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(carried.await.unwrap().is_err());
    });
}

#[test]
fn client_that_sends_forever_is_closed_after_a_limit() {
    run(async {
        let (mut client, service, carried) = world().await;
        drop(service);
        let sending =
            tokio::spawn(async move { while client.write_all(&[7; 65_536]).await.is_ok() {} });
        timeout(Duration::from_secs(10), carried).await.expect("it ends").unwrap().unwrap();
        timeout(Duration::from_secs(10), sending).await.expect("its connection ends").unwrap();
    });
}

#[test]
fn client_in_lingering_close_is_evicted_at_once() {
    run(async {
        // A client before its request can be evicted after two seconds.
        let connections = Connections::new(Capacity {
            before_request: 4,
            ..Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0)
        });
        let source = Source::Client(Client::User(1));
        let first = connections.admit(Group::BeforeRequest, source, 4).unwrap();
        let (mut client, here) = connected(ROOM).await;
        let (there, service) = connected(1 << 20).await;
        let carried =
            tokio::spawn(
                async move { carry::<KernelStack>(Stream::Tcp(here), there, &first).await },
            );
        drop(service);
        send_repeatedly(&mut client).await;
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert!(!carried.is_finished(), "it still drains the client's input");
        let _second = connections.admit_before_request(source, Duration::ZERO).await.unwrap();
        let carried = timeout(LINGER_SILENT / 2, carried).await.expect("it is evicted").unwrap();
        assert_eq!(carried.unwrap_err().to_string(), evicted_error().to_string());
        assert!(client.write_all(b"more").await.is_err(), "it was reset");
    });
}

#[test]
fn client_reset_after_the_last_byte_resets_the_service_connection() {
    run(async {
        let (mut client, mut service, carried) = world().await;
        service.write_all(b"?").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        let (_, ended) = read_to_end(&mut service).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(carried.await.unwrap().is_err());
    });
}

#[test]
fn refusal_ends_the_output_while_input_is_still_drained() {
    run(async {
        let (mut client, here) = connected(ROOM).await;
        let refusing = tokio::spawn(refuse(Stream::Tcp(here), b"no"));
        let (len, ended) = read_to_end(&mut client).await;
        assert_eq!((len, ended.unwrap()), (2, 0));
        assert!(!refusing.is_finished(), "it still drains the client's input");
        drop(client);
        refusing.await.unwrap().unwrap();
    });
}
