//! A name server and a web server of the world.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};

use netns::{Host, in_background, serve_names};

/// Port of the page.
pub(crate) const PORT: u16 = 8080;

/// The names of the page: one with an IPv4 address only, one with an IPv6 address only.
pub(crate) const NAMES: [&str; 2] = ["v4.page.test", "v6.page.test"];

/// Serves [`NAMES`] on port 53 of `host`, and a page with the client's address.
pub(crate) fn serve(host: &Host, [v4, v6]: [&str; 2]) {
    let [name_of_v4, name_of_v6] = NAMES;
    let names = format!("--host-record={name_of_v4},{v4} --host-record={name_of_v6},{v6}");
    serve_names(host, &[v4, v6], &names);
    for address in [v4, v6] {
        let address: IpAddr = address.parse().expect("an address");
        let listener =
            host.inside(|| TcpListener::bind((address, PORT)).expect("the port is free"));
        in_background("web server", move || serve_page(&listener));
    }
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
        // The client may have disconnected.
        let _ = write!(client.get_mut(), "{head}\r\n\r\n{page}");
    }
}
