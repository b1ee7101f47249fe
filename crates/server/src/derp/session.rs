//! Session of a logged-in client. Frames are relayed from the buffer that they were read into, and
//! consecutive frames to one receiver are relayed as a run.

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use tailnet::{
    derp::{Decoder, FromClient, HEADER_LEN, MAX_PACKET, kind, write_frame},
    disco,
    keys::NodePublic,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout},
};

use super::{
    READ, Relay,
    queue::Filling,
    table::{Client, Route},
};

/// The buffer of a client that is silent for this time is freed.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// Size of the buffer for the first bytes of such a client.
const FIRST: usize = 64;
/// Maximum number of receivers that are recorded for a client. They are notified when it
/// disconnects.
const NOTED: usize = 4096;
/// Minimum time between two notifications that a peer is not connected.
const NOT_HERE_PAUSE: Duration = Duration::from_millis(333);
const KEY: usize = 32;

/// Session of one client.
pub(super) struct Session<'a> {
    relay: &'a Relay,
    client: &'a Arc<Client>,
    /// Clients that it sent datagrams to.
    pub recipients: HashSet<NodePublic>,
    /// When it was last notified that a peer is not connected.
    notified_at: Option<Instant>,
    /// Route of its last datagram, which the next one usually shares.
    last: Option<Last>,
    /// For a relay of the mesh: pairs of its clients and ours that were reported to the table.
    reported: HashSet<(NodePublic, NodePublic)>,
}

struct Last {
    to: NodePublic,
    route: Route,
    /// Version of the table at the lookup.
    version: u64,
}

/// A datagram in a frame.
struct Datagram<'f> {
    from: NodePublic,
    to: NodePublic,
    bytes: &'f [u8],
    /// Whether another relay forwarded it.
    is_forwarded: bool,
}

/// What to do after a run of frames.
enum Next {
    /// Read more.
    Read,
    /// Wait for room in a receiver's queue.
    Wait(Arc<Client>),
}

impl<'a> Session<'a> {
    /// Creates the session of a client that has logged in.
    pub(super) fn new(relay: &'a Relay, client: &'a Arc<Client>) -> Self {
        let (recipients, reported) = (HashSet::new(), HashSet::new());
        Self { relay, client, recipients, notified_at: None, last: None, reported }
    }

