//! Services behind the tunnel: files by HTTP, names by DNS, echoes by UDP. Threads serve files and
//! echoes until the test process ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};

use netns::{Host, in_background, serve_names};

/// The name of the name server, with both addresses of right.
pub(crate) const NAME: &str = "web.example";

/// Serves the files of a folder of the host, by HTTP/1.0.
pub(crate) fn files(host: &Host, at: &str, folder: &str) {
    let listener = host.inside(|| TcpListener::bind(at).expect("the port is free"));
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
        // The request that the origin received.
        "request" => Some(request.join("\n").into_bytes()),
        _ => fs::read(PathBuf::from(folder).join(path)).ok(),
    };
    let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
    let body = body.unwrap_or_default();
    let mut stream = stream;
    write!(stream, "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len()).ok()?;
    stream.write_all(&body).ok()
}

/// Answers HTTP/1.1 requests with their number on their connection, and with their body.
pub(crate) fn origin(host: &Host, at: &str) {
    let listener = host.inside(|| TcpListener::bind(at).expect("the port is free"));
    in_background("origin", move || {
        for stream in listener.incoming().flatten() {
            in_background("one connection", move || {
                let mut reader = BufReader::new(stream);
                let mut number = 0;
                while let Some(body) = body_of_request(&mut reader) {
                    number += 1;
                    let body = format!("{number}\n{body}");
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
                    let answer = format!("{head}\r\n{body}");
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn body_of_request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        if line.trim().is_empty() {
            break;
        }
        length = line
            .trim()
            .strip_prefix("Content-Length: ")
            .map_or(length, |len| len.parse().expect("a number"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    String::from_utf8(body).ok()
}

/// Sends every datagram back.
pub(crate) fn echo(host: &Host, at: &str) {
    let socket = host.inside(|| UdpSocket::bind(at).expect("the port is free"));
    in_background("echo", move || {
        let mut buffer = vec![0; 65_535];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
}

/// Serves [`NAME`] on these addresses.
pub(crate) fn names(host: &Host, addresses: &[&str]) {
    serve_names(host, addresses, &format!("--host-record={NAME},10.9.0.2,fd09::2"));
}
