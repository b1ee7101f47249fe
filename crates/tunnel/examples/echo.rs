//! An echo client: connects to an echo service inside the tunnel, sends a line and prints the answer.
//!
//! ```text
//! cargo run -p linerate-tunnel --example echo -- wg0.conf 10.0.0.1 7
//! ```

use std::{env, error::Error};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{Config, Tunnel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [file, host, port] = arguments().ok_or("usage: echo FILE.conf HOST PORT")?;
    let tunnel = Tunnel::start(&Config::from_file(file)?).await?;
    let mut stream = tunnel.connect_host(&host, port.parse()?).await?;
    println!("{} is connected to {}", stream.local_addr()?, stream.peer_addr()?);

    stream.write_all(b"hello through the tunnel\n").await?;
    stream.shutdown().await?;
    let mut received = String::new();
    stream.read_to_string(&mut received).await?;
    print!("{received}");

    drop(stream);
    tunnel.close().await;
    Ok(())
}

fn arguments() -> Option<[String; 3]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
