//! Client of the running server's API.

use std::path::PathBuf;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::{Common, Output, print, yaml::yaml};
use crate::admin::api::ROOT;

/// The server's socket, and the output format.
pub(super) struct Client {
    socket: PathBuf,
    output: Option<Output>,
}

impl Client {
    pub(super) fn new(common: &Common) -> anyhow::Result<Self> {
        Ok(Self::at(common.configuration()?.socket, common))
    }

    /// A client of this socket.
    pub(super) fn at(socket: PathBuf, common: &Common) -> Self {
        Self { socket, output: common.output }
    }

    /// Sends a request, and prints the answer in the selected format, by default as a table.
    pub(super) async fn print_answer(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        table: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<()> {
        let answer = self.send(method, path, body).await?;
        self.print(&answer, table)
    }

    /// Prints a value in the selected format, by default as a table.
    pub(super) fn print(
        &self,
        answer: &Value,
        table: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<()> {
        print(&match self.output {
            Some(Output::Json) => format!("{answer:#}\n"),
            Some(Output::JsonLine) => format!("{answer}\n"),
            Some(Output::Yaml) => yaml(answer),
            None => format!("{}\n", table(answer).trim_end()),
        })
    }

    /// Sends a request and returns the answer.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream =
            stream.with_context(|| format!("{}: is the server running?", self.socket.display()))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("{ROOT}{path}"))
            .header(HOST, "local")
            .body(Full::new(Bytes::from(body)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        drop(sender);
        connection.await??;
        let answer: Value = serde_json::from_slice(&answer).context("the server's answer")?;
        if !status.is_success() {
            bail!("{}", answer["message"].as_str().unwrap_or("the server refused the request"));
        }
        Ok(answer)
    }
}

/// Encodes a text as a segment of a path.
pub(super) fn part(text: &str) -> String {
    let coded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    // Forms encode a space as `+`, paths as `%20`.
    coded.replace('+', "%20")
}

/// A path with the parameters that have a value.
pub(super) fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}
