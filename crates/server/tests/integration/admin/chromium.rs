//! A headless Chromium, controlled over the Chrome DevTools Protocol.

use std::{path::Path, process::Stdio};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest},
};

/// A browser with one tab, which is closed when dropped.
pub(super) struct Chromium {
    process: std::process::Child,
    socket: WebSocketStream<TcpStream>,
    session: Value,
    last: u64,
    /// Unhandled events.
    pub events: Vec<Value>,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Chromium {
    /// Starts a browser, if it is installed.
    pub(super) async fn start(profile: &Path) -> Option<Self> {
        let process = std::process::Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-extensions"])
            .args(["--remote-debugging-port=0", "--remote-allow-origins=*"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .env("HOME", profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut browser = Self::connect(process).await;
        let tab = browser.browser("Target.createTarget", json!({ "url": "about:blank" })).await;
        let attach = json!({ "targetId": tab["targetId"], "flatten": true });
        browser.session =
            browser.browser("Target.attachToTarget", attach).await["sessionId"].take();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.command(&format!("{domain}.enable"), json!({})).await;
        }
        Some(browser)
    }

    async fn connect(mut process: std::process::Child) -> Self {
        let stderr = process.stderr.take().unwrap();
        // The browser prints its address and further messages, which a thread must read.
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("chromium's words".into())
            .spawn(move || {
                use std::io::BufRead;
                for line in std::io::BufReader::new(stderr).lines().map_while(Result::ok) {
                    if let Some((_, url)) = line.split_once("DevTools listening on ") {
                        let _ = to.send(url.to_owned());
                    }
                }
            })
            .unwrap();
        let url = from.recv().await.expect("chromium ended before it listened");
        let request = url.into_client_request().unwrap();
        let authority = request.uri().authority().unwrap().to_string();
        let stream = TcpStream::connect(authority).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        Self { process, socket, session: Value::Null, last: 0, events: Vec::new() }
    }

    async fn browser(&mut self, method: &str, parameters: Value) -> Value {
        self.session = Value::Null;
        self.command(method, parameters).await
    }

    /// Sends a command and returns its result.
    pub(super) async fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if self.session.is_string() {
            message["sessionId"] = self.session.clone();
        }
        self.socket.send(Message::text(message.to_string())).await.unwrap();
        loop {
            let mut answer = self.next().await;
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    async fn next(&mut self) -> Value {
        let message = self.socket.next().await.unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    /// Opens a page, and waits until it has loaded.
    pub(super) async fn open(&mut self, url: &str) {
        let answer = self.command("Page.navigate", json!({ "url": url })).await;
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        let loader = answer["loaderId"].clone();
        let is_loaded = |event: &Value| event["method"] == "Page.loadEventFired";
        // Events of the previous page are ignored.
        let began = |event: &Value| {
            event["method"] == "Page.frameNavigated"
                && event["params"]["frame"]["loaderId"] == loader
        };
        loop {
            if let Some(at) = self.events.iter().position(began)
                && self.events[at..].iter().any(is_loaded)
            {
                return;
            }
            let event = self.next().await;
            self.events.push(event);
        }
    }

    /// Evaluates an expression, and awaits a promise.
    pub(super) async fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.command("Runtime.evaluate", parameters).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression in the page is true.
    pub(super) async fn until(&mut self, expression: &str) {
        let wait = format!(
            "new Promise((done, late) => {{ const end = Date.now() + 10000; const look = () => \
             ({expression}) ? done(true) : Date.now() > end ? late(new Error('never')) : \
             setTimeout(look, 10); look(); }})"
        );
        self.value(&wait).await;
    }

    /// Presses a key that is not a letter.
    pub(super) async fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut parameters =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                parameters["text"] = json!(text);
            }
            self.command("Input.dispatchKeyEvent", parameters).await;
        }
    }

    pub(super) async fn size(&mut self, width: u32, height: u32, is_phone: bool) {
        let parameters = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone,
        });
        self.command("Emulation.setDeviceMetricsOverride", parameters).await;
    }

    pub(super) async fn is_dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// A screenshot in PNG.
    pub(super) async fn picture(&mut self) -> Vec<u8> {
        use base64ct::{Base64, Encoding};
        let answer = self.command("Page.captureScreenshot", json!({})).await;
        Base64::decode_vec(answer["data"].as_str().unwrap()).unwrap()
    }
}
