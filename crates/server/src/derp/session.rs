//! What a client of the relay says, to its end: frames are passed on out of the buffer that they were
//! read into, a run of them to one receiver at a time.

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
    table::{Client, Way},
};

/// A client that says nothing for so long has no buffer.
pub const QUIET: Duration = Duration::from_secs(1);
/// What the first of its words are then read into, in bytes.
const FIRST: usize = 64;
/// The most receivers that a client is noted to have sent to, which are told when it goes.
const NOTED: usize = 4096;
/// How often a client is told that a peer is not here.
const NOT_HERE_PAUSE: Duration = Duration::from_millis(333);
const KEY: usize = 32;

/// One client.
pub struct Session<'a> {
    relay: &'a Relay,
    client: &'a Arc<Client>,
    /// The clients that it sent to.
    pub noted: HashSet<NodePublic>,
    /// When it was last told that a peer is not here.
    told_at: Option<Instant>,
    /// The way of its last datagram: mostly the next has the same.
    last: Option<Last>,
    /// Of a relay of the mesh: which of its clients sent to which of ours, as the table was told.
    heard: HashSet<(NodePublic, NodePublic)>,
}

struct Last {
    to: NodePublic,
    way: Way,
    /// Of the table, when it was asked.
    version: u64,
}

/// A datagram in a frame.
struct Datagram<'f> {
    from: NodePublic,
    to: NodePublic,
    bytes: &'f [u8],
    /// Another relay has forwarded it.
    is_forwarded: bool,
}

/// What is to be done behind a run of frames.
enum Next {
    /// More is to be read.
    Read,
    /// A receiver has no room.
    Wait(Arc<Client>),
}

impl<'a> Session<'a> {
    /// Of a client that has logged in.
    pub fn new(relay: &'a Relay, client: &'a Arc<Client>) -> Self {
        let (noted, heard) = (HashSet::new(), HashSet::new());
        Self { relay, client, noted, told_at: None, last: None, heard }
    }

