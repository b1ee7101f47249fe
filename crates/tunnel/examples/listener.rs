//! An echo service inside the tunnel, by a program without privileges. Peers connect to it, and receive
//! the bytes that they send.
//!
//! ```text
//! cargo run -p linerate-tunnel --example listener -- wg0.conf 7
//! ```

use std::{env, error::Error, net::Ipv6Addr};

use tokio::io::{self, AsyncWriteExt};
use tunnel::{Config, TcpStream, Tunnel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [file, port] = arguments().ok_or("usage: listener FILE.conf PORT")?;
    let tunnel = Tunnel::start(&Config::from_file(file)?).await?;
    // Listens on all addresses of the configuration, of both families.
    let listener = tunnel.listen((Ipv6Addr::UNSPECIFIED, port.parse()?).into())?;
    println!("echo at port {}", listener.local_addr()?.port());
    loop {
        let (stream, from) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("{from}: {error}");
            }
        });
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    io::copy(&mut read, &mut write).await?;
    write.shutdown().await
}

fn arguments() -> Option<[String; 2]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
