//! A SOCKS proxy that only this program can use.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
};

use getrandom::{SysRng, rand_core::TryRng};
use tokio::{net::TcpListener, task::AbortHandle};
use zeroize::Zeroizing;

use crate::Tunnel;

/// The user name. The password alone protects the proxy.
const USER: &str = "tunnel";
/// Random bytes of the password, which is written in hexadecimal.
const PASSWORD_LEN: usize = 16;

/// A SOCKS5 proxy into a [`Tunnel`] on a loopback port, for clients that support a proxy but not a custom
/// stream. It requires a password of 128 random bits, which only this program knows.
///
/// reqwest is such a client: the service that its `ClientBuilder::connector_layer` wraps
/// returns a type that only reqwest can create (0.12 and 0.13). With reqwest's feature `socks`, its
/// `Proxy` accepts the URL of a gateway. TLS is between reqwest and the far end, and names are resolved
/// in the tunnel. The cost is one more TCP connection on loopback.
///
/// ```no_run
/// # async fn client(tunnel: tunnel::Tunnel) -> Result<(), Box<dyn std::error::Error>> {
/// let gateway = tunnel.gateway().await?;
/// let proxy = reqwest::Proxy::all(gateway.url())?;
/// let client = reqwest::Client::builder().proxy(proxy).build()?;
/// let page = client.get("https://intranet.example/").send().await?.text().await?;
/// # Ok(())
/// # }
/// ```
///
/// When it is dropped, existing connections remain, and new ones are refused.
pub struct Gateway {
    at: SocketAddr,
    password: Zeroizing<String>,
    serving: AbortHandle,
}

impl Tunnel {
    /// Opens a SOCKS proxy into the tunnel. Tasks of the current tokio runtime serve it. It does not keep
    /// the [`Tunnel`] running.
    ///
    /// # Errors
    /// The kernel provides no port on loopback, or no randomness.
    pub async fn gateway(&self) -> io::Result<Gateway> {
        let mut secret = Zeroizing::new([0; PASSWORD_LEN]);
        SysRng.try_fill_bytes(secret.as_mut()).map_err(io::Error::other)?;
        let mut password = Zeroizing::new(String::with_capacity(2 * PASSWORD_LEN));
        for byte in secret.iter() {
            for digit in [byte >> 4, byte & 15] {
                password.extend(char::from_digit(digit.into(), 16));
            }
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let at = listener.local_addr()?;
        let net = self.net().clone();
        let expected_password = password.clone();
        let serving =
            tokio::spawn(async move { net.serve_socks(listener, USER, expected_password).await });
        Ok(Gateway { at, password, serving: serving.abort_handle() })
    }
}

impl Gateway {
    /// The proxy's URL with name and password: `socks5h://tunnel:...@127.0.0.1:...`. It is secret.
    pub fn url(&self) -> String {
        format!("socks5h://{USER}:{}@{}", *self.password, self.at)
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.at
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gateway").field(&self.at).finish()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
