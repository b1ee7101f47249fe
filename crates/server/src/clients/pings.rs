//! Requests from the server to clients. They are sent in the stream of maps, and a client answers
//! with its own request (tailscale `tailcfg.PingRequest`).
//!
//! ```text
//!   send_ping ──► request, with a random ID ──► all streams of the node
//!    ▲                                               │
//!    └── answer ◄── HEAD or POST /machine/ping/ID ◄──┘  from the same machine
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use base64ct::{Base64, Encoding};
use bytes::Bytes;
use coordinator::object::NodeId;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::frames::framed;
use crate::{http::body::Parts, random::random_number};

/// Path of the answers. They arrive inside Noise, so the host does not matter.
pub(crate) const PATH: &str = "/machine/ping/";
const HOST: &str = "https://unused";
/// Maximum number of requests that wait in one stream. A client that reads nothing answers nothing.
const WAITING: usize = 8;
/// Maximum number of requests that wait for an answer.
const MOST: usize = 4096;
/// Maximum size of an answer, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;

/// A request to a client.
#[derive(Clone, Copy, Debug)]
pub enum Ping<'a> {
    /// Checks that the client is alive.
    Alive,
    /// Pings another node through the tunnel. Tailscale's client does not answer if the ping
    /// fails.
    AccessRules(Ipv4Addr),
    /// An HTTP GET request to a path of the client (`ipn/ipnlocal/c2n.go`). Only Tailscale's
    /// client answers.
    Get(&'a str),
}

/// Streams of clients, and requests that wait for an answer.
#[derive(Default)]
pub struct Pings(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    streams: HashMap<NodeId, BTreeMap<u64, mpsc::Sender<Parts>>>,
    waiting: HashMap<String, (NodeId, oneshot::Sender<Bytes>)>,
}

/// Requests for one stream.
pub struct Mailbox<'a> {
    pings: &'a Pings,
    id: NodeId,
    number: u64,
    questions: mpsc::Receiver<Parts>,
}

/// A waiting request, which is removed when this is dropped.
struct Waiting<'a> {
    pings: &'a Pings,
    number: String,
}

