//! What the server asks of clients: by a question in the stream of maps, which a client answers by a
//! request of its own (tailscale `tailcfg.PingRequest`).
//!
//! ```text
//!   ask ──► question, by a number that nobody guesses ──► all streams of the node
//!    ▲                                                          │
//!    └── what it said ◄── HEAD or POST /machine/ping/NUMBER ◄───┘  by the machine that was asked
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

use crate::{body::Parts, machine::random_number, stream};

/// Where answers are sent. They come inside Noise: the host is not looked at.
pub const PATH: &str = "/machine/ping/";
const HOST: &str = "https://unused";
/// How many questions of one stream wait to be sent. A client that takes none answers none.
const WAITING: usize = 8;
/// The most questions that wait for an answer.
const MOST: usize = 4096;
/// The longest answer, in bytes.
pub const LONGEST: usize = 64 << 10;

/// What a client is asked.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// Whether it is there.
    Alive,
    /// To ping another node through the tunnel; a stock client that has no answer says nothing.
    Reach(Ipv4Addr),
    /// A request of HTTP by GET to a path of the client's own (`ipn/ipnlocal/c2n.go`); stock clients
    /// alone answer.
    Get(&'a str),
}

/// The streams of clients, and questions that wait for an answer.
#[derive(Default)]
pub struct Pings(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    streams: HashMap<NodeId, BTreeMap<u64, mpsc::Sender<Parts>>>,
    waiting: HashMap<String, (NodeId, oneshot::Sender<Bytes>)>,
}

/// What one stream is to carry.
pub struct Mailbox<'a> {
    pings: &'a Pings,
    id: NodeId,
    number: u64,
    questions: mpsc::Receiver<Parts>,
}

/// A question that waits; it is forgotten with this.
struct Waiting<'a> {
    pings: &'a Pings,
    number: String,
}

impl Pings {
    /// A stream of a node begins.
    pub fn follow(&self, id: NodeId) -> Mailbox<'_> {
        let (sender, questions) = mpsc::channel(WAITING);
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        table.streams.entry(id).or_default().insert(number, sender);
        Mailbox { pings: self, id, number, questions }
    }

    /// Asks a node, and returns what it said.
    ///
    /// # Errors
    /// It is not connected, or says nothing for so long.
    pub async fn ask(
        &self,
        id: NodeId,
        question: Question<'_>,
        patience: Duration,
    ) -> anyhow::Result<Bytes> {
        let number = random_number()?;
        let frame = stream::framed(&words(&number, question));
        let answer = self.send(id, &number, &frame)?;
        let _waiting = Waiting { pings: self, number };
        let answer = timeout(patience, answer).await;
        answer.context("the node does not answer")?.context("another question took its place")
    }

    fn send(
        &self,
        id: NodeId,
        number: &str,
        frame: &Bytes,
    ) -> anyhow::Result<oneshot::Receiver<Bytes>> {
        let mut table = self.lock();
        if table.waiting.len() >= MOST {
            bail!("too many questions wait for an answer");
        }
        let Some(streams) = table.streams.get(&id) else { bail!("the node is not connected") };
        for stream in streams.values() {
            // One that is full is not read.
            let _ = stream.try_send(vec![frame.clone()]);
        }
        let (sender, answer) = oneshot::channel();
        table.waiting.insert(number.to_owned(), (id, sender));
        Ok(answer)
    }

    /// Whether a node has a stream here, so that it can be asked.
    pub fn is_connected(&self, id: NodeId) -> bool {
        self.lock().streams.contains_key(&id)
    }

    /// Whom the question of this number was put to.
    pub fn asked(&self, number: &str) -> Option<NodeId> {
        self.lock().waiting.get(number).map(|(id, _)| *id)
    }

    /// Its answer.
    pub fn answer(&self, number: &str, said: Bytes) {
        if let Some((_, waiting)) = self.lock().waiting.remove(number) {
            // The one that asked may have lost patience.
            let _ = waiting.send(said);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox<'_> {
    /// What is to be sent next.
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

/// A question in a sign of life: clients read it without making their map anew.
fn words(number: &str, question: Question<'_>) -> Vec<u8> {
    let mut ping = json!({ "URL": format!("{HOST}{PATH}{number}"), "URLIsNoise": true });
    match question {
        Question::Alive => {}
        Question::Reach(address) => {
            ping["Types"] = json!("TSMP");
            ping["IP"] = json!(address);
        }
        Question::Get(path) => {
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
    use tailnet::control::frame::FrameReader;

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
    async fn a_node_that_answers_is_heard_once_and_one_that_does_not_is_given_up() {
        let pings = Pings::default();
        assert!(pings.ask(NODE, Question::Alive, PATIENCE).await.is_err(), "it has no stream");
        let mut mailbox = pings.follow(NODE);
        let asked = pings.ask(NODE, Question::Get("/echo"), PATIENCE);
        let (said, number) = tokio::join!(asked, async {
            let frame = read(&mailbox.next().await);
            assert_eq!(
                (&frame["KeepAlive"], &frame["PingRequest"]["Types"]),
                (&true.into(), &"c2n".into())
            );
            let payload = frame["PingRequest"]["Payload"].as_str().unwrap();
            assert!(Base64::decode_vec(payload).unwrap().starts_with(b"GET /echo HTTP/1.1\r\n"));
            let number = number_of(&frame);
            assert_eq!(pings.asked(&number), Some(NODE));
            pings.answer(&number, Bytes::from_static(b"yes"));
            number
        });
        assert_eq!(said.unwrap(), "yes");
        assert_eq!(pings.asked(&number), None);
        let silent = pings.ask(NODE, Question::Alive, PATIENCE).await;
        assert_eq!(silent.unwrap_err().to_string(), "the node does not answer");
        let unread = read(&mailbox.next().await);
        assert_eq!(pings.asked(&number_of(&unread)), None, "it is forgotten");
        drop(mailbox);
        assert!(pings.lock().streams.is_empty() && pings.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_stream_that_is_not_read_holds_nothing_up() {
        let pings = Pings::default();
        let _unread = pings.follow(NODE);
        let mut read = pings.follow(NODE);
        for _ in 0..3 * WAITING {
            let _ = pings.ask(NODE, Question::Alive, Duration::ZERO).now_or_never();
            assert!(read.next().now_or_never().is_some());
        }
    }
}
