//! A name server and a web server of the world, in threads of this process.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::thread;

use netns::Host;

/// Where the page is.
pub const PORT: u16 = 8080;

/// The names of the page: one with an IPv4 address only, one with an IPv6 address only.
pub const NAMES: [&str; 2] = ["v4.page.test", "v6.page.test"];

/// Answers questions for [`NAMES`] on port 53 of `host`, and serves a page there that names who
/// asks for it.
pub fn serve(host: &Host, addresses: [IpAddr; 2]) {
    for address in addresses {
        let socket = host.inside(|| UdpSocket::bind((address, 53)).expect("port 53 is free"));
        begin("name server", move || answer_questions(&socket, addresses));
        let listener =
            host.inside(|| TcpListener::bind((address, PORT)).expect("the port is free"));
        begin("web server", move || serve_page(&listener));
    }
}

fn begin(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).expect("a thread");
}

fn serve_page(listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        let peer = client.peer_addr().expect("it is connected").ip();
        let mut client = BufReader::new(client);
        let mut line = String::new();
        while client.read_line(&mut line).is_ok_and(|len| len > 2) {
            line.clear();
        }
        let page = format!("a page for {peer}");
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close", page.len());
        // Who went away does not read it.
        let _ = write!(client.get_mut(), "{head}\r\n\r\n{page}");
    }
}

fn answer_questions(socket: &UdpSocket, addresses: [IpAddr; 2]) {
    let mut question = [0; 1500];
    while let Ok((len, from)) = socket.recv_from(&mut question) {
        if let Some(answer) = answer(&question[..len], addresses) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// RFC 1035 section 4: the question again, and an address behind a pointer to its name.
fn answer(message: &[u8], addresses: [IpAddr; 2]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut at = HEADER;
    let mut labels = Vec::new();
    while *message.get(at)? != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(String::from_utf8_lossy(message.get(at + 1..end)?).into_owned());
        at = end;
    }
    let question = message.get(HEADER..at + 5)?;
    let kind = u16::from_be_bytes(message.get(at + 1..at + 3)?.try_into().ok()?);
    let index = NAMES.iter().position(|name| *name == labels.join("."));
    let address = index.map(|index| addresses[index]);
    let data = match (address, kind) {
        (Some(IpAddr::V4(v4)), 1) => v4.octets().to_vec(),
        (Some(IpAddr::V6(v6)), 28) => v6.octets().to_vec(),
        _ => Vec::new(),
    };
    let answers = u8::from(!data.is_empty());
    let mut answer = message[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0]);
    answer.extend(question);
    if answers > 0 {
        answer.extend([0xc0, 12]);
        answer.extend(&question[question.len() - 4..]);
        answer.extend([0, 0, 0, 60, 0, data.len() as u8]);
        answer.extend(data);
    }
    Some(answer)
}
