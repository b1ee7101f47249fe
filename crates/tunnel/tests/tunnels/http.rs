use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, body::Incoming, rt::Executor, server::conn::http1,
    service::service_fn,
};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, connect::Connect},
    rt::{TokioExecutor, TokioIo},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::PrivateKeyDer},
};
use tunnel::{Connector, TcpListener};

use crate::{
    names::with_names,
    tunnel_pair::{Pair, at, in_time, pattern},
};

const LEN: usize = 2_000_000;

/// Starts a web server on b, with http and https. Returns its certificate.
async fn with_web() -> (Pair, rcgen::CertifiedKey<rcgen::KeyPair>) {
    let pair = with_names().await;
    let name = rcgen::generate_simple_self_signed(["web.inside.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(name.signing_key.serialize_der()).unwrap();
    let tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![name.cert.der().clone()], key)
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(tls));
    tokio::spawn(serve(pair.b.listen(at("::", 80)).unwrap(), None));
    tokio::spawn(serve(pair.b.listen(at("::", 443)).unwrap(), Some(tls)));
    (pair, name)
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                // A client may reject the certificate or disconnect.
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => serve_one(stream).await,
                    Err(_) => Ok(()),
                },
                None => serve_one(stream).await,
            }
        });
    }
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<()> {
    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await
}

/// Answers with a page, or with the body of a POST.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match *request.method() {
        Method::POST => request.into_body().collect().await.unwrap().to_bytes(),
        _ => format!("{} of {:?}", request.uri().path(), request.headers()["host"]).into(),
    };
    Ok(Response::new(Full::new(body)))
}

async fn fetch<C: Connect + Clone + Send + Sync + 'static>(
    client: &Client<C, Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Bytes, hyper_util::client::legacy::Error> {
    let response = in_time(client.request(request)).await?;
    Ok(in_time(response.into_body().collect()).await.unwrap().to_bytes())
}

/// Runs the tasks of a client, and counts those that have not ended: one for each connection, and
/// one for each answer until its connection is back in the pool.
#[derive(Clone, Default)]
struct Tasks(Arc<AtomicUsize>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let count = Arc::clone(&self.0);
        count.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            task.await;
            count.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

impl Tasks {
    /// Waits until `count` tasks are left.
    async fn left(&self, count: usize) {
        in_time(async {
            while self.0.load(Ordering::Acquire) != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn get(url: &str) -> Request<Full<Bytes>> {
    Request::get(url).body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_client_reuses_its_connection() {
    let (pair, _) = with_web().await;
    let connector = Connector::new(pair.a.clone());
    let tasks = Tasks::default();
    let client = Client::builder(tasks.clone()).build(connector);
    for _ in 0..3 {
        let page = fetch(&client, get("http://web.inside.example/a")).await.unwrap();
        assert_eq!(page, r#"/a of "web.inside.example""#);
        assert_eq!(pair.a.connections(), 1, "the connection was not reused");
        // The client returns the connection to its pool after the answer.
        tasks.left(1).await;
    }
    let sent = Bytes::from(pattern(LEN, 1));
    let post = Request::post("http://[fd07::2]:80/").body(Full::new(sent.clone())).unwrap();
    assert!(fetch(&client, post).await.unwrap() == sent);
    for url in ["http://new.inside.example/", "http://10.7.0.2:81/"] {
        let error = fetch(&client, get(url)).await.unwrap_err();
        assert!(error.is_connect(), "{url}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_client_uses_tls_over_the_tunnel() {
    let (pair, name) = with_web().await;
    let mut roots = RootCertStore::empty();
    roots.add(name.cert.der().clone()).unwrap();
    let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    let connector = builder.wrap_connector(Connector::new(pair.a.clone()));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let page = fetch(&client, get("https://web.inside.example/b")).await.unwrap();
    assert_eq!(page, r#"/b of "web.inside.example""#);
    let unnamed = fetch(&client, get("https://old.inside.example/")).await.unwrap_err();
    assert!(unnamed.is_connect(), "the certificate is of another name");
}

fn reqwest(proxy: &str, name: &rcgen::CertifiedKey<rcgen::KeyPair>) -> reqwest::Client {
    let root = reqwest::Certificate::from_der(name.cert.der()).unwrap();
    let builder = reqwest::Client::builder().add_root_certificate(root);
    builder.proxy(reqwest::Proxy::all(proxy).unwrap()).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reqwest_client_uses_http_and_tls_through_the_gateway() {
    let (pair, name) = with_web().await;
    let gateway = pair.a.gateway().await.unwrap();
    let client = reqwest(&gateway.url(), &name);
    for url in ["http://web.inside.example/c", "https://web.inside.example/c"] {
        let page = in_time(client.get(url).send()).await.unwrap().text().await.unwrap();
        assert_eq!(page, r#"/c of "web.inside.example""#);
        let sent = pattern(LEN, 2);
        let echo = in_time(client.post(url).body(sent.clone()).send()).await.unwrap();
        assert!(in_time(echo.bytes()).await.unwrap() == sent, "{url}");
    }
    let sent = pair.a.peers()[0].tx_bytes;
    assert!(sent > 2 * LEN as u64, "{sent} bytes went through the tunnel");
    let unnamed = in_time(client.get("https://old.inside.example/").send()).await.unwrap_err();
    assert!(unnamed.is_connect(), "the certificate is of another name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_needs_its_password_and_ends_when_dropped() {
    let (pair, name) = with_web().await;
    let gateway = pair.a.gateway().await.unwrap();
    let url = gateway.url();
    assert_eq!(format!("{gateway:?}"), format!("Gateway({})", gateway.local_addr()));
    let get = |proxy: String| {
        let client = reqwest(&proxy, &name);
        async move { in_time(client.get("http://web.inside.example/").send()).await }
    };
    assert!(get(url.clone()).await.is_ok());
    let guess = |password: &str| format!("socks5h://tunnel:{password}@{}", gateway.local_addr());
    for wrong in [guess(&"0".repeat(32)), format!("socks5h://{}", gateway.local_addr())] {
        assert!(get(wrong).await.unwrap_err().is_connect());
    }
    let at = gateway.local_addr();
    drop(gateway);
    // The listening task ends when it is polled next.
    in_time(async {
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        while !tokio::net::TcpStream::connect(at).await.is_err_and(is_refused) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(get(url).await.is_err());
}
