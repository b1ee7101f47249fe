//! Memory per unauthenticated client in each stage of a connection, for any input.

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HeaderValue;
use netns::Uplink;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::attacker::{Attacker, Endless, Http2, Sent, machine, post, registration};
use super::{memory_in, start, status};

/// Connections in each stage.
const MANY: u32 = 150;
/// Time in which the server has read all input.
const SETTLE: Duration = Duration::from_secs(1);
/// The requests of a connection.
const STREAMS: usize = 8;

/// The state in which a client leaves its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Connects,
    SendsHalfAClientHello,
    SendsALongClientHello,
    ShakesHandsOfTls,
    SendsHalfAHead,
    SendsABodyByteByByte,
    ShakesHandsOfNoise,
    OpensHttp2,
    SendsManyHeaders,
    SendsBodiesByteByByte,
    Registers,
    WaitsForItsRegistration,
    SendsHalfAMessage,
    SendsHalfALogin,
}

const STAGES: [Stage; 14] = [
    Stage::Connects,
    Stage::SendsHalfAClientHello,
    Stage::SendsALongClientHello,
    Stage::ShakesHandsOfTls,
    Stage::SendsHalfAHead,
    Stage::SendsABodyByteByByte,
    Stage::ShakesHandsOfNoise,
    Stage::OpensHttp2,
    Stage::SendsManyHeaders,
    Stage::SendsBodiesByteByByte,
    Stage::Registers,
    Stage::WaitsForItsRegistration,
    Stage::SendsHalfAMessage,
    Stage::SendsHalfALogin,
];

#[test]
fn an_unauthenticated_client_uses_at_most_its_accounted_memory() {
    let Some(mut tailnet) = start() else { return };
    let host = tailnet.host("attacker", Uplink::Switch);
    let mut too_much = Vec::new();
    for stage in STAGES {
        // Memory of the previous stage must not be reused.
        tailnet.coordinator.restart();
        let status = status(&tailnet);
        let mut each = 0;
        Attacker::run(&host, async |attacker| {
            let _first: Vec<_> = open(stage, &attacker, 0..5).await;
            sleep(SETTLE).await;
            let before = memory_in(&status);
            let held = open(stage, &attacker, 5..5 + MANY).await;
            assert_eq!(held.len(), MANY as usize, "{stage:?}");
            sleep(SETTLE).await;
            each = memory_in(&status).saturating_sub(before) / u64::from(MANY);
        });
        println!("{:>6.1} KiB: {stage:?}", each as f64 / 1024.0);
        if each > stage.most() {
            too_much.push((stage, each));
        }
    }
    assert!(too_much.is_empty(), "{too_much:?}");
}

async fn open(stage: Stage, attacker: &Attacker, numbers: Range<u32>) -> Vec<Box<dyn Any>> {
    let mut open = Vec::new();
    for number in numbers {
        open.extend(stage.open(attacker, number).await);
    }
    open
}

impl Stage {
    /// Limit of a connection's memory in bytes, as `server/visitors.rs` counts it.
    fn most(self) -> u64 {
        match self {
            Self::Connects | Self::SendsHalfAClientHello | Self::SendsALongClientHello => 24 << 10,
            Self::ShakesHandsOfTls | Self::SendsHalfAHead => 36 << 10,
            _ => 76 << 10,
        }
    }

