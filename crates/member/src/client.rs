//! A client of a member's local API (tailscale `client/local`).

use std::{io, path::PathBuf, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tailnet::keys::MachinePublic;
use tokio::{net::UnixStream, time::timeout};

/// The host header that the server accepts. No web page can send it.
const HOST: &str = "local-tailscaled.sock";
/// The time limit of an answer. A ping to a silent peer takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of an answer about tailnet lock: the agent gives up after twice 60 s.
const TKA_TIMEOUT: Duration = Duration::from_secs(150);
/// The longest answer, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// The reason for a failed request.
#[derive(Debug)]
pub enum ClientError {
    /// No member answers at the socket.
    Absent(io::Error),
    /// The member refused.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The message.
        text: String,
    },
    /// The answer is invalid.
    Broken(String),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent(error) => write!(f, "no member of a tailnet answers: {error}"),
            Self::Refused { text, status } if text.is_empty() => write!(f, "refused: {status}"),
            Self::Refused { text, .. } => f.write_str(text),
            Self::Broken(what) => write!(f, "no valid answer: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// A client of one member.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// A stream of notifications as lines of JSON.
pub struct Notifications {
    body: Incoming,
    rest: BytesMut,
}

impl Client {
    /// A client of the member at this socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Gets `path`, below `/localapi/v0/`.
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.request(Method::GET, path, None).await
    }

    /// Gets `path` with a parameter of any text.
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn get_with(&self, path: &str, name: &str, of: &str) -> Result<Value, ClientError> {
        self.get(&with_parameter(path, name, of)).await
    }

    /// Posts `body` to `path`.
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.request(Method::POST, path, body).await
    }

    /// Posts bytes to `path`.
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn post_bytes(&self, path: &str, body: &[u8]) -> Result<Value, ClientError> {
        self.request_bytes(Method::POST, path, body.to_vec()).await
    }

    /// Patches `path`.
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.request(Method::PATCH, path, Some(body)).await
    }

    /// Subscribes to notifications. `mask` selects the first one (`ipn/backend.go`,
    /// `NotifyWatchOpt`).
    ///
    /// # Errors
    /// The member does not answer or refuses.
    pub async fn watch(&self, mask: u32) -> Result<Notifications, ClientError> {
        let path = format!("watch-ipn-bus?mask={mask}");
        let response = self.send(Method::GET, &path, Vec::new()).await?;
        Ok(Notifications { body: response.into_body(), rest: BytesMut::new() })
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.request_bytes(method, path, body.into_bytes()).await
    }

    async fn request_bytes(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Value, ClientError> {
        let answered = async {
            let body = self.send(method, path, body).await?.into_body();
            collect(body).await
        };
        let (limit, hint) = match path.starts_with("tka/") {
            true => (TKA_TIMEOUT, ", and it may have been done: check with `linerate lock status`"),
            false => (ANSWER_TIMEOUT, ""),
        };
        let late = |_| ClientError::Broken(format!("timed out after {} s{hint}", limit.as_secs()));
        let text = timeout(limit, answered).await.map_err(late)??;
        // Some answers are plain text or empty.
        let as_text = || Value::String(String::from_utf8_lossy(&text).into_owned());
        Ok(plain(serde_json::from_slice(&text).unwrap_or_else(|_| as_text())))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(ClientError::Absent)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(format!("/localapi/v0/{path}"))
            .header("Host", HOST)
            .body(Full::new(Bytes::from(body)))
            .map_err(broken)?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = collect(response.into_body()).await?;
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        // Some errors are JSON.
        let message = serde_json::from_str::<Value>(&text).ok();
        let message = message.and_then(|message| Some(message.get("error")?.as_str()?.to_owned()));
        let text = plain_text(&message.unwrap_or(text));
        Err(ClientError::Refused { status: status.as_u16(), text })
    }
}

impl Notifications {
    /// Receives the next notification; `None` once the member has ended.
    ///
    /// # Errors
    /// It is not JSON.
    pub async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                return serde_json::from_slice(&line).map(plain).map(Some).map_err(broken);
            }
            if self.rest.len() > MAX_ANSWER {
                return Err(ClientError::Broken("a line is too long".into()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(broken)?.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn with_parameter(path: &str, name: &str, of: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    format!("{path}?{}", query.append_pair(name, of).finish())
}

async fn collect(mut body: Incoming) -> Result<BytesMut, ClientError> {
    let mut text = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            text.extend_from_slice(&data);
        }
        if text.len() > MAX_ANSWER {
            return Err(ClientError::Broken("it is too long".into()));
        }
    }
    Ok(text)
}

/// Removes control characters from an answer: it contains text of the coordinator and of other
/// nodes, and is printed on terminals.
fn plain(answer: Value) -> Value {
    match answer {
        Value::String(text) => Value::String(plain_text(&text)),
        Value::Array(all) => all.into_iter().map(plain).collect(),
        Value::Object(all) => {
            all.into_iter().map(|(key, value)| (plain_text(&key), plain(value))).collect()
        }
        other => other,
    }
}

/// Removes control characters, which could command a terminal.
pub fn plain_text(text: &str) -> String {
    let is_shown = |letter: &char| !letter.is_control() || matches!(letter, '\n' | '\t');
    text.chars().filter(is_shown).collect()
}

/// Parses a coordinator's key from an argument.
///
/// # Errors
/// A message, if it is not a key or the key of zeros.
pub fn read_server_key(text: &str) -> Result<MachinePublic, &'static str> {
    let key = text.parse().ok().filter(|key: &MachinePublic| !key.is_zero());
    key.ok_or("the server's key is mkey: and 64 hexadecimal digits, as `linerate-server` shows it")
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tka_requests_have_a_longer_timeout_than_the_agents_own() {
        let socket = std::env::temp_dir().join(format!("client-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
        let client = Client::new(socket.clone());
        for (path, least) in [("status", 30), ("tka/init", 121)] {
            let began = tokio::time::Instant::now();
            let error = client.post(path, None).await.unwrap_err().to_string();
            assert!(began.elapsed() >= Duration::from_secs(least), "{path}: {error}");
            assert_eq!(error.contains("it may have been done"), least > 30, "{path}: {error}");
        }
        std::fs::remove_file(&socket).unwrap();
    }

    #[test]
    fn parameter_is_percent_encoded() {
        let path = with_parameter("linerate/why", "target", "a b&target=c#ü+%");
        assert_eq!(path, "linerate/why?target=a+b%26target%3Dc%23%C3%BC%2B%25");
        assert!(format!("/localapi/v0/{path}").parse::<hyper::Uri>().is_ok());
        let mut read = form_urlencoded::parse(path.split_once('?').unwrap().1.as_bytes());
        assert_eq!(read.next().unwrap().1, "a b&target=c#ü+%");
    }

    #[test]
    fn control_characters_in_names_are_removed() {
        let answer =
            json!({"Peer": {"n\u{1b}[2J": [{"Name": "a\u{1b}]0;b\u{7}\u{9b}c", "Port": 1}]}});
        let shown = json!({"Peer": {"n[2J": [{"Name": "a]0;bc", "Port": 1}]}});
        assert_eq!(plain(answer), shown);
        assert_eq!(plain_text("two\nlines\r"), "two\nlines");
    }
}