impl Pings {
    /// Registers a stream of a node.
    pub fn subscribe(&self, id: NodeId) -> Mailbox<'_> {
        let (sender, questions) = mpsc::channel(WAITING);
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        table.streams.entry(id).or_default().insert(number, sender);
        Mailbox { pings: self, id, number, questions }
    }

    /// Sends a request to a node, and returns the answer.
    ///
    /// # Errors
    /// The node is not connected, or does not answer in time.
    pub async fn send_ping(
        &self,
        id: NodeId,
        question: Ping<'_>,
        patience: Duration,
    ) -> anyhow::Result<Bytes> {
        let number = random_number()?;
        let frame = framed(&ping_frame(&number, question));
        let answer = self.send(id, &number, &frame)?;
        let _waiting = Waiting { pings: self, number };
        let answer = timeout(patience, answer).await;
        answer.context("the node does not answer")?.context("the request was replaced")
    }

    fn send(
        &self,
        id: NodeId,
        number: &str,
        frame: &Bytes,
    ) -> anyhow::Result<oneshot::Receiver<Bytes>> {
        let mut table = self.lock();
        if table.waiting.len() >= MOST {
            bail!("too many requests wait for an answer");
        }
        let Some(streams) = table.streams.get(&id) else { bail!("the node is not connected") };
        for stream in streams.values() {
            // A stream with a full queue is not read.
            let _ = stream.try_send(vec![frame.clone()]);
        }
        let (sender, answer) = oneshot::channel();
        table.waiting.insert(number.to_owned(), (id, sender));
        Ok(answer)
    }

    /// Whether a node has a stream at this server.
    pub fn is_connected(&self, id: NodeId) -> bool {
        self.lock().streams.contains_key(&id)
    }

    /// The node that a request was sent to.
    pub fn target(&self, number: &str) -> Option<NodeId> {
        self.lock().waiting.get(number).map(|(id, _)| *id)
    }

    /// Delivers an answer.
    pub fn answer(&self, number: &str, answer_bytes: Bytes) {
        if let Some((_, waiting)) = self.lock().waiting.remove(number) {
            // The requester may have timed out.
            let _ = waiting.send(answer_bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox<'_> {
    /// The next request to send.
    pub async fn next(&mut self) -> Parts {
        match self.questions.recv().await {
            Some(question) => question,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Mailbox<'_> {
    fn drop(&mut self) {
        let mut table = self.pings.lock();
        if let Some(streams) = table.streams.get_mut(&self.id) {
            streams.remove(&self.number);
            if streams.is_empty() {
                table.streams.remove(&self.id);
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pings.lock().waiting.remove(&self.number);
    }
}

/// Encodes a request in a keepalive, which clients process without rebuilding their map.
fn ping_frame(number: &str, question: Ping<'_>) -> Vec<u8> {
    let mut ping = json!({ "URL": format!("{HOST}{PATH}{number}"), "URLIsNoise": true });
    match question {
        Ping::Alive => {}
        Ping::AccessRules(address) => {
            ping["Types"] = json!("TSMP");
            ping["IP"] = json!(address);
        }
        Ping::Get(path) => {
            let request = format!("GET {path} HTTP/1.1\r\nHost: local\r\n\r\n");
            ping["Types"] = json!("c2n");
            ping["Payload"] = json!(Base64::encode_string(request.as_bytes()));
        }
    }
    json!({ "KeepAlive": true, "PingRequest": ping }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::Value;
    use tailnet::ts2021::map_frames::FrameReader;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);
    const NODE: NodeId = NodeId(7);

    fn read(parts: &Parts) -> Value {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&parts.concat());
        serde_json::from_slice(&reader.poll_frame().unwrap().unwrap()).unwrap()
    }

    fn number_of(frame: &Value) -> String {
        let url = frame["PingRequest"]["URL"].as_str().unwrap();
        url.rsplit('/').next().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_delivered_once_and_a_silent_node_times_out() {
        let pings = Pings::default();
        assert!(pings.send_ping(NODE, Ping::Alive, PATIENCE).await.is_err(), "it has no stream");
        let mut mailbox = pings.subscribe(NODE);
        let target = pings.send_ping(NODE, Ping::Get("/echo"), PATIENCE);
        let (answer_bytes, number) = tokio::join!(target, async {
            let frame = read(&mailbox.next().await);
            assert_eq!(
                (&frame["KeepAlive"], &frame["PingRequest"]["Types"]),
                (&true.into(), &"c2n".into())
            );
            let payload = frame["PingRequest"]["Payload"].as_str().unwrap();
            assert!(Base64::decode_vec(payload).unwrap().starts_with(b"GET /echo HTTP/1.1\r\n"));
            let number = number_of(&frame);
            assert_eq!(pings.target(&number), Some(NODE));
            pings.answer(&number, Bytes::from_static(b"yes"));
            number
        });
        assert_eq!(answer_bytes.unwrap(), "yes");
        assert_eq!(pings.target(&number), None);
        let silent = pings.send_ping(NODE, Ping::Alive, PATIENCE).await;
        assert_eq!(silent.unwrap_err().to_string(), "the node does not answer");
        let unread = read(&mailbox.next().await);
        assert_eq!(pings.target(&number_of(&unread)), None, "it was removed");
        drop(mailbox);
        assert!(pings.lock().streams.is_empty() && pings.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn an_unread_stream_does_not_block_another() {
        let pings = Pings::default();
        let _unread = pings.subscribe(NODE);
        let mut read = pings.subscribe(NODE);
        for _ in 0..3 * WAITING {
            let _ = pings.send_ping(NODE, Ping::Alive, Duration::ZERO).now_or_never();
            assert!(read.next().now_or_never().is_some());
        }
    }
}
