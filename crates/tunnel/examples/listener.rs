//! A service inside of the tunnel, of a program without any right: whoever is on the other
//! side connects to it, and hears what it says.
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
    // All addresses of the configuration, of both families.
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