    /// Does what it says until its connection ends.
    ///
    /// # Errors
    /// The connection breaks, or it says what it must not.
    pub async fn run(
        &mut self,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        loop {
            match self.handle(decoder, buffer)? {
                Next::Wait(receiver) => receiver.queue.room().await,
                Next::Read => {
                    if read_more(buffer, from).await? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Does what the frames say that are there.
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
            let Some(way) = self.way(&first) else {
                self.tell_not_here(&first);
                buffer.advance(HEADER_LEN + len);
                continue;
            };
            if self.pass(way.client(), matches!(way, Way::Far(_)), decoder, buffer)? {
                return Ok(Next::Wait(Arc::clone(way.client())));
            }
        }
        Ok(Next::Read)
    }

    /// Passes on all that is for the same receiver as the next frame. Whether the receiver is to be
    /// waited for.
    fn pass(
        &mut self,
        receiver: &Client,
        is_far: bool,
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
            let has_no_room = put(&mut filling, &next, is_far);
            // Others wait behind what a relay forwards: it is not held up for one receiver.
            let waits = has_no_room && !next.is_forwarded;
            buffer.advance(HEADER_LEN + len);
            if waits {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn command(&mut self, said: Option<FromClient>) -> io::Result<()> {
        match said {
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
            // What later clients say, and older ones said; what is no datagram though it should be.
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

    /// The way of a datagram, which is noted. What was forwarded goes no further than to clients of
    /// this relay.
    fn way(&mut self, datagram: &Datagram<'_>) -> Option<Way> {
        let version = self.relay.table.version();
        let to = datagram.to;
        let is_known = |last: &Last| last.to == to && last.version == version;
        if !self.last.as_ref().is_some_and(is_known) {
            if self.last.as_ref().is_none_or(|last| last.version != version) {
                self.heard.clear();
            }
            let way = self.relay.table.way(&to)?;
            self.last = Some(Last { to, way, version });
        }
        let way = self.last.as_ref().map(|last| &last.way)?.clone();
        if datagram.is_forwarded {
            let has_room = self.heard.len() < NOTED;
            if has_room && self.heard.insert((datagram.from, to)) {
                self.relay.table.hear(datagram.from, to);
            }
            return Some(way).filter(|way| matches!(way, Way::Near(_)));
        }
        if self.noted.len() < NOTED {
            self.noted.insert(to);
        }
        Some(way)
    }

    /// Whether a datagram is of a client that the table is to be told of first.
    fn is_news(&self, datagram: &Datagram<'_>) -> bool {
        datagram.is_forwarded
            && self.heard.len() < NOTED
            && !self.heard.contains(&(datagram.from, datagram.to))
    }

    /// Says so to a client that looks for a path: only that learns by this that it is another one.
    fn tell_not_here(&mut self, datagram: &Datagram<'_>) {
        self.relay.counted.not_here.add(1);
        let now = Instant::now();
        let is_due = self.told_at.is_none_or(|at| now >= at + NOT_HERE_PAUSE);
        if datagram.bytes.starts_with(&disco::MAGIC) && is_due {
            self.told_at = Some(now);
            self.relay.table.tell_not_here(self.client, &datagram.to);
        }
    }
}

fn put(filling: &mut Filling<'_>, datagram: &Datagram<'_>, is_far: bool) -> bool {
    let Datagram { from, to, bytes, .. } = datagram;
    if is_far { filling.forward(from, to, bytes) } else { filling.packet(from, bytes) }
}

/// The datagram that a frame is; nothing if it is none, or none that this client may send.
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

/// Reads more behind what is there; 0 bytes at the end. A client that is quiet has no buffer.
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
    use crate::counted;

    fn relay() -> Relay {
        let key = RelayKey::new(Box::new([9; 32].into()));
        Relay::new(key, None, None, counted::of_tests(), Handle::current())
    }

    /// A client that is connected.
    fn client(relay: &Relay, number: u8, is_of_mesh: bool) -> Arc<Client> {
        let (key, at) = (NodePublic([number; 32]), ([192, 0, 2, number], 7).into());
        let client = Arc::new(Client::new(key, at, is_of_mesh, relay.counted));
        relay.table.insert(&client);
        client
    }

    fn says(session: &mut Session<'_>, kind: u8, contents: &[u8]) -> io::Result<()> {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        session.handle(&mut Decoder::default(), &mut out).map(drop)
    }

    /// Sends these datagrams of one byte in one run of frames, each to the client of its number.
    fn sends(session: &mut Session<'_>, datagrams: &[(u8, u8)]) {
        let mut out = BytesMut::new();
        for (to, byte) in datagrams {
            write_packet(&mut out, &NodePublic([*to; 32]), &[*byte]);
        }
        session.handle(&mut Decoder::default(), &mut out).unwrap();
    }

    /// The frames that wait for a client.
    fn told(client: &Client) -> Vec<(u8, Bytes)> {
        let (mut out, mut decoder) = (BytesMut::new(), Decoder::default());
        let _ = client.queue.take(&mut out).now_or_never();
        std::iter::from_fn(|| decoder.poll_frame(&mut out).unwrap()).collect()
    }

    /// The datagrams that wait for a client, from the first client.
    fn heard(client: &Client) -> Vec<u8> {
        let byte = |(kind, contents): (u8, Bytes)| {
            assert_eq!((kind, contents.len(), contents[0]), (kind::RECV_PACKET, KEY + 1, 1));
            contents[KEY]
        };
        told(client).into_iter().map(byte).collect()
    }

    #[tokio::test]
    async fn each_frame_of_a_run_reaches_its_own_receiver() {
        let relay = relay();
        let [sender, one, other] = [1, 2, 3].map(|number| client(&relay, number, false));
        let mut session = Session::new(&relay, &sender);
        sends(&mut session, &[(2, 10), (2, 11), (3, 12), (2, 13), (7, 14), (3, 15)]);
        assert_eq!((heard(&one), heard(&other)), (vec![10, 11, 13], vec![12, 15]));
        assert_eq!(session.noted, HashSet::from([one.key, other.key]));
        // The second client does not exist. The first one's way is not used for it.
        sends(&mut session, &[(2, 16), (7, 17)]);
        assert_eq!((heard(&one), heard(&other)), (vec![16], vec![]));
    }

    #[tokio::test]
    async fn a_way_is_looked_up_again_after_its_client_came_back_moved_or_left() {
        let relay = relay();
        let [sender, first] = [1, 2].map(|number| client(&relay, number, false));
        let mut session = Session::new(&relay, &sender);
        sends(&mut session, &[(2, 10)]);
        assert_eq!(heard(&first), [10_u8]);
        let second = client(&relay, 2, false);
        sends(&mut session, &[(2, 11)]);
        assert_eq!((heard(&first), heard(&second)), (vec![], vec![11]));
        let link = Arc::new(Client::new(NodePublic([100; 32]), first.at, true, relay.counted));
        assert!(relay.table.arrive(&link, second.key));
        relay.table.remove(&second);
        sends(&mut session, &[(2, 12)]);
        assert!(heard(&second).is_empty());
        let forwarded = told(&link);
        assert_eq!((forwarded.len(), forwarded[0].0), (1, kind::FORWARD_PACKET));
        relay.table.lose(&link);
        sends(&mut session, &[(2, 13)]);
        assert!(heard(&second).is_empty() && told(&link).is_empty());
    }

    #[tokio::test]
    async fn a_datagram_that_was_forwarded_is_forwarded_to_no_third_relay() {
        let relay = relay();
        let [other, link] = [100, 101].map(|number| client(&relay, number, true));
        let far = NodePublic([5; 32]);
        assert!(relay.table.arrive(&link, far));
        let datagram = [&[7; KEY][..], &far.0, b"x"].concat();
        says(&mut Session::new(&relay, &other), kind::FORWARD_PACKET, &datagram).unwrap();
        assert!(told(&link).is_empty());
    }

    #[tokio::test]
    async fn only_a_client_with_the_meshs_key_watches_closes_and_forwards() {
        let relay = relay();
        let [node, victim] = [1, 2].map(|number| client(&relay, number, false));
        let forward = [&[7; KEY][..], &victim.key.0, b"x"].concat();
        let asked: [(u8, &[u8]); 3] = [
            (kind::WATCH_CONNS, &[]),
            (kind::CLOSE_PEER, &victim.key.0),
            (kind::FORWARD_PACKET, &forward),
        ];
        for (kind, contents) in asked {
            let refused = says(&mut Session::new(&relay, &node), kind, contents).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{kind}");
        }
        assert!(victim.closed().now_or_never().is_none());
        assert!(told(&node).is_empty() && told(&victim).is_empty());
        let other = client(&relay, 100, true);
        for (kind, contents) in asked {
            says(&mut Session::new(&relay, &other), kind, contents).unwrap();
        }
        assert!(victim.closed().now_or_never().is_some());
        let forwarded = told(&victim);
        assert_eq!((forwarded.len(), &forwarded[0].1[..KEY]), (1, &[7; KEY][..]));
        assert_eq!(told(&other).len(), 3, "the clients that are there");
    }
}
