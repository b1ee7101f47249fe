//! A node of a tailnet: fetches a page from another node by its name, then serves the page by HTTP until
//! standard input ends.
//!
//! ```text
//! TS_AUTHKEY=... cargo run -p linerate-tunnel --features tailnet --example tailnet -- \
//!     https://headscale.example /tmp/state my-program desk
//! ```

use std::{env, error::Error, net::Ipv6Addr};

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tunnel::{
    TcpListener, TcpStream,
    tailnet::{Member, Options},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [coordinator, state, hostname, other] =
        arguments().ok_or("usage: tailnet URL STATE_DIR HOSTNAME OTHER")?;
    let options = Options::new(coordinator, state)
        .auth_key(env::var("TS_AUTHKEY").unwrap_or_default())
        .hostname(hostname)
        .on_login_page(|page| println!("log in at {page}"));
    let member = Member::join(options).await?;
    println!("joined as {} at {:?}", member.status().await?.name, member.addresses());

    let mut stream = member.tunnel().connect_host(&other, 80).await?;
    stream.write_all(format!("GET / HTTP/1.0\r\nHost: {other}\r\n\r\n").as_bytes()).await?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page).await?;
    println!("{} bytes from {other}", page.len());

    let listener = member.tunnel().listen((Ipv6Addr::UNSPECIFIED, 80).into())?;
    println!("serving");
    let mut input = io::stdin();
    tokio::select! {
        served = serve(&member, &listener, &page) => served?,
        end = input.read_u8() => drop(end),
    }
    drop((stream, listener));
    member.close().await;
    println!("closed");
    Ok(())
}

async fn serve(member: &Member, listener: &TcpListener, page: &[u8]) -> io::Result<()> {
    loop {
        let (stream, from) = listener.accept().await?;
        let status = member.status().await.map_err(io::Error::other)?;
        let name = status.node_at(from.ip()).map_or("unknown node", |peer| &peer.name);
        println!("request from {name}");
        if let Err(error) = answer(stream, page).await {
            eprintln!("{name}: {error}");
        }
    }
}

async fn answer(mut stream: TcpStream, page: &[u8]) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < 8192 {
        request.push(stream.read_u8().await?);
    }
    stream.write_all(page).await?;
    stream.shutdown().await
}

fn arguments() -> Option<[String; 4]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
