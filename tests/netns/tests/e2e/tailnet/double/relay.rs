//! The relay's connections.

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

use super::{Shared, Words};

/// How the relay behaves.
#[derive(Clone)]
pub enum RelayManner {
    /// It passes datagrams on.
    Good,
    /// It answers the first request with these bytes.
    Says(Words),
    /// It says its key, takes the login, and then says these bytes.
    Then(Words),
}

/// Where clients' datagrams go, by their keys.
type Clients = Arc<Mutex<HashMap<[u8; 32], mpsc::Sender<Bytes>>>>;

/// Takes connections.
pub async fn accept(listener: TcpListener, shared: Arc<Shared>) {
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

/// Takes those of a relay that is good whatever happens to the other.
pub async fn accept_well(listener: TcpListener, shared: Arc<Shared>) {
    let listener = super::listener(listener);
    let clients = Clients::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, clients) = (shared.tls(), Arc::clone(&clients));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let Some(mut client) = Client::of(stream).await else { return };
            client.greet().await;
            client.log_in().await;
            pass_on(client, &clients).await;
        });
    }
}

async fn serve(stream: TlsStream<TcpStream>, shared: &Shared, clients: Clients) {
    let manner = shared.relay.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(mut client) = Client::of(stream).await else { return };
    if let RelayManner::Says(words) = &manner {
        return say(&mut client, words).await;
    }
    client.greet().await;
    client.log_in().await;
    shared.logins.fetch_add(1, Ordering::Relaxed);
    match &manner {
        RelayManner::Then(words) => say(&mut client, words).await,
        _ => pass_on(client, &clients).await,
    }
}

async fn say(client: &mut Client<TlsStream<TcpStream>>, words: &Words) {
    for piece in words.pieces() {
        client.say(piece).await;
        sleep(words.rest).await;
    }
    if !words.then_ends {
        // What it says is nothing to this relay.
        while client.next().await.is_some() {}
    }
}

async fn pass_on(mut client: Client<TlsStream<TcpStream>>, clients: &Clients) {
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
                        // A relay drops what finds no room.
                        let _ = to.try_send(from.into());
                    }
                }
                Some((kind::PING, ping)) => client.frame(kind::PONG, &ping).await,
                Some(_) => {}
                None => return,
            },
            Some(packet) = waiting.recv() => {
                write_frame(&mut frames, kind::RECV_PACKET, &packet);
                client.say(&frames.split()).await;
            }
        }
    }
}