    async fn open(self, attacker: &Attacker, number: u32) -> Option<Box<dyn Any>> {
        let http2 = async || attacker.http2(&machine(number)).await;
        Some(match self {
            Self::Connects => Box::new(attacker.tcp().await?),
            Self::SendsHalfAClientHello | Self::SendsALongClientHello => {
                let mut stream = attacker.tcp().await?;
                let sent = if self == Self::SendsHalfAClientHello { 11_000 } else { 40_000 };
                stream.write_all(&half_a_client_hello(sent)).await.ok()?;
                Box::new(stream)
            }
            Self::ShakesHandsOfTls => Box::new(attacker.tls().await?),
            Self::SendsHalfAHead => {
                let head = format!("GET /key HTTP/1.1\r\nHost: a\r\nX: {}", "a".repeat(7000));
                Box::new(attacker.connect_and_send(head.as_bytes()).await?)
            }
            Self::SendsABodyByteByByte => {
                let head = "POST /admin/login HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                            Content-Type: application/x-www-form-urlencoded\r\n\r\n";
                let output = format!("{head}{}", "1\r\na\r\n".repeat(4000));
                Box::new(attacker.connect_and_send(output.as_bytes()).await?)
            }
            Self::ShakesHandsOfNoise => {
                let (_, message) = Attacker::first_message(&machine(number), &attacker.server);
                Box::new(attacker.upgrade(&message).await?)
            }
            Self::OpensHttp2 => Box::new(http2().await?),
            Self::SendsManyHeaders => {
                let to = http2().await?;
                // All but the first are an index of two bytes.
                let long = HeaderValue::from_str(&"a".repeat(900)).ok()?;
                for _ in 0..STREAMS {
                    let mut request = register(Full::new(Bytes::new()).boxed())?;
                    for _ in 0..7 {
                        request.headers_mut().append("x-long", long.clone());
                    }
                    *request.body_mut() = Endless(1).boxed();
                    send(&to, request);
                }
                Box::new(to)
            }
            Self::SendsBodiesByteByByte => {
                let to = http2().await?;
                for _ in 0..STREAMS {
                    send(&to, register(Endless(2900).boxed())?);
                }
                Box::new(to)
            }
            Self::Registers => {
                let to = http2().await?;
                let services = vec![json!({ "Proto": "peerapi4" }); 400];
                let mut request = registration(number);
                request["Hostinfo"]["Services"] = json!(services);
                post(&to, "/machine/register", request.to_string()).await?;
                Box::new(to)
            }
            Self::WaitsForItsRegistration => {
                let to = http2().await?;
                let mut request = registration(number);
                let (_, answer) = post(&to, "/machine/register", request.to_string()).await?;
                request["Followup"] = answer["AuthURL"].clone();
                for _ in 0..STREAMS {
                    send(&to, register(Full::new(request.to_string().into()).boxed())?);
                }
                Box::new(to)
            }
            Self::SendsHalfAMessage => {
                let head = "GET /derp HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
                            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: derp\r\n\
                            Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
                let message = [&[0x82, 0xfe, 0x7f, 0xff, 0, 0, 0, 0][..], &[0; 30_000]].concat();
                Box::new(attacker.connect_and_send(&[head.as_bytes(), &message].concat()).await?)
            }
            Self::SendsHalfALogin => {
                let head =
                    "GET /derp HTTP/1.1\r\nHost: a\r\nUpgrade: derp\r\nConnection: upgrade\r\n\r\n";
                let login = [&[2, 0, 0, 0x0f, 0xa0][..], &[0; 3900]].concat();
                Box::new(attacker.connect_and_send(&[head.as_bytes(), &login].concat()).await?)
            }
        })
    }
}

/// A ClientHello of 64 KiB, of which these bytes are sent, in records of 1000 bytes (RFC 8446
/// section 5.1).
fn half_a_client_hello(bytes: usize) -> Vec<u8> {
    let message = [&[1, 0, 0xff, 0xff, 3, 3][..], &vec![0; bytes]].concat();
    let record = |part: &[u8]| {
        let len = u16::try_from(part.len()).expect("a record is short").to_be_bytes();
        [&[22, 3, 1, len[0], len[1]], part].concat()
    };
    message[..bytes].chunks(1000).flat_map(record).collect()
}

fn register(body: Sent) -> Option<Request<Sent>> {
    Request::post("https://a/machine/register").body(body).ok()
}

/// Sends a request and does not read the answer.
fn send(to: &Http2, request: Request<Sent>) {
    let answer = to.clone().send_request(request);
    tokio::spawn(answer);
}
