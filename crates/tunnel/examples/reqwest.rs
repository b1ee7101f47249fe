//! Fetches a page from inside the tunnel with reqwest, also by https.
//!
//! ```text
//! cargo run -p linerate-tunnel --features gateway --example reqwest -- wg0.conf https://intranet.example/
//! ```

use std::{env, error::Error};

use tokio::io::{AsyncWriteExt, stdout};
use tunnel::{Config, Tunnel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [file, url] = arguments().ok_or("usage: reqwest FILE.conf URL")?;
    let tunnel = Tunnel::start(&Config::from_file(file)?).await?;
    // It must live as long as the client makes connections.
    let gateway = tunnel.gateway().await?;
    let client = reqwest::Client::builder().proxy(reqwest::Proxy::all(gateway.url())?).build()?;

    let mut response = client.get(url).send().await?;
    eprintln!("{:?} {}", response.version(), response.status());
    while let Some(data) = response.chunk().await? {
        stdout().write_all(&data).await?;
    }
    stdout().flush().await?;
    Ok(())
}

fn arguments() -> Option<[String; 2]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
