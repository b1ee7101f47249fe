//! What a test finds behind the tunnel: files by HTTP, names by DNS, echoes by UDP. Each
//! is bound inside a host, and served by a thread until the test process ends.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;

use netns::Host;

/// The name that the name server knows, with both addresses of right.
pub const NAME: &str = "web.example";

pub fn in_background(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).expect("a thread for a test");
}

/// Serves the files of a folder of the host, by HTTP/1.0.
pub fn files(host: &Host, at: &str, folder: &str) {
    let listener = host.inside(|| TcpListener::bind(at).expect("nobody serves there"));
    let folder = host.outside(folder);
    in_background("files", move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            in_background("one file", move || {
                let _ = serve_file(&stream, &folder);
            });
        }
    });
}

fn serve_file(stream: &TcpStream, folder: &Path) -> Option<()> {
    let mut request = Vec::new();
    for line in BufReader::new(stream).lines() {
        match line.ok()? {
            line if line.is_empty() => break,
            line => request.push(line),
        }
    }
    let path = request.first()?.split_whitespace().nth(1)?.to_owned();
    let path = path.split('?').next()?.trim_start_matches('/').to_owned();
    let body = match path.as_str() {
        // What the origin was asked, as it saw it.
        "request" => Some(request.join("\n").into_bytes()),
        _ => fs::read(PathBuf::from(folder).join(path)).ok(),
    };
    let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
    let body = body.unwrap_or_default();
    let mut stream = stream;
    write!(stream, "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len()).ok()?;
    stream.write_all(&body).ok()
}

/// Sends every datagram back.
pub fn echo(host: &Host, at: &str) {
    let socket = host.inside(|| UdpSocket::bind(at).expect("nobody serves there"));
    in_background("echo", move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
}

/// Knows [`NAME`]; by UDP its answers are cut, so that all is asked by TCP, too, where
/// `is_long`.
pub fn names(host: &Host, at: &str, is_long: bool) {
    let (udp, tcp) = host.inside(|| {
        let udp = UdpSocket::bind(at).expect("nobody serves there");
        (udp, TcpListener::bind(at).expect("nobody serves there"))
    });
    in_background("names", move || {
        let mut buffer = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut buffer) {
            let mut answer = answer(&buffer[..len]);
            if is_long {
                // TC.
                answer[2] |= 2;
            }
            let _ = udp.send_to(&answer, from);
        }
    });
    in_background("names by TCP", move || {
        use std::io::Read;
        for mut stream in tcp.incoming().flatten() {
            let mut len = [0; 2];
            let _ = stream.read_exact(&mut len);
            let mut question = vec![0; u16::from_be_bytes(len).into()];
            let _ = stream.read_exact(&mut question);
            let answer = answer(&question);
            let _ = stream.write_all(&(answer.len() as u16).to_be_bytes());
            let _ = stream.write_all(&answer);
        }
    });
}

fn answer(question: &[u8]) -> Vec<u8> {
    let asked: String = NAME.split('.').map(|l| format!("{}{l}", l.len() as u8 as char)).collect();
    let name_end = question[12..].iter().position(|&byte| byte == 0).expect("a name ends") + 12;
    let is_known = question[12..name_end].eq_ignore_ascii_case(asked.as_bytes());
    let record = question[name_end + 2];
    let mut answer = question.to_vec();
    // A response, with recursion; no such name, unless it is known.
    answer[2..4].copy_from_slice(&[0x81, if is_known { 0x80 } else { 0x83 }]);
    let data = match record {
        1 => Ipv4Addr::new(10, 9, 0, 2).octets().to_vec(),
        _ => "fd09::2".parse::<Ipv6Addr>().expect("an address").octets().to_vec(),
    };
    if is_known {
        answer[7] = 1;
        answer.extend_from_slice(&[0xc0, 12, 0, record, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        answer.extend_from_slice(&data);
    }
    answer
}
