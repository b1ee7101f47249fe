//! Connections of the relay.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use doubles::relay::Client;
use tailnet::derp::{kind, write_frame};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::{Payload, Shared};

/// How the relay behaves.
#[derive(Clone)]
pub(crate) enum RelayBehaviour {
    /// It relays datagrams.
    Good,
    /// It answers the first request with these bytes.
    Sends(Payload),
    /// It sends its key, reads the login, and then sends these bytes.
    Then(Payload),
}

/// Senders of datagrams to clients, by key.
type Clients = Arc<Mutex<HashMap<[u8; 32], mpsc::Sender<Bytes>>>>;

/// Takes connections.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let listener = super::listener(listener);
    let clients = Clients::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, shared, clients) = (shared.tls(), Arc::clone(&shared), Arc::clone(&clients));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            tokio::select! {
                () = serve(stream, &shared, clients) => {}
                () = shared.cut_relay.notified() => {}
            }
        });
    }
}

/// Accepts those of a relay that always behaves well.
pub(super) async fn accept_well(listener: TcpListener, shared: Arc<Shared>) {
    let listener = super::listener(listener);
    let clients = Clients::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, clients) = (shared.tls(), Arc::clone(&clients));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let Some(mut client) = Client::accept(stream).await else { return };
            client.upgrade().await;
            client.log_in().await;
            relay_datagrams(client, &clients).await;
        });
    }
}

async fn serve(stream: TlsStream<TcpStream>, shared: &Shared, clients: Clients) {
    let manner = shared.relay.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(mut client) = Client::accept(stream).await else { return };
    if let RelayBehaviour::Sends(words) = &manner {
        return send_payload(&mut client, words).await;
    }
    client.upgrade().await;
    client.log_in().await;
    shared.logins.fetch_add(1, Ordering::Relaxed);
    match &manner {
        RelayBehaviour::Then(words) => send_payload(&mut client, words).await,
        _ => relay_datagrams(client, &clients).await,
    }
}

async fn send_payload(client: &mut Client<TlsStream<TcpStream>>, payload: &Payload) {
    for piece in payload.pieces() {
        client.send(piece).await;
        sleep(payload.rest).await;
    }
    if !payload.then_ends {
        // The client's frames are ignored.
        while client.next().await.is_some() {}
    }
}

async fn relay_datagrams(mut client: Client<TlsStream<TcpStream>>, clients: &Clients) {
    let (to_client, mut waiting) = mpsc::channel(64);
    let lock = || clients.lock().unwrap_or_else(PoisonError::into_inner);
    lock().insert(client.key.0, to_client);
    let mut frames = BytesMut::new();
    loop {
        tokio::select! {
            frame = client.next() => match frame {
                Some((kind::SEND_PACKET, mut contents)) if contents.len() > 32 => {
                    let to: [u8; 32] = contents.split_to(32)[..].try_into().expect("32 bytes");
                    let from = [&client.key.0[..], &contents[..]].concat();
                    if let Some(to) = lock().get(&to) {
                        // A relay drops datagrams without room.
                        let _ = to.try_send(from.into());
                    }
                }
                Some((kind::PING, ping)) => client.frame(kind::PONG, &ping).await,
                Some(_) => {}
                None => return,
            },
            Some(packet) = waiting.recv() => {
                write_frame(&mut frames, kind::RECV_PACKET, &packet);
                client.send(&frames.split()).await;
            }
        }
    }
}
