//! Which clients the relay may serve beside the nodes of its own network: another server is asked, as
//! derper asks it (`tailcfg.DERPAdmitClientRequest`).

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{anyhow, ensure};
use hyper::{Request, header};
use serde::Deserialize;
use serde_json::json;
use tailnet::keys::NodePublic;
use tokio::time::{Instant, timeout};

use crate::{fair_turns::FairTurns, fetch::Fetch, remote_url::RemoteUrl, visitors};

/// How long a yes is good for without another question, and how long while there is no answer.
const GOOD: Duration = Duration::from_secs(10 * 60);
const GOOD_WITHOUT_ANSWER: Duration = Duration::from_secs(24 * 3600);
/// The most clients of which a yes is kept.
const MOST: usize = 1 << 16;
/// How many questions are asked at once, and about clients of one source. All clients behind a proxy are one
/// source; two questions are left for others.
const AT_ONCE: usize = 16;
const EACH: usize = 14;
/// Within this there is an answer, and so long a question waits for its turn: both together are less
/// than a login may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long nothing is asked where there was no answer: all that come then are decided at once.
const REST: Duration = Duration::from_secs(30);

/// Asks another server.
pub struct Admission {
    url: RemoteUrl,
    fetch: Fetch,
    /// When each was last admitted.
    admitted: Mutex<HashMap<NodePublic, Instant>>,
    /// When a question last was without an answer.
    unanswered: Mutex<Option<Instant>>,
    turns: FairTurns<IpAddr>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Allow")]
    allow: bool,
}

impl Admission {
    /// Asks there.
    pub fn new(url: RemoteUrl) -> Self {
        let fetch = Fetch::new(!url.is_https());
        let (admitted, unanswered) = (Mutex::default(), Mutex::default());
        Self { url, fetch, admitted, unanswered, turns: FairTurns::new(AT_ONCE, EACH) }
    }

    /// Whether a client may be served. While there is no answer, those may that were served before.
    pub async fn admits(&self, client: &NodePublic, from: IpAddr) -> bool {
        if self.was_admitted(client, GOOD) {
            return true;
        }
        match self.answer(client, from).await {
            Some(allow) => {
                self.note(client, allow);
                allow
            }
            None => self.was_admitted(client, GOOD_WITHOUT_ANSWER),
        }
    }

    /// What the other server answers, if it does.
    async fn answer(&self, client: &NodePublic, from: IpAddr) -> Option<bool> {
        if self.rests() {
            return None;
        }
        let turn = self.turns.take(visitors::source(from));
        let _turn = timeout(PATIENCE, turn).await.ok()?.ok()?;
        // Those that waited need not find out by themselves.
        if self.rests() {
            return None;
        }
        let asked = timeout(PATIENCE, self.ask(client, from)).await;
        let error = match asked.unwrap_or_else(|_| Err(anyhow!("no answer in time"))) {
            Ok(allow) => return Some(allow),
            Err(error) => error,
        };
        tracing::warn!("asking {} about a client of the relay: {error:#}", self.url);
        *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        None
    }

    fn rests(&self) -> bool {
        let unanswered = *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.is_some_and(|at| at.elapsed() < REST)
    }