    /// Handles frames until the connection ends.
    ///
    /// # Errors
    /// The connection breaks, or the client sends a frame that it must not send.
    pub(super) async fn run(
        &mut self,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        loop {
            match self.handle(decoder, buffer)? {
                Next::Wait(receiver) => receiver.queue.wait_for_room().await,
                Next::Read => {
                    if read_more(buffer, from).await? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Handles the complete frames in the buffer.
    fn handle(&mut self, decoder: &mut Decoder, buffer: &mut BytesMut) -> io::Result<Next> {
        let mut is_active = false;
        while let Some((kind, len)) = decoder.poll_header(buffer).map_err(io::Error::other)? {
            let Some(first) = datagram(self.client, kind, &buffer[HEADER_LEN..HEADER_LEN + len])
            else {
                buffer.advance(HEADER_LEN);
                self.command(FromClient::read(kind, buffer.split_to(len).freeze()))?;
                continue;
            };
            if !is_active {
                self.relay.table.note_active(self.client);
                is_active = true;
            }
            let Some(route) = self.route(&first) else {
                self.send_not_here(&first);
                buffer.advance(HEADER_LEN + len);
                continue;
            };
            if self.relay_run(route.client(), matches!(route, Route::Remote(_)), decoder, buffer)? {
                return Ok(Next::Wait(Arc::clone(route.client())));
            }
        }
        Ok(Next::Read)
    }

    /// Relays all consecutive frames to the receiver of the next frame. Returns whether to wait
    /// for room in the receiver's queue.
    fn relay_run(
        &mut self,
        receiver: &Client,
        is_remote: bool,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
    ) -> io::Result<bool> {
        let mut filling = receiver.queue.fill();
        let mut to = None;
        while let Some((kind, len)) = decoder.poll_header(buffer).map_err(io::Error::other)? {
            let contents = &buffer[HEADER_LEN..HEADER_LEN + len];
            let Some(next) = datagram(self.client, kind, contents) else { break };
            if *to.get_or_insert(next.to) != next.to || self.is_news(&next) {
                break;
            }
            let has_no_room = put(&mut filling, &next, is_remote);
            // A relay forwards for many clients, so its connection must not wait for one
            // receiver.
            let waits = has_no_room && !next.is_forwarded;
            buffer.advance(HEADER_LEN + len);
            if waits {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn command(&mut self, frame: Option<FromClient>) -> io::Result<()> {
        match frame {
            Some(FromClient::Ping(data)) => {
                let mut out = BytesMut::new();
                write_frame(&mut out, kind::PONG, &data);
                self.client.queue.fill().control(&out);
            }
            Some(FromClient::Watch | FromClient::Close(_) | FromClient::Forward { .. })
                if !self.client.is_of_mesh =>
            {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            Some(FromClient::Watch) => {
                if self.client.key.0 != self.relay.key.public() {
                    self.relay.table.watch(self.client);
                }
            }
            Some(FromClient::Close(key)) => self.relay.table.close(&key),
            // Frames of newer or older clients, and datagrams in an invalid form.
            Some(
                FromClient::Preferred(_)
                | FromClient::Pong(_)
                | FromClient::KeepAlive
                | FromClient::Packet { .. }
                | FromClient::Forward { .. },
            )
            | None => {}
        }
        Ok(())
    }

    /// Looks up the route of a datagram, and records its receiver. A forwarded datagram is only
    /// relayed to local clients.
    fn route(&mut self, datagram: &Datagram<'_>) -> Option<Route> {
        let version = self.relay.table.version();
        let to = datagram.to;
        let is_known = |last: &Last| last.to == to && last.version == version;
        if !self.last.as_ref().is_some_and(is_known) {
            if self.last.as_ref().is_none_or(|last| last.version != version) {
                self.reported.clear();
            }
            let route = self.relay.table.route(&to)?;
            self.last = Some(Last { to, route, version });
        }
        let route = self.last.as_ref().map(|last| &last.route)?.clone();
        if datagram.is_forwarded {
            let has_room = self.reported.len() < NOTED;
            if has_room && self.reported.insert((datagram.from, to)) {
                self.relay.table.note_remote_sender(datagram.from, to);
            }
            return Some(route).filter(|route| matches!(route, Route::Local(_)));
        }
        if self.recipients.len() < NOTED {
            self.recipients.insert(to);
        }
        Some(route)
    }

    /// Whether a datagram comes from a client that must be reported to the table first.
    fn is_news(&self, datagram: &Datagram<'_>) -> bool {
        datagram.is_forwarded
            && self.reported.len() < NOTED
            && !self.reported.contains(&(datagram.from, datagram.to))
    }

    /// Notifies a client that searches for a path to a peer that is not connected. It learns
    /// only by this that the peer is elsewhere.
    fn send_not_here(&mut self, datagram: &Datagram<'_>) {
        self.relay.counters.not_here.add(1);
        let now = Instant::now();
        let is_due = self.notified_at.is_none_or(|at| now >= at + NOT_HERE_PAUSE);
        if datagram.bytes.starts_with(&disco::MAGIC) && is_due {
            self.notified_at = Some(now);
            self.relay.table.send_not_here(self.client, &datagram.to);
        }
    }
}

fn put(filling: &mut Filling<'_>, datagram: &Datagram<'_>, is_remote: bool) -> bool {
    let Datagram { from, to, bytes, .. } = datagram;
    if is_remote { filling.forward(from, to, bytes) } else { filling.packet(from, bytes) }
}

/// Parses the datagram in a frame. `None` if the frame contains none that this client may send.
fn datagram<'f>(client: &Client, kind: u8, contents: &'f [u8]) -> Option<Datagram<'f>> {
    let is_forwarded = kind == kind::FORWARD_PACKET && client.is_of_mesh;
    let (from, contents) = match kind {
        kind::SEND_PACKET => (client.key, contents),
        kind::FORWARD_PACKET if is_forwarded => {
            let (from, rest) = contents.split_first_chunk::<KEY>()?;
            (NodePublic(*from), rest)
        }
        _ => return None,
    };
    let (to, bytes) = contents.split_first_chunk::<KEY>()?;
    let to = NodePublic(*to);
    (bytes.len() <= MAX_PACKET).then_some(Datagram { from, to, bytes, is_forwarded })
}

/// Reads more bytes into the buffer. Returns 0 at the end. The buffer of a silent client is freed.
async fn read_more(
    buffer: &mut BytesMut,
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<usize> {
    if !buffer.is_empty() {
        buffer.reserve(READ / 2);
        return from.read_buf(buffer).await;
    }
    if buffer.capacity() > 0 {
        buffer.reserve(READ / 2);
        if let Ok(read) = timeout(QUIET, from.read_buf(buffer)).await {
            return read;
        }
        *buffer = BytesMut::new();
    }
    let mut first = [0; FIRST];
    let read = from.read(&mut first).await?;
    if read > 0 {
        buffer.reserve(READ);
        buffer.extend_from_slice(&first[..read]);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use tailnet::derp::{RelayKey, write_packet};
    use tokio::runtime::Handle;

    use super::*;
    use crate::network::counters;

    fn relay() -> Relay {
        let key = RelayKey::new(Box::new([9; 32].into()));
        Relay::new(key, None, None, counters::for_tests(), Handle::current())
    }

    /// A connected client.
    fn client(relay: &Relay, number: u8, is_of_mesh: bool) -> Arc<Client> {
        let (key, at) = (NodePublic([number; 32]), ([192, 0, 2, number], 7).into());
        let client = Arc::new(Client::new(key, at, is_of_mesh, relay.counters));
        relay.table.insert(&client);
        client
    }

    fn handle_frame(session: &mut Session<'_>, kind: u8, contents: &[u8]) -> io::Result<()> {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        session.handle(&mut Decoder::default(), &mut out).map(drop)
    }

    /// Sends datagrams of one byte in one run of frames, each to the client with this number.
    fn sends(session: &mut Session<'_>, datagrams: &[(u8, u8)]) {
        let mut out = BytesMut::new();
        for (to, byte) in datagrams {
            write_packet(&mut out, &NodePublic([*to; 32]), &[*byte]);
        }
        session.handle(&mut Decoder::default(), &mut out).unwrap();
    }

    /// The frames in a client's queue.
    fn received_frames(client: &Client) -> Vec<(u8, Bytes)> {
        let (mut out, mut decoder) = (BytesMut::new(), Decoder::default());
        let _ = client.queue.take(&mut out).now_or_never();
        std::iter::from_fn(|| decoder.poll_frame(&mut out).unwrap()).collect()
    }

    /// The datagrams in a client's queue, all from the first client.
    fn received_bytes(client: &Client) -> Vec<u8> {
        let byte = |(kind, contents): (u8, Bytes)| {
            assert_eq!((kind, contents.len(), contents[0]), (kind::RECV_PACKET, KEY + 1, 1));
            contents[KEY]
        };
        received_frames(client).into_iter().map(byte).collect()
    }

    #[tokio::test]
    async fn each_frame_of_a_run_reaches_its_own_receiver() {
        let relay = relay();
        let [sender, one, other] = [1, 2, 3].map(|number| client(&relay, number, false));
        let mut session = Session::new(&relay, &sender);
        sends(&mut session, &[(2, 10), (2, 11), (3, 12), (2, 13), (7, 14), (3, 15)]);
        assert_eq!(
            (received_bytes(&one), received_bytes(&other)),
            (vec![10, 11, 13], vec![12, 15])
        );
        assert_eq!(session.recipients, HashSet::from([one.key, other.key]));
        // The second receiver does not exist. The route of the first one must not be used.
        sends(&mut session, &[(2, 16), (7, 17)]);
        assert_eq!((received_bytes(&one), received_bytes(&other)), (vec![16], vec![]));
    }

    #[tokio::test]
    async fn a_route_is_looked_up_again_after_its_client_reconnects_or_leaves() {
        let relay = relay();
        let [sender, first] = [1, 2].map(|number| client(&relay, number, false));
        let mut session = Session::new(&relay, &sender);
        sends(&mut session, &[(2, 10)]);
        assert_eq!(received_bytes(&first), [10_u8]);
        let second = client(&relay, 2, false);
        sends(&mut session, &[(2, 11)]);
        assert_eq!((received_bytes(&first), received_bytes(&second)), (vec![], vec![11]));
        let link = Arc::new(Client::new(NodePublic([100; 32]), first.at, true, relay.counters));
        assert!(relay.table.add_remote(&link, second.key));
        relay.table.remove(&second);
        sends(&mut session, &[(2, 12)]);
        assert!(received_bytes(&second).is_empty());
        let forwarded = received_frames(&link);
        assert_eq!((forwarded.len(), forwarded[0].0), (1, kind::FORWARD_PACKET));
        relay.table.remove_link(&link);
        sends(&mut session, &[(2, 13)]);
        assert!(received_bytes(&second).is_empty() && received_frames(&link).is_empty());
    }

    #[tokio::test]
    async fn a_forwarded_datagram_is_not_forwarded_again() {
        let relay = relay();
        let [other, link] = [100, 101].map(|number| client(&relay, number, true));
        let remote = NodePublic([5; 32]);
        assert!(relay.table.add_remote(&link, remote));
        let datagram = [&[7; KEY][..], &remote.0, b"x"].concat();
        handle_frame(&mut Session::new(&relay, &other), kind::FORWARD_PACKET, &datagram).unwrap();
        assert!(received_frames(&link).is_empty());
    }

    #[tokio::test]
    async fn watch_close_and_forward_need_the_mesh_key() {
        let relay = relay();
        let [node, victim] = [1, 2].map(|number| client(&relay, number, false));
        let forward = [&[7; KEY][..], &victim.key.0, b"x"].concat();
        let requests: [(u8, &[u8]); 3] = [
            (kind::WATCH_CONNS, &[]),
            (kind::CLOSE_PEER, &victim.key.0),
            (kind::FORWARD_PACKET, &forward),
        ];
        for (kind, contents) in requests {
            let refused =
                handle_frame(&mut Session::new(&relay, &node), kind, contents).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{kind}");
        }
        assert!(victim.closed().now_or_never().is_none());
        assert!(received_frames(&node).is_empty() && received_frames(&victim).is_empty());
        let other = client(&relay, 100, true);
        for (kind, contents) in requests {
            handle_frame(&mut Session::new(&relay, &other), kind, contents).unwrap();
        }
        assert!(victim.closed().now_or_never().is_some());
        let forwarded = received_frames(&victim);
        assert_eq!((forwarded.len(), &forwarded[0].1[..KEY]), (1, &[7; KEY][..]));
        assert_eq!(received_frames(&other).len(), 3, "the connected clients");
    }
}
