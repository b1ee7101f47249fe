//! Fetches a page from inside the tunnel with hyper's client.
//!
//! ```text
//! cargo run -p linerate-tunnel --features hyper --example hyper -- wg0.conf http://10.0.0.1/
//! ```
//!
//! For https, wrap the connector in one of hyper-rustls:
//! `HttpsConnectorBuilder::new()....enable_http1().wrap_connector(Connector::new(tunnel))`.

use std::{env, error::Error};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::io::{AsyncWriteExt, stdout};
use tunnel::{Config, Connector, Tunnel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [file, url] = arguments().ok_or("usage: hyper FILE.conf http://...")?;
    let tunnel = Tunnel::start(&Config::from_file(file)?).await?;
    let connector = Connector::new(tunnel.clone());
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);

    let mut response = client.get(url.parse()?).await?;
    eprintln!("{:?} {}", response.version(), response.status());
    while let Some(frame) = response.frame().await {
        if let Some(data) = frame?.data_ref() {
            stdout().write_all(data).await?;
        }
    }
    stdout().flush().await?;
    Ok(())
}

fn arguments() -> Option<[String; 2]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
