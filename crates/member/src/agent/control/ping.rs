//! Answers to the coordinator's pings.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Uri, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use mesh::dialing::ControlUrl;
use tailnet::ts2021::requests::PingRequest;
use tokio::{sync::mpsc, time::timeout};

use super::{
    connection::{Connection, Transport},
    dial::Target,
    error::ControlError,
};

/// The time limit of an answer (tailscale `controlclient/direct.go`, `answerHeadPing`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Answer {
    pub url: String,
    pub over_noise: bool,
    /// The body, or `None` if the request is the answer.
    pub body: Option<Vec<u8>>,
}

pub(super) struct Pings<'a, C> {
    pub connection: &'a Connection,
    pub transport: &'a C,
    pub url: &'a ControlUrl,
}

impl<C: Transport> Pings<'_, C> {
    /// Answers pings in order. Returns when both channels are closed.
    pub(super) async fn answer(
        &self,
        pings: &mut mpsc::Receiver<PingRequest>,
        answers: &mut mpsc::Receiver<Answer>,
    ) {
        loop {
            let answer = tokio::select! {
                Some(PingRequest { url, over_noise, .. }) = pings.recv() => {
                    Answer { url, over_noise, body: None }
                }
                Some(answer) = answers.recv() => answer,
                else => return,
            };
            let url = answer.url.clone();
            match timeout(ANSWER_TIMEOUT, self.send(answer)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(url, %error, "a ping was not answered"),
                Err(_) => tracing::debug!(url, "a ping was not answered in time"),
            }
        }
    }

    async fn send(&self, answer: Answer) -> Result<(), ControlError> {
        let bad = |why: &str| ControlError::BadResponse("ping", why.into());
        let uri: Uri = answer.url.parse().map_err(|_| bad("its URL is invalid"))?;
        let method = if answer.body.is_some() { Method::POST } else { Method::HEAD };
        let request = Request::builder().method(method);
        let body = Full::from(answer.body.unwrap_or_default());
        if answer.over_noise {
            let request = request.uri(uri).body(body).map_err(|_| bad("its URL is invalid"))?;
            return self.connection.send(request).await.map(drop);
        }
        self.send_plain(request, &uri, body).await
    }

    /// Sends over a new connection. Only the coordinator's host is allowed, because a coordinator
    /// must not direct requests to other hosts.
    async fn send_plain(
        &self,
        request: hyper::http::request::Builder,
        uri: &Uri,
        body: Full<Bytes>,
    ) -> Result<(), ControlError> {
        let bad = |why: &str| ControlError::BadResponse("ping", why.into());
        let tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        if host != self.url.host {
            return Err(bad("its URL names another host"));
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let request = request
            .uri(path)
            .header(HOST, authority)
            .body(body)
            .map_err(|_| bad("its URL is invalid"))?;
        let stream = self.transport.open(Target { host, port, tls, address: None }).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ControlError::connection_ended)?;
        let driver = tokio::spawn(connection);
        let answered = sender.send_request(request).await;
        driver.abort();
        answered.map(drop).map_err(ControlError::connection_ended)
    }
}
