//! Real connections of the loopback, whose client has little room for what it reads:
//! the tail of an answer is still with us when the service goes.

use sys::process::OpenFiles;
use tokio::{net::TcpStream, runtime::Builder, task::JoinHandle};

use super::*;
use crate::{
    capacity::Capacity, connections::Connections, namespace::KernelStack, testing::connected,
};

/// An answer that has to wait for its reader.
const ANSWER: usize = 1 << 20;
/// Room of the client for what it did not read yet.
const ROOM: u32 = 4096;

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A client and a service, and what carries between them.
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

/// Has a client say more, word by word, as nobody is there any more.
async fn go_on_speaking(client: &mut TcpStream) {
    for _ in 0..10 {
        client.write_all(b"more").await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the other end's kernel has all that was written: a reset throws away what it has not.
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

/// What a client reads, and how it ended.
async fn heard(client: &mut TcpStream) -> (usize, io::Result<usize>) {
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
fn an_answer_arrives_whole_though_its_client_speaks_on_when_the_service_has_gone() {
    run(async {
        let (mut client, mut service, carried) = world().await;
        client.write_all(b"?").await.unwrap();
        service.read_exact(&mut [0]).await.unwrap();
        service.write_all(&vec![7; ANSWER]).await.unwrap();
        drop(service);
        go_on_speaking(&mut client).await;
        let (len, ended) = heard(&mut client).await;
        assert_eq!((len, ended.unwrap()), (ANSWER, 0));
        drop(client);
        timeout(Duration::from_secs(5), carried).await.expect("it ends").unwrap().unwrap();
    });
}

#[test]
fn what_a_service_said_before_it_reset_arrives_and_is_not_taken_for_whole() {
    run(async {
        for speaks_on in [false, true] {
            let (mut client, mut service, carried) = world().await;
            service.write_all(&vec![7; 100_000]).await.unwrap();
            acknowledged(&service).await;
            service.set_zero_linger().unwrap();
            drop(service);
            if speaks_on {
                client.write_all(b"more").await.unwrap();
            }
            sleep(Duration::from_millis(100)).await;
            let (len, ended) = heard(&mut client).await;
            assert_eq!(len, 100_000);
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(carried.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_client_that_resets_has_its_service_reset() {
    run(async {
        let (client, mut service, carried) = world().await;
        service.write_all(b"?").await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        let (_, ended) = heard(&mut service).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(carried.await.unwrap().is_err());
    });
}

#[test]
fn who_speaks_on_for_ever_is_not_heard_for_ever() {
    run(async {
        let (mut client, service, carried) = world().await;
        drop(service);
        let speaking =
            tokio::spawn(async move { while client.write_all(&[7; 65_536]).await.is_ok() {} });
        timeout(Duration::from_secs(10), carried).await.expect("it ends").unwrap().unwrap();
        timeout(Duration::from_secs(10), speaking).await.expect("it is told").unwrap();
    });
}

#[test]
fn a_client_that_is_heard_out_as_its_service_has_closed_makes_way_at_once() {
    run(async {
        // One that is asking makes way after two seconds.
        let connections = Connections::new(Capacity {
            asking: 4,
            ..Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0)
        });
        let source = Source::Client(Client::User(1));
        let first = connections.admit(Group::Asking, source, 4).unwrap();
        let (mut client, here) = connected(ROOM).await;
        let (there, service) = connected(1 << 20).await;
        let carried =
            tokio::spawn(
                async move { carry::<KernelStack>(Stream::Tcp(here), there, &first).await },
            );
        drop(service);
        go_on_speaking(&mut client).await;
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert!(!carried.is_finished(), "it hears the client out");
        let _second = connections.admit_asking(source, Duration::ZERO).await.unwrap();
        let carried = timeout(FAREWELL_SILENT / 2, carried).await.expect("it makes way").unwrap();
        assert_eq!(carried.unwrap_err().to_string(), made_way().to_string());
        assert!(client.write_all(b"more").await.is_err(), "it was reset");
    });
}

#[test]
fn a_client_that_resets_when_it_has_heard_all_has_its_service_reset() {
    run(async {
        let (mut client, mut service, carried) = world().await;
        service.write_all(b"?").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        let (_, ended) = heard(&mut service).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(carried.await.unwrap().is_err());
    });
}

#[test]
fn a_last_answer_ends_though_its_client_is_still_heard() {
    run(async {
        let (mut client, here) = connected(ROOM).await;
        let refusing = tokio::spawn(refuse(Stream::Tcp(here), b"no"));
        let (len, ended) = heard(&mut client).await;
        assert_eq!((len, ended.unwrap()), (2, 0));
        assert!(!refusing.is_finished(), "it hears the client out");
        drop(client);
        refusing.await.unwrap().unwrap();
    });
}
