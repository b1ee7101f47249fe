//! Uses sockets on loopback. Each test decides when the socket of a flow opens.

use std::{collections::HashMap, net::Ipv4Addr, time::Duration};

use tokio::{net::UdpSocket, runtime::Builder, sync::watch};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

/// Starts a relay to `to` and returns its address. The socket of a client opens once `is_open` is true
/// for the client.
async fn start_relay(
    to: SocketAddr,
    is_open: watch::Receiver<HashMap<SocketAddr, bool>>,
) -> SocketAddr {
    let near = socket().await;
    let at = near.local_addr().unwrap();
    let open = move |client| {
        let mut is_open = is_open.clone();
        async move {
            let open = is_open.wait_for(|open| open.get(&client).copied().unwrap_or(false)).await;
            drop(open.map_err(io::Error::other)?);
            let remote = socket().await;
            UdpSocket::connect(&remote, to).await?;
            Ok((remote, to))
        }
    };
    tokio::spawn(relay_datagrams("a test".into(), MAX_FLOWS, near, open));
    at
}

async fn received(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 100];
    let receive = UdpSocket::recv_from(socket, &mut buffer);
    let (len, from) = timeout(PATIENCE, receive).await.expect("it hangs").unwrap();
    (buffer[..len].to_vec(), from)
}

#[test]
fn slow_connect_delays_no_other_client_and_loses_no_datagram() {
    run(async {
        let (service, slow, quick) = (socket().await, socket().await, socket().await);
        let (open, is_open) = watch::channel(HashMap::from([(quick.local_addr().unwrap(), true)]));
        let at = start_relay(service.local_addr().unwrap(), is_open).await;
        for word in [b"one", b"two"] {
            slow.send_to(word, at).await.unwrap();
        }
        quick.send_to(b"quick", at).await.unwrap();
        let (word, from) = received(&service).await;
        assert_eq!(word, b"quick");
        service.send_to(b"answer", from).await.unwrap();
        assert_eq!(received(&quick).await, (b"answer".to_vec(), at));

        open.send_modify(|open| {
            open.insert(slow.local_addr().unwrap(), true);
        });
        let (first, from) = received(&service).await;
        assert_eq!(first, b"one");
        assert_eq!(received(&service).await, (b"two".to_vec(), from));
        service.send_to(b"both", from).await.unwrap();
        assert_eq!(received(&slow).await, (b"both".to_vec(), at));
    });
}

#[test]
fn one_datagram_of_any_length_waits_for_the_connection() {
    run(async {
        let flow = Flow::<UdpSocket>::default();
        let longest = vec![7; 65_507];
        flow.send(&longest).await.unwrap();
        assert!(flow.send(&[]).await.is_err());
        let (remote, to) = (socket().await, socket().await.local_addr().unwrap());
        let waiting = flow.open(&Arc::new(Remote { socket: remote, to })).unwrap();
        assert!(waiting == [longest]);
    });
}

#[test]
fn waiting_empty_datagrams_are_limited() {
    run(async {
        let flow = Flow::<UdpSocket>::default();
        let mut kept = 0;
        while flow.send(&[]).await.is_ok() {
            kept += 1;
            assert!(kept <= MAX_WAITING_BYTES / OVERHEAD);
        }
    });
}

#[test]
fn waiting_datagrams_are_limited_in_bytes() {
    run(async {
        let flow = Flow::<UdpSocket>::default();
        let limit = MAX_WAITING_BYTES / (OVERHEAD + 1000);
        for _ in 0..limit {
            flow.send(&[7; 1000]).await.unwrap();
        }
        assert!(flow.send(&[7; 1000]).await.is_err());
        let (remote, to) = (socket().await, socket().await);
        let to_address = to.local_addr().unwrap();
        let remote = Arc::new(Remote { socket: remote, to: to_address });
        assert_eq!(flow.open(&remote).map(|waiting| waiting.len()), Some(limit));
        assert!(flow.open(&remote).is_none());
        flow.send(b"now").await.unwrap();
        assert_eq!(received(&to).await.0, b"now");
    });
}

#[test]
fn refused_flow_ends_and_the_next_datagram_starts_another() {
    run(async {
        let (service, client) = (socket().await, socket().await);
        let to = service.local_addr().unwrap();
        let (_, is_open) = watch::channel(HashMap::from([(client.local_addr().unwrap(), true)]));
        let at = start_relay(to, is_open).await;
        client.send_to(b"one", at).await.unwrap();
        let (_, first) = received(&service).await;
        drop(service);
        client.send_to(b"two", at).await.unwrap();
        // The kernel reports the closed port at once, and the flow closes its socket.
        let is_gone = async {
            while std::net::UdpSocket::bind(first).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, is_gone).await.expect("the flow stays");
        let service = UdpSocket::bind(to).await.unwrap();
        client.send_to(b"three", at).await.unwrap();
        assert_eq!(received(&service).await.0, b"three");
    });
}
