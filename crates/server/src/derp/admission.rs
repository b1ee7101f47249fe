//! Admission of clients that are not nodes of the relay's network: another server is queried, in
//! derper's protocol (`tailcfg.DERPAdmitClientRequest`).

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

use crate::net::{connections, fair_semaphore::FairSemaphore, fetch::Fetch, remote_url::RemoteUrl};

/// How long an admission is valid, and how long while the other server does not answer.
const GOOD: Duration = Duration::from_secs(10 * 60);
const GOOD_WITHOUT_ANSWER: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of admitted clients that are remembered.
const MOST: usize = 1 << 16;
/// Maximum number of concurrent requests, in total and for clients of one source. All clients behind
/// a proxy are one source; two requests are left for others.
const AT_ONCE: usize = 16;
const EACH: usize = 14;
/// Maximum time to wait for a permit, and for the answer. Both together are shorter than the timeout
/// of a login.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause after a request without an answer. Clients that arrive during the pause are decided at
/// once.
const REST: Duration = Duration::from_secs(30);

/// Queries another server about clients.
pub struct Admission {
    url: RemoteUrl,
    fetch: Fetch,
    /// When each client was last admitted.
    admitted: Mutex<HashMap<NodePublic, Instant>>,
    /// When a request last got no answer.
    unanswered: Mutex<Option<Instant>>,
    permits: FairSemaphore<IpAddr>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Allow")]
    allow: bool,
}

impl Admission {
    /// Queries the server at this URL.
    pub fn new(url: RemoteUrl) -> Self {
        let fetch = Fetch::new(!url.is_https());
        let (admitted, unanswered) = (Mutex::default(), Mutex::default());
        Self { url, fetch, admitted, unanswered, permits: FairSemaphore::new(AT_ONCE, EACH) }
    }

    /// Whether a client may be served. While the other server does not answer, clients that were
    /// admitted before may.
    pub async fn admits(&self, client: &NodePublic, from: IpAddr) -> bool {
        if self.was_admitted(client, GOOD) {
            return true;
        }
        match self.answer(client, from).await {
            Some(allow) => {
                self.record(client, allow);
                allow
            }
            None => self.was_admitted(client, GOOD_WITHOUT_ANSWER),
        }
    }

    /// The other server's answer, if it answers.
    async fn answer(&self, client: &NodePublic, from: IpAddr) -> Option<bool> {
        if self.is_paused() {
            return None;
        }
        let permit = self.permits.acquire(connections::source(from));
        let _permit = timeout(PATIENCE, permit).await.ok()?.ok()?;
        // Clients that waited for a permit need not time out themselves.
        if self.is_paused() {
            return None;
        }
        let started = timeout(PATIENCE, self.request(client, from)).await;
        let error = match started.unwrap_or_else(|_| Err(anyhow!("no answer in time"))) {
            Ok(allow) => return Some(allow),
            Err(error) => error,
        };
        tracing::warn!("querying {} about a client of the relay: {error:#}", self.url);
        *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        None
    }

    fn is_paused(&self) -> bool {
        let unanswered = *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.is_some_and(|at| at.elapsed() < REST)
    }

    async fn request(&self, client: &NodePublic, from: IpAddr) -> anyhow::Result<bool> {
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

    fn record(&self, client: &NodePublic, allow: bool) {
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
        respond(stream, r#"{"Allow":true}"#).await;
    }

    async fn respond(mut stream: TcpStream, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_hanging_server_delays_one_login_and_admitted_clients_stay() {
        let (listener, admission) = listening().await;
        let [before, other] = [1, 2].map(|number| NodePublic([number; 32]));
        let (is_admitted, ()) = tokio::join!(admission.admits(&before, HERE), async {
            allow(listener.accept().await.unwrap().0).await;
        });
        assert!(is_admitted);

        // From here on it accepts connections, and does not answer.
        pause();
        advance(GOOD).await;
        let started = Instant::now();
        let many = (3..200).map(|number| NodePublic([number; 32])).collect::<Vec<_>>();
        let all = many.iter().map(|client| admission.admits(client, HERE));
        let (first, others) =
            tokio::join!(admission.admits(&before, HERE), futures_util::future::join_all(all));
        assert!(first && !others.contains(&true));
        assert!(
            started.elapsed() <= PATIENCE + Duration::from_millis(10),
            "{:?}",
            started.elapsed()
        );
        let started = Instant::now();
        assert!(admission.admits(&before, HERE).await && !admission.admits(&other, HERE).await);
        assert_eq!(started.elapsed(), Duration::ZERO, "no requests during the pause");
        advance(REST).await;
        let started = Instant::now();
        assert!(!admission.admits(&other, HERE).await);
        assert!(started.elapsed() >= PATIENCE, "it is queried again");
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
                respond(stream, body).await;
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
    async fn a_flood_of_unanswered_requests_does_not_block_another_source() {
        let (listener, admission) = listening().await;
        let other: IpAddr = "192.0.2.7".parse().unwrap();
        let clients: Vec<_> =
            (0..=3 * AT_ONCE as u8).map(|number| NodePublic([number; 32])).collect();
        let (client, of_flood) = clients.split_first().unwrap();
        let flood = of_flood.iter().map(|client| admission.admits(client, HERE));
        let flood = futures_util::future::join_all(flood);
        // Requests about the flood are not answered.
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
    async fn answers_are_requested_again_after_the_pause() {
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