    async fn ask(&self, client: &NodePublic, from: IpAddr) -> anyhow::Result<bool> {
        let body = json!({ "NodePublic": client, "Source": from.to_canonical() }).to_string();
        let request = Request::post(self.url.uri())
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.into_bytes())?;
        let answer = self.fetch.within_time(request).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(serde_json::from_slice::<Answer>(answer.body())?.allow)
    }

    fn was_admitted(&self, client: &NodePublic, within: Duration) -> bool {
        let admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.get(client).is_some_and(|at| at.elapsed() < within)
    }

    fn note(&self, client: &NodePublic, allow: bool) {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        if !allow {
            admitted.remove(client);
            return;
        }
        if admitted.len() >= MOST {
            admitted.retain(|_, at| at.elapsed() < GOOD);
        }
        if admitted.len() < MOST {
            admitted.insert(*client, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        time::{advance, pause},
    };

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn listening() -> (TcpListener, Admission) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/verify", listener.local_addr().unwrap());
        (listener, Admission::new(url.parse().unwrap()))
    }

    async fn allow(mut stream: TcpStream) {
        request(&mut stream).await;
        answer(stream).await;
    }

    async fn request(stream: &mut TcpStream) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            request.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    async fn answer(stream: TcpStream) {
        say(stream, r#"{"Allow":true}"#).await;
    }

    async fn say(mut stream: TcpStream, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_hangs_holds_up_a_login_once_and_clients_of_before_stay() {
        let (listener, admission) = listening().await;
        let [before, other] = [1, 2].map(|number| NodePublic([number; 32]));
        let (is_admitted, ()) = tokio::join!(admission.admits(&before, HERE), async {
            allow(listener.accept().await.unwrap().0).await;
        });
        assert!(is_admitted);

        // From here on it takes connections, and answers none.
        pause();
        advance(GOOD).await;
        let asked = Instant::now();
        let many = (3..200).map(|number| NodePublic([number; 32])).collect::<Vec<_>>();
        let all = many.iter().map(|client| admission.admits(client, HERE));
        let (first, others) =
            tokio::join!(admission.admits(&before, HERE), futures_util::future::join_all(all));
        assert!(first && !others.contains(&true));
        assert!(asked.elapsed() <= PATIENCE + Duration::from_millis(10), "{:?}", asked.elapsed());
        let asked = Instant::now();
        assert!(admission.admits(&before, HERE).await && !admission.admits(&other, HERE).await);
        assert_eq!(asked.elapsed(), Duration::ZERO, "nothing is asked for a while");
        advance(REST).await;
        let asked = Instant::now();
        assert!(!admission.admits(&other, HERE).await);
        assert!(asked.elapsed() >= PATIENCE, "it is asked again");
        advance(GOOD_WITHOUT_ANSWER).await;
        assert!(!admission.admits(&before, HERE).await);
    }

    #[tokio::test]
    async fn a_client_that_was_refused_is_not_admitted_while_the_server_does_not_answer() {
        let (listener, admission) = listening().await;
        let client = NodePublic([1; 32]);
        let admits = async |body: &str| {
            let answer = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                request(&mut stream).await;
                say(stream, body).await;
            };
            tokio::join!(admission.admits(&client, HERE), answer).0
        };
        assert!(admits(r#"{"Allow":true}"#).await);
        pause();
        advance(GOOD).await;
        assert!(!admits(r#"{"Allow":false}"#).await);
        let (is_admitted, ()) = tokio::join!(admission.admits(&client, HERE), async {
            drop(listener.accept().await.unwrap());
        });
        assert!(!is_admitted);
    }

    #[tokio::test]
    async fn a_source_with_many_unanswered_questions_keeps_no_other_source_out() {
        let (listener, admission) = listening().await;
        let other: IpAddr = "192.0.2.7".parse().unwrap();
        let clients: Vec<_> =
            (0..=3 * AT_ONCE as u8).map(|number| NodePublic([number; 32])).collect();
        let (client, of_flood) = clients.split_first().unwrap();
        let flood = of_flood.iter().map(|client| admission.admits(client, HERE));
        let flood = futures_util::future::join_all(flood);
        // Questions about the flood stay unanswered.
        let answers = async {
            let mut unanswered = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = request(&mut stream).await;
                match request.contains("192.0.2.7") {
                    true => answer(stream).await,
                    false => unanswered.push(stream),
                }
            }
        };
        tokio::select! {
            biased;
            _ = flood => panic!("the flood ended before the other source was admitted"),
            () = answers => {}
            is_admitted = admission.admits(client, other) => assert!(is_admitted),
        }
    }

    #[tokio::test]
    async fn an_answer_counts_again_once_the_rest_is_over() {
        let (listener, admission) = listening().await;
        let client = NodePublic([1; 32]);
        let (is_admitted, ()) = tokio::join!(admission.admits(&client, HERE), async {
            drop(listener.accept().await.unwrap());
        });
        assert!(!is_admitted);
        *admission.unanswered.lock().unwrap() = Some(Instant::now() - REST);
        let (is_admitted, ()) = tokio::join!(admission.admits(&client, HERE), async {
            allow(listener.accept().await.unwrap().0).await;
        });
        assert!(is_admitted);
    }
}
