use std::{io::ErrorKind, net::IpAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::tunnel_pair::{A, B, Pair, UNUSED, at, in_time};

/// The records of the name server: names and their addresses.
type Zone = &'static [(&'static str, &'static [&'static str])];

const ZONE: Zone = &[
    ("web.inside.example", &[B[0], B[1]]),
    ("half.inside.example", &[UNUSED, B[1]]),
    ("old.inside.example", &[B[0]]),
];

/// Starts a name server on b, by UDP.
pub(crate) async fn with_names() -> Pair {
    let pair =
        Pair::with(|config| config.dns(B[0].parse().unwrap()).search_domain("inside.example"))
            .await;
    let server = pair.b.bind_udp(at(B[0], 53)).unwrap();
    tokio::spawn(async move {
        let mut question = [0; 512];
        while let Ok((len, from)) = server.recv_from(&mut question).await {
            server.send_to(&answer(&question[..len]), from).await.unwrap();
        }
    });
    pair
}

/// RFC 1035, section 4.1: the header, a copy of the question, and a record for each address of the
/// requested type.
fn answer(question: &[u8]) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut place = 12;
    while question[place] != 0 {
        let end = place + 1 + usize::from(question[place]);
        labels.push(String::from_utf8(question[place + 1..end].to_vec()).unwrap());
        place = end;
    }
    let (name, kind) = (labels.join("."), question[place + 2]);
    let known = ZONE.iter().find(|(known, _)| *known == name);
    let addresses: Vec<Vec<u8>> = known
        .into_iter()
        .flat_map(|(_, addresses)| *addresses)
        .filter_map(|text| match text.parse().unwrap() {
            IpAddr::V4(ip) if kind == 1 => Some(ip.octets().to_vec()),
            IpAddr::V6(ip) if kind == 28 => Some(ip.octets().to_vec()),
            _ => None,
        })
        .collect();
    let code = if known.is_some() { 0 } else { 3 };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
    answer.extend(&question[12..place + 5]);
    for address in addresses {
        answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, address.len() as u8]);
        answer.extend(address);
    }
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_resolved_inside_the_tunnel() {
    let pair = with_names().await;
    let resolve = |name: &'static str| in_time(pair.a.resolve(name));
    let ips =
        |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
    assert_eq!(resolve("web.inside.example").await.unwrap(), ips(&[B[1], B[0]]));
    assert_eq!(resolve("old").await.unwrap(), ips(&[B[0]]));
    assert_eq!(resolve("[fd07::9]").await.unwrap(), ips(&["fd07::9"]));
    let unknown = resolve("new.inside.example").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(resolve("no name").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    // This machine could resolve the name, but only servers in the tunnel are queried.
    assert_eq!(resolve("localhost").await.unwrap_err().kind(), ErrorKind::NotFound);
    let nobody = in_time(pair.b.resolve("web.inside.example")).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::NotFound, "no server is configured");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_host_uses_the_address_that_answers() {
    let pair = with_names().await;
    let listener = pair.b.listen(at("::", 80)).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, from)) = listener.accept().await {
            let _ = stream.write_all(from.ip().to_string().as_bytes()).await;
        }
    });
    for (name, from) in [("web", A[1]), ("half", A[1]), ("old", A[0]), (B[0], A[0]), (B[1], A[1])] {
        let mut stream = in_time(pair.a.connect_host(name, 80)).await.unwrap();
        let mut received = String::new();
        in_time(stream.read_to_string(&mut received)).await.unwrap();
        assert_eq!(received, from, "{name}");
    }
    let unknown = in_time(pair.a.connect_host("new", 80)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}
